"""Files that a crash left half written: nobody knows of them, so age alone tells that nobody wants them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

STALE_AFTER_S = 24 * 3600


def clear_leftovers(directory: Path) -> None:
    """Remove files in ``directory`` that nobody has written to for a day; makes the folder if need be. Blocks."""
    directory.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - STALE_AFTER_S
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
