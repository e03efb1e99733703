"""Load the application quickly, and no more than it uses: most of a start's CPU is the import of its modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def loading() -> Iterator[None]:
    """Import without garbage collection, which would traverse every module again and again.

    What has been loaded lives as long as the process, so later collections leave it out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_structlog() -> None:
    """Import structlog before others do, as if rich were not installed.

    It would load rich and pygments for tracebacks in colour, which no line of ours has: 4 MB of a process.
    """
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules.setdefault("rich", None)  # a module that is None cannot be imported
    import structlog  # noqa: F401 - loaded for all who import it later

    if modules["rich"] is None:
        del modules["rich"]
