"""The bytes of a media file for those who measure it, with a bound on the work that one file may cause.

The readers are plain Python over a memory map: whatever a file claims, it costs no memory, and nothing in it is
executed by a decoder. What a file may cost in time is counted in steps; every few thousand of them the reading
thread sleeps for a moment, so that the event loop is never kept waiting for long.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Any

STEPS_MAX = 2_000_000
"""How many elements of one file are looked at: some hours of any format."""
STEPS_BETWEEN_PAUSES = 4_096
PAUSE_S = 0.001

LENGTH_UNKNOWN_MIN = 0x7FFF_0000
"""What writers to a pipe put for a 32-bit length that they do not know yet: this or more, or 0."""


class Contradiction(Exception):
    """The file contradicts itself, is cut short, or holds nothing to play; the text says which."""


class TooManySteps(Exception):
    """Measuring the file would take longer than is given to one."""


class MediaBytes:
    """A file's bytes. Every access outside them raises :class:`Contradiction`, never another exception."""

    __slots__ = ("_data", "_pause_at", "_steps_left", "size_bytes")

    def __init__(self, data: mmap.mmap | bytes, *, steps_max: int = STEPS_MAX) -> None:
        self._data = data
        self._steps_left = steps_max
        self._pause_at = steps_max - STEPS_BETWEEN_PAUSES
        self.size_bytes = len(data)

    def step(self, count: int = 1) -> None:
        """Count work done. Raises :class:`TooManySteps` once a file has had its share."""
        self._steps_left -= count
        if self._steps_left < 0:
            raise TooManySteps
        if self._steps_left < self._pause_at:
            self._pause_at = self._steps_left - STEPS_BETWEEN_PAUSES
            time.sleep(PAUSE_S)

    def read(self, form: str, place: int) -> tuple[Any, ...]:
        """Unpack a ``struct`` format at ``place``."""
        try:
            return struct.unpack_from(form, self._data, place)
        except struct.error:
            raise Contradiction("the content is cut short") from None

    def byte(self, place: int) -> int:
        """One byte."""
        if not 0 <= place < self.size_bytes:
            raise Contradiction("the content is cut short")
        return self._data[place]

    def span(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to before ``end``, as many of them as there are."""
        return self._data[max(0, start) : max(0, end)]

    def find(self, mark: bytes, start: int) -> int:
        """Where ``mark`` comes next, or -1."""
        return self._data.find(mark, start)
