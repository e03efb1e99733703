"""The load of the event loop: the share of time in which it did not sleep."""

from __future__ import annotations

import trio


class LoopLoad(trio.abc.Instrument):
    """Measures how long the loop sleeps; the rest of the time it works."""

    def __init__(self) -> None:
        self._asleep_at = 0.0
        self._idle_s = 0.0
        self._measured_at = trio.current_time()

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio before the loop sleeps."""
        self._asleep_at = trio.current_time() if timeout else 0.0

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio after the loop has slept."""
        if timeout:
            self._idle_s += trio.current_time() - self._asleep_at

    def share(self) -> float:
        """Return the share of time worked since the last call, 0 to 1."""
        now = trio.current_time()
        elapsed_s, idle_s = now - self._measured_at, self._idle_s
        self._measured_at, self._idle_s = now, 0.0
        return 1.0 - min(1.0, idle_s / elapsed_s) if elapsed_s > 0 else 0.0
