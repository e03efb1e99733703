"""Conditions that last: an outage, a crash loop, refused callbacks, lockouts.

Each is reported when it begins and when it ends. In between the occurrences are counted, and the count is reported
after a minute and then ever more rarely, also without a new one: it is a state, and no repetition. So a condition
costs a few lines, however many requests it concerns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec
import trio

from holdfast.ledger.public_types import noun
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.report import Report, ReportKind
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.scrubbing import scrub
from holdfast.telemetry.traces import trace_id

CHECK_S: Final = 1.0
FIRST_COUNT_S: Final = 60.0
"""A condition that lasts is reported again after this time, then each time after twice as long."""
COUNT_PAUSE_MAX_S: Final = 3600.0
SUBJECTS_MAX: Final = 50
"""How many subjects of a condition have a report of their own; what concerns others counts as :data:`OTHERS`."""
OTHERS: Final = "others"
AFFECTED_MAX: Final = 1_000
"""How many of the accounts and events that one condition concerns are counted as different ones."""

STATES: Final = frozenset({"away", "slow", "down", "silent"})
"""The states that a reason may begin with; the change from one to another is reported too."""
CHANGE_PAUSE_S: Final = 10.0
"""How long a condition must have been reported before a change of its state is; at first they alternate."""

TakeOutcome: TypeAlias = Callable[[str | None], None]
"""Takes the outcome of a call: the reason of a failure, or None for a success."""


def ignore_outcome(_reason: str | None) -> None:
    """Ignore the outcome of a call."""


class Condition(NamedTuple):
    """A kind of condition. ``begun`` and ``over`` are its beginning and its end in words, ``name`` is its label.

    ``path`` is the part of the tree that notices it; without one, its subject is the path. It begins with the
    failure number ``failures_min`` in a row. It ends with a success, or after ``quiet_s`` without a failure, which
    is ``over``, too, unless ``quiet`` says it in other words. One that begins again within ``steady_s`` after its
    end ends only when no failure has followed a success for as long.
    """

    name: str
    kind: ReportKind
    path: str
    begun: str
    over: str
    failures_min: int = 1
    quiet_s: float | None = None
    quiet: str | None = None
    steady_s: float = 0.0


_HTTP: Final = "holdfast/http"
_WATCH: Final = "holdfast/workers/provider-watch"
_HOSTING: Final = "holdfast/workers/hosting"
_OUTBOX: Final = "holdfast/workers/outbox"
_STORED: Final = "results are stored and read"
DATABASE: Final = Condition(
    "database", "outage", "holdfast/database", "the database is", "the database answers", steady_s=10
)
"""On a full disk reads succeed, and writes do not."""
PROVIDER: Final = Condition("provider", "outage", _WATCH, "the provider is", "the provider is up")
CARD: Final = Condition("card", "outage", _HTTP, "the card provider fails", "the card provider answers")
TOP_UPS: Final = Condition(
    "top-ups",
    "outage",
    "holdfast/workers/top-ups",
    "it is not known whether a saved card was charged",
    "it is known whether the saved card was charged",
    quiet_s=12 * 3600,
)
"""Each order is checked again within six hours."""
MAIL: Final = Condition("mail", "outage", _HTTP, "mail is not sent", "mail is sent")
STORAGE: Final = Condition("storage", "outage", _HOSTING, "results cannot be stored or read", _STORED)
WEBHOOKS: Final = Condition(
    "webhooks",
    "outage",
    _OUTBOX,
    "webhooks are not delivered",
    "webhooks are delivered",
    failures_min=3,
    quiet_s=3600,
    quiet="no delivery has failed for an hour",
)
CALLBACKS: Final = Condition(
    "callbacks", "refusal", _HTTP, "callbacks are refused", "no callback was refused for a minute", quiet_s=60
)
UNAVAILABLE: Final = Condition(
    "unavailable", "outage", _HTTP, "requests are answered 503", "no request is answered 503 any more", quiet_s=10
)
_UNLOCKED: Final = "no sign-in was refused for ten minutes"
LOCKOUTS: Final = Condition("lockouts", "lockout", "holdfast/sign-in", "sign-in is locked", _UNLOCKED, quiet_s=600)
_STEADY: Final = "it has not crashed for ten minutes"
CRASH_LOOP: Final = Condition(
    "crash-loops", "crash_loop", "", "it keeps crashing", _STEADY, failures_min=5, quiet_s=600
)
"""A child that fails again and again, however slowly: its restarts may cost no supervisor its budget."""


class LastingCondition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that has begun and not ended."""

    name: str
    """Its label."""
    subject: str
    """What it concerns; empty if there is only one."""
    text: str
    """What it is, in words."""
    lasts_s: float
    """How long ago its first failure was, in seconds."""
    count: int
    """How many failures make it up."""


@dataclass(slots=True)
class _Lasting:
    """A condition of one subject: failures in a row, and once it has begun, since when (the clock's seconds)."""

    condition: Condition
    subject: str
    provider: str | None
    since_s: float
    accounts: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    count: int = 0
    last_s: float = 0.0
    reason: str = ""
    has_begun: bool = False
    has_recurred: bool = False
    succeeded_s: float | None = None
    reported_s: float = 0.0
    pause_s: float = FIRST_COUNT_S

    @property
    def state(self) -> str | None:
        """The state that its reason begins with, if any."""
        state = self.reason.partition(":")[0]
        return state if state in STATES else None

    @property
    def text(self) -> str:
        """What it is in words."""
        affected = ""
        if self.events:
            affected = f"; {_counted(self.accounts, 'account')} and {_counted(self.events, 'event')}"
        return f"{self.condition.begun}{' ' if self.state else ': '}{self.reason.rstrip('.')}{affected}"


