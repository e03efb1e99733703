"""How busy the event loop is: the share of time in which it had something to do."""

from __future__ import annotations

import trio


class LoopLoad(trio.abc.Instrument):
    """Adds up how long the loop waits for the world; the rest of the time it works."""

    def __init__(self) -> None:
        self._asleep_at = 0.0
        self._idle_s = 0.0
        self._asked_at = trio.current_time()

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio as the loop goes to sleep."""
        self._asleep_at = trio.current_time() if timeout else 0.0

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio as the loop wakes up."""
        if timeout:
            self._idle_s += trio.current_time() - self._asleep_at

    def share(self) -> float:
        """The share of time worked since the last call, 0 to 1."""
        now = trio.current_time()
        elapsed_s, idle_s = now - self._asked_at, self._idle_s
        self._asked_at, self._idle_s = now, 0.0
        return 1.0 - min(1.0, idle_s / elapsed_s) if elapsed_s > 0 else 0.0
