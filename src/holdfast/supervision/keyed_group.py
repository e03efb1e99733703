"""What the keys of one directory share: limits, the present run, the group's pause, and where it is recorded."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol

import msgspec
import trio
from prometheus_client import Counter

from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.ledger.public_types import Time, counted
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.spec import Backoff, RestartWindow
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.causes import Cause, describe
from holdfast.telemetry.reports.report import Decision, Report
from holdfast.telemetry.reports.reporter import Reporter

KEYS_MAX: Final = 1_000
"""Of so many keys the restarts are remembered, those that restarted last."""
RESTARTS_MAX: Final = 20
"""Of one key."""

_RESTARTS = Backoff(0.2, 30.0, jitter=0.2)
_PROBES = Backoff(0.5, 5.0, jitter=0.1)
_QUARANTINES = Backoff(120.0, 3600.0, jitter=0.1)


@dataclass(frozen=True, slots=True)
class KeyedLimits:
    """The limits of a keyed directory. The defaults suit accounts and tasks."""

    mailbox_max: int = 1000
    idle_s: float = 120.0
    active_max: int = 20_000
    loading_max: int = 16
    child_restarts: int = 5
    child_period_s: float = 60.0
    group_crashes: int = 20
    group_period_s: float = 10.0
    voids_in_row_max: int = 100
    backoff: Backoff = _RESTARTS
    probe_backoff: Backoff = _PROBES
    quarantine: Backoff = _QUARANTINES


class WriteGate(Protocol):
    """Whether actors can read and write now; without that no actor can load or change anything."""

    @property
    def is_open(self) -> bool: ...

    @property
    def reason(self) -> str: ...

    @property
    def retry_after_s(self) -> float: ...

    async def wait_open(self) -> None: ...


class KeyRestart(msgspec.Struct, frozen=True, kw_only=True):
    """One end of an incarnation that was no normal one, and what was decided."""

    at: Time
    """When it ended."""
    incarnation: int
    """The incarnation that ended."""
    reason_type: str
    """The type of the exception, or of what ended it."""
    reason: str
    """Why, in words."""
    location: str | None
    """`module:line` of the exception; null if it is not known."""
    last_message_type: str | None
    """The type of the message that it handled last; null if it handled none."""
    decision: Decision
    """What was decided."""
    delay_s: float | None
    """How long the backoff or quarantine lasts, in seconds; null without one."""


def _never(_key: str) -> bool:
    return False


@dataclass(eq=False)
class KeyedGroup:
    """The actors of one kind, apart from the keys themselves. It outlives the runs of its directory."""

    name: str
    """Its name in metrics and to operators."""
    factory: Callable[[str, Mailbox], JournaledActor]
    """Creates the actor of a key."""
    _: KW_ONLY
    gate: WriteGate
    probe: Callable[[], Awaitable[bool]]
    """Returns whether a pause may end, and may raise if not."""
    reporter: Reporter
    dead_letters: DeadLetters
    poison: Callable[[PoisonedMessage], None] | None = None
    """Called with each message that crashed its actor."""
    limits: KeyedLimits = KeyedLimits()
    rng: random.Random = field(default_factory=random.Random)

    path: str = field(init=False)
    """The path in the tree."""
    is_elsewhere: Callable[[str], bool] = field(default_factory=lambda: _never, init=False)
    """Returns whether another process serves a key."""
    nursery: trio.Nursery | None = field(default=None, init=False)
    """The tasks of the keys in the present run."""
    stopping: trio.Event = field(default_factory=trio.Event, init=False)
    active_count: int = field(default=0, init=False)
    """How many keys have a task."""
    emptied: trio.Event = field(default_factory=trio.Event, init=False)
    """Set when the last task has ended."""
    crowded: trio.Event = field(default_factory=trio.Event, init=False)
    """Set when more keys are active than may be."""
    restarts: OrderedDict[str, deque[KeyRestart]] = field(default_factory=OrderedDict, init=False)
    """By key, the newest first. They outlive the child, which is forgotten once it is idle."""
    more_crashes: int = field(default=0, init=False)
    """Crashes during a pause, which are not reported one by one."""
    operators_reason: str | None = field(default=None, init=False)
    """Why an operator paused the group; None if none did."""
    _crash_reason: str | None = field(default=None, init=False)
    _pause_over: trio.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path = self.name
        # A limiter, which also knows who has its tokens, costs each actor's start four times as much.
        self.loading = trio.Semaphore(self.limits.loading_max)
        self._active = metrics.ACTORS_ACTIVE.labels(self.name)
        self._crashes = RestartWindow(self.limits.group_crashes, self.limits.group_period_s)

    # --------------------------------------------------------------------------------------------- tasks of keys

    def task_started(self) -> None:
        """Count the task of a key."""
        self.active_count += 1
        self._active.set(self.active_count)
        if self.active_count > self.limits.active_max:
            self.crowded.set()

    def task_ended(self) -> None:
        """Count the end of a key's task."""
        self.active_count -= 1
        self._active.set(self.active_count)
        if not self.active_count:
            self.emptied.set()

    def remember(self, key: str, restart: KeyRestart) -> None:
        """Add to what is known of a key."""
        self.restarts.setdefault(key, deque(maxlen=RESTARTS_MAX)).appendleft(restart)
        self.restarts.move_to_end(key)
        if len(self.restarts) > KEYS_MAX:
            self.restarts.popitem(last=False)

    def count(self, event: str) -> None:
        """Count an event of an actor."""
        _events(self.name, event).inc()

    # ------------------------------------------------------------------------------------------------- the pause

    @property
    def is_paused(self) -> bool:
        """Whether asks are refused and no actor starts."""
        return self._pause_over is not None

    @property
    def pause_reason(self) -> str | None:
        """Why the group is paused; None if it is not."""
        return (self.operators_reason or self._crash_reason) if self.is_paused else None

    def pause(self, reason: str) -> None:
        """Refuse asks until :meth:`resume`, for an operator; actors that are active finish what they have.

        It lasts through restarts of the directory and successful probes.
        """
        if self._pause_over is None:
            self._pause_over = trio.Event()
        self.operators_reason = reason
        self.reporter.report(Report(kind="pause", path=self.path, reason=reason, decision="pause"))

    def resume(self, reason: str) -> None:
        """End a pause, whatever it began with, for an operator."""
        if self.is_paused:
            self.operators_reason = None
            self._crashes.clear()
            self.end_pause()
            self.reporter.report(Report(kind="resume", path=self.path, reason=reason))

    def end_pause(self) -> None:
        """End a pause, unless an operator began one."""
        if self._pause_over is not None and self.operators_reason is None:
            self._pause_over.set()
            self._pause_over = None

    async def wait_resumed(self) -> None:
        """Wait until the group is not paused."""
        while self._pause_over is not None:
            await self._pause_over.wait()

    def covers_crash(self) -> bool:
        """Count a key's crash. Returns whether the group's budget covers it."""
        return self._crashes.record(trio.current_time())

    def pause_after(self, cause: Cause) -> None:
        """Pause because many keys crash together, the last of them by ``cause``, until a probe succeeds.

        Has no effect if the run is over.
        """
        if self.nursery is not None:
            self._pause_over = trio.Event()
            self.more_crashes = 0
            self._crash_reason = cause.reason
            self.nursery.start_soon(self._probe_until_ok, self._pause_over)
            self._report_pause(cause, self._crashes.count(trio.current_time()))

    async def _probe_until_ok(self, over: trio.Event) -> None:
        tries = 0
        reported = set[str]()
        while True:
            tries += 1
            await trio.sleep(self.limits.probe_backoff.delay(tries, self.rng))
            try:
                if await self.probe():
                    break
            except Exception as exc:
                cause = describe(exc)
                if cause.reason_type not in reported:
                    # What keeps the group paused may last for hours.
                    reported.add(cause.reason_type)
                    self._report_pause(cause)
        if self._pause_over is over and self.operators_reason is None:
            self._crashes.clear()
            self.end_pause()
            more = self.more_crashes
            reason = f"{counted(more, 'more actor')} had crashed meanwhile" if more else None
            self.reporter.report(Report(kind="resume", path=self.path, reason=reason, count=more or None))

    def _report_pause(self, cause: Cause, crashes: int | None = None) -> None:
        """Report why the group is paused, at first with the number of crashes."""
        self.reporter.report(
            Report(
                kind="pause",
                path=self.path,
                restarts=crashes,
                budget=None if crashes is None else self.limits.group_crashes,
                decision="pause",
            ),
            cause,
        )


@functools.cache
def _events(group: str, event: str) -> Counter:
    return metrics.ACTOR_EVENTS.labels(group, event)