def _counted(found: set[str], what: str) -> str:
    more = " or more" if len(found) == AFFECTED_MAX else ""
    return f"{len(found)}{more} {noun(len(found), what)}"


def _add(found: set[str], name: str | None) -> None:
    if name is not None and len(found) < AFFECTED_MAX:
        found.add(name)


class Conditions:
    """The conditions of one process. ``clock`` counts seconds. For trio's thread only."""

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = trio.current_time) -> None:
        self._reporter = reporter
        self._clock = clock
        self._lasting: dict[Condition, dict[str, _Lasting]] = {}
        self._ended_s: dict[Condition, float] = {}

    def outcomes_of(self, condition: Condition, subject: str = "", *, provider: str | None = None) -> TakeOutcome:
        """Return the function that takes the outcomes of calls for one subject."""

        def take(reason: str | None) -> None:
            if reason is None:
                self.ended(condition, subject)
            else:
                self.failed(condition, subject, reason, provider=provider)

        return take

    def failed(
        self,
        condition: Condition,
        subject: str,
        reason: str,
        *,
        provider: str | None = None,
        account_id: str | None = None,
        event_id: str | None = None,
    ) -> None:
        """Count one failure; the first of them, or the number ``failures_min``, begins the condition.

        It says how many accounts and events it concerns, where ``event_id`` is given.
        """
        now_s = self._clock()
        subjects = self._lasting.setdefault(condition, {})
        if subject not in subjects and len(subjects) >= SUBJECTS_MAX:
            subject, provider = OTHERS, None
        found = subjects.get(subject)
        if found is None:
            found = subjects[subject] = _Lasting(condition, subject, provider, now_s)
            found.has_recurred = now_s - self._ended_s.get(condition, -math.inf) < condition.steady_s
        state_before, found.reason = found.state, reason
        found.count, found.last_s, found.succeeded_s = found.count + 1, now_s, None
        _add(found.accounts, account_id)
        _add(found.events, event_id)
        if found.has_begun:
            is_reported = found.state != state_before and now_s - found.reported_s >= CHANGE_PAUSE_S
        else:
            is_reported = found.count >= condition.failures_min
        if is_reported:
            found.has_begun = True
            self._report(found, found.text)

    def ended(self, condition: Condition, subject: str = "") -> None:
        """End the condition of a subject, if it has begun."""
        subjects = self._lasting.get(condition, {})
        found = subjects.get(subject)
        if found is not None and not found.has_recurred:
            self._end(subjects.pop(subject), self._clock(), condition.over)
        elif found is not None and found.succeeded_s is None:
            found.succeeded_s = self._clock()

    def forget(self, condition: Condition, subject: str) -> None:
        """End the condition of a subject that is gone, without a report."""
        self._lasting.get(condition, {}).pop(subject, None)

    def lasting(self) -> list[LastingCondition]:
        """Return the conditions that have begun and not ended."""
        now_s = self._clock()
        return [
            LastingCondition(
                name=condition.name,
                subject=subject,
                text=scrub(found.text),
                lasts_s=round(now_s - found.since_s, 1),
                count=found.count,
            )
            for condition, subjects in self._lasting.items()
            for subject, found in subjects.items()
            if found.has_begun
        ]

    def check(self) -> None:
        """Report the counts that are due, and end conditions without failures for their time."""
        now_s = self._clock()
        for condition, subjects in self._lasting.items():
            quiet_s = condition.quiet_s or math.inf
            for found in list(subjects.values()):
                since_last_s = now_s - found.last_s
                if found.succeeded_s is not None and now_s - found.succeeded_s >= condition.steady_s:
                    self._end(subjects.pop(found.subject), found.succeeded_s, condition.over)
                elif since_last_s >= quiet_s:
                    self._end(subjects.pop(found.subject), found.last_s, condition.quiet or condition.over)
                # One that ends by itself, and is about to, is not reported again.
                elif found.has_begun and now_s - found.reported_s >= found.pause_s and since_last_s < quiet_s / 2:
                    found.pause_s = min(found.pause_s * 2, COUNT_PAUSE_MAX_S)
                    self._report(found, found.text, lasted_s=now_s - found.since_s)
            lasting = sum(found.has_begun for found in subjects.values())
            metrics.CONDITIONS.labels(condition.name).set(lasting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check every second, at the moment at which workers look, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep_until((trio.current_time() // CHECK_S + 1) * CHECK_S)
            self.check()

    def _end(self, found: _Lasting, until_s: float, reason: str) -> None:
        if found.has_begun:
            self._ended_s[found.condition] = self._clock()
            self._report(found, reason, lasted_s=until_s - found.since_s, kind="recovery")

    def _report(
        self, found: _Lasting, reason: str, *, lasted_s: float | None = None, kind: ReportKind | None = None
    ) -> None:
        condition, subject = found.condition, found.subject
        found.reported_s = self._clock()
        self._reporter.report(
            Report(
                kind=kind or condition.kind,
                path=condition.path or subject,
                key=subject if found.provider is None and condition.path and subject else None,
                provider=found.provider,
                account_id=next(iter(found.accounts)) if len(found.accounts) == 1 else None,
                reason=reason,
                count=None if lasted_s is None else found.count,
                duration_s=None if lasted_s is None else round(lasted_s, 1),
                trace_id=trace_id() if lasted_s is None else None,
            )
        )
