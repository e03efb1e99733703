"""Load the application quickly: most of a start's CPU is the import of its modules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
