"""A group's own budget: when many of its keys crash together it pauses, and probes until it may go on."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.supervision.keyed_slots import KeyedLimits


class GroupPause:
    """The pause of one directory. ``probe`` says whether the group may go on, and may raise where it may not."""

    def __init__(
        self, limits: KeyedLimits, notes: KeyedReports, probe: Callable[[], Awaitable[bool]], rng: random.Random
    ) -> None:
        self._limits = limits
        self._notes = notes
        self._probe = probe
        self._rng = rng
        self._crashes = RestartWindow(limits.group_crashes, limits.group_period_s)
        self._over: trio.Event | None = None

    @property
    def is_on(self) -> bool:
        """Whether the group is paused."""
        return self._over is not None

    def note_crash(self) -> bool:
        """Count a key's crash; whether the group's budget still covers it."""
        return self._crashes.record(trio.current_time())

    def begin(self, nursery: trio.Nursery, exc: Exception) -> None:
        """Pause for the crash ``exc``, and probe in ``nursery``; repeating it changes nothing."""
        if self._over is None:
            self._over = trio.Event()
            nursery.start_soon(self._probe_until_well, self._over)
            self._notes.pause(exc, self._crashes.count(trio.current_time()))

    def end(self) -> None:
        """Go on."""
        over, self._over = self._over, None
        if over is not None:
            over.set()

    async def wait_over(self) -> None:
        """Return once the group is not paused."""
        while self._over is not None:
            await self._over.wait()

    async def _probe_until_well(self, over: trio.Event) -> None:
        tries = 0
        while True:
            tries += 1
            await trio.sleep(self._limits.probe_backoff.delay(tries, self._rng))
            try:
                if await self._probe():
                    break
            except Exception as exc:
                self._notes.pause(exc)
        if self._over is over:
            self._crashes.clear()
            self.end()
            self._notes.resumed()
