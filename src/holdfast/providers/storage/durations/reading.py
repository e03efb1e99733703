"""Bounds-checked access to the bytes of a media file, with a limit on the work per file.

The readers are plain Python over a memory map: a file needs no memory for the sizes it declares, and no decoder
runs on it. The time for a file is limited by counting steps; every few thousand steps the reading thread sleeps
briefly, so that the event loop can run.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Any

STEPS_MAX = 2_000_000
"""How many elements of one file are read: some hours of any format."""
STEPS_BETWEEN_PAUSES = 4_096
PAUSE_S = 0.001

LENGTH_UNKNOWN_MIN = 0x7FFF_0000
"""Programs that write to a pipe put this or more, or 0, for a 32-bit length that they do not know yet."""


class Contradiction(Exception):
    """The file contradicts itself, is truncated, or has nothing to play; the text says which."""


class TooManySteps(Exception):
    """Measuring the file takes more steps than allowed."""


class MediaBytes:
    """A file's bytes. Every access outside them raises :class:`Contradiction`, never another exception."""

    __slots__ = ("_data", "_pause_at", "_steps_left", "size_bytes")

    def __init__(self, data: mmap.mmap | bytes, *, steps_max: int = STEPS_MAX) -> None:
        self._data = data
        self._steps_left = steps_max
        self._pause_at = steps_max - STEPS_BETWEEN_PAUSES
        self.size_bytes = len(data)

    def step(self, count: int = 1) -> None:
        """Count steps. Raises :class:`TooManySteps` above the limit."""
        self._steps_left -= count
        if self._steps_left < 0:
            raise TooManySteps
        if self._steps_left < self._pause_at:
            self._pause_at = self._steps_left - STEPS_BETWEEN_PAUSES
            time.sleep(PAUSE_S)

    def read(self, form: str, offset: int) -> tuple[Any, ...]:
        """Unpack a ``struct`` format at ``offset``."""
        try:
            return struct.unpack_from(form, self._data, offset)
        except struct.error:
            raise Contradiction("the content is truncated") from None

    def byte(self, offset: int) -> int:
        """Return one byte."""
        if not 0 <= offset < self.size_bytes:
            raise Contradiction("the content is truncated")
        return self._data[offset]

    def span(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``, as far as the file reaches."""
        return self._data[max(0, start) : max(0, end)]

    def find(self, mark: bytes, start: int) -> int:
        """Return where ``mark`` is next, or -1."""
        return self._data.find(mark, start)
