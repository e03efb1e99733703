"""A line of progress: rewritten in place on a terminal, and now and then a line of its own elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

REFRESH_S = 0.2
LINES_S = 10.0
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Writes to ``out``. Lines stay; the progress below them is replaced, or shown every ten seconds."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._is_terminal = out.isatty()
        self._every_s = REFRESH_S if self._is_terminal else LINES_S
        self._shown_at = clock()
        self._is_drawn = False

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._out.write(f"{_CLEAR if self._is_drawn else ''}{text}\n")
        self._out.flush()
        self._is_drawn = False

    def progress(self, text: str) -> None:
        """Show how far the work has come, unless that was shown a moment ago."""
        now = self._clock()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        self._out.write(f"{_CLEAR}{text}" if self._is_terminal else f"{text}\n")
        self._out.flush()
        self._is_drawn = self._is_terminal
