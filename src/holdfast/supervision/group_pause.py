"""A group's restart budget: when many keys crash together, the group pauses and probes until it may resume."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from holdfast.supervision.intensity import RestartWindow
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.telemetry.reports.causes import describe


class GroupPause:
    """The pause of one directory. ``probe`` returns whether the group may resume, and may raise if not."""

    def __init__(
        self, limits: KeyedLimits, reports: KeyedReports, probe: Callable[[], Awaitable[bool]], rng: random.Random
    ) -> None:
        self._limits = limits
        self._reports = reports
        self._probe = probe
        self._rng = rng
        self._crashes = RestartWindow(limits.group_crashes, limits.group_period_s)
        self._over: trio.Event | None = None
        self._reason: str | None = None
        self.more_crashes = 0
        """Crashes during the pause, which are not reported one by one."""
        self.operators_reason: str | None = None
        """Why an operator paused the group; None if none did."""

    @property
    def reason(self) -> str | None:
        """Why the group is paused; None if it is not."""
        return (self.operators_reason or self._reason) if self.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether the group is paused."""
        return self._over is not None

    def note_crash(self) -> bool:
        """Count a key's crash. Returns whether the group's budget covers it."""
        return self._crashes.record(trio.current_time())

    def begin(self, nursery: trio.Nursery, exc: Exception) -> None:
        """Pause because of ``exc``, and probe in ``nursery``. Has no effect during a pause."""
        if self._over is None:
            self._over = trio.Event()
            self.more_crashes = 0
            cause = describe(exc)
            self._reason = cause.reason
            nursery.start_soon(self._probe_until_ok, self._over)
            crashes = self._crashes.count(trio.current_time())
            self._reports.paused(cause.reason, reason_type=cause.reason_type, crashes=crashes)

    def begin_by_operator(self, reason: str) -> None:
        """Pause until :meth:`end_by_operator`, also through restarts of the directory and successful probes."""
        if self._over is None:
            self._over = trio.Event()
        self.operators_reason = reason

    def end_by_operator(self) -> None:
        """Resume, whatever the pause began with."""
        self.operators_reason = None
        self._crashes.clear()
        self.end()

    def end(self) -> None:
        """Resume, unless an operator paused the group."""
        if self.operators_reason is None:
            over, self._over = self._over, None
            if over is not None:
                over.set()

    async def wait_over(self) -> None:
        """Wait until the group is not paused."""
        while self._over is not None:
            await self._over.wait()

    async def _probe_until_ok(self, over: trio.Event) -> None:
        tries = 0
        while True:
            tries += 1
            await trio.sleep(self._limits.probe_backoff.delay(tries, self._rng))
            try:
                if await self._probe():
                    break
            except Exception as exc:
                cause = describe(exc)
                self._reports.paused(cause.reason, reason_type=cause.reason_type)
        if self._over is over and self.operators_reason is None:
            self._crashes.clear()
            self.end()
            self._reports.resumed(more_crashes=self.more_crashes)
