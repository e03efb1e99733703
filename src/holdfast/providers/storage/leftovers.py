"""Remove partial files that remain after a crash; only their age shows that they are not in use."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

STALE_AFTER_S = 24 * 3600


def clear_leftovers(directory: Path) -> None:
    """Remove files in ``directory`` not written to for a day; creates the folder if it is missing. Blocks."""
    directory.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - STALE_AFTER_S
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
