"""The metrics, reports, dead letters and newest restarts of a keyed directory."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal

import msgspec
import trio
from prometheus_client import Counter

from holdfast.actors.runtime.faults import Crashed
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.workers.poison_writer import PoisonedMessage, message_crashed_on
from holdfast.ledger.clock import format_time
from holdfast.ledger.public_types import Time
from holdfast.supervision.dead_letters import NOT_HANDLED, DeadLetters, DeadReason
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.causes import Cause, describe
from holdfast.telemetry.reports.report import Decision, Report, level_of_failure
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.traces import trace_id

KEYS_MAX = 1_000
RESTARTS_MAX = 20
"""Of one key."""


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


class KeyedReports:
    """``path`` is the directory's path in the tree, ``name`` its name in metrics."""

    def __init__(
        self,
        name: str,
        limits: KeyedLimits,
        reporter: Reporter,
        dead_letters: DeadLetters,
        poison: Callable[[PoisonedMessage], None] | None,
    ) -> None:
        self.path = name
        self.restarts: OrderedDict[str, deque[KeyRestart]] = OrderedDict()
        """Of the keys that restarted last. They outlive the child, which is forgotten once it is idle."""
        self._name = name
        self._active = metrics.ACTORS_ACTIVE.labels(name)
        self._limits = limits
        self._reporter = reporter
        self._dead_letters = dead_letters
        self._poison = poison

    def count(self, event: str) -> None:
        """Count an event of an actor."""
        _events(self._name, event).inc()

    def active(self, count: int) -> None:
        """Set the gauge of active actors."""
        self._active.set(count)

    def dead_letter(
        self, child: KeyedChild, reason: DeadReason, envelope: Envelope, *, is_reported: bool = True
    ) -> None:
        """Record a message that no actor will handle, or whose sender no longer waits."""
        name = type(envelope.message).__name__
        metrics.DEAD_LETTERS.labels(reason).inc()
        self._dead_letters.record(
            reason, path=self.path, key=child.key, message_type=name, trace_id=envelope.trace_id
        )
        if reason == "orphan_reply" or not is_reported:
            # The message was handled: a client that hangs up is counted, but is nothing to look into.
            return
        self._reporter.report(
            Report(
                kind="dead_letter",
                path=self.path,
                key=child.key,
                reason=f"{name}, {NOT_HANDLED[reason]}",
                mailbox_depth=len(child.mailbox),
                trace_id=envelope.trace_id,
            )
        )

    def crash(
        self,
        child: KeyedChild,
        exc: Exception,
        decision: Literal["backoff", "quarantine", "pause"],
        delay_s: float | None = None,
    ) -> Cause:
        """Report a crash, the state of its mailbox, and the decision. Returns what the crash is."""
        cause = describe(exc)
        now = trio.current_time()
        oldest = child.mailbox.oldest_sent_at()
        failures = child.window.count(now) if child.window is not None else None
        self._remember(child, cause, decision, delay_s)
        self._reporter.report(
            Report(
                kind="quarantine" if decision == "quarantine" else "crash",
                level=None if decision == "quarantine" else level_of_failure(failures or 0),
                path=self.path,
                key=child.key,
                incarnation=child.incarnation,
                context="child_terminated",
                last_message_type=_last_message(child),
                mailbox_depth=len(child.mailbox),
                oldest_age_s=round(now - oldest, 3) if oldest is not None else None,
                restarts=failures,
                budget=self._limits.child_restarts,
                decision=decision,
                delay_s=delay_s,
                trace_id=trace_id(),
            ),
            exc,
            cause,
        )
        return cause

    def ended(self, child: KeyedChild, exc: Exception) -> None:
        """Record that an operator ended an incarnation; the next one is a restart."""
        self.count("restarted")
        self._remember(child, describe(exc), "restart", None)
        child.crashed = True

    def _remember(self, child: KeyedChild, cause: Cause, decision: Decision, delay_s: float | None) -> None:
        restart = KeyRestart(
            at=format_time(self._reporter.now()),
            incarnation=child.incarnation,
            reason_type=cause.reason_type,
            reason=cause.reason,
            location=cause.location,
            last_message_type=_last_message(child),
            decision=decision,
            delay_s=delay_s,
        )
        self.restarts.setdefault(child.key, deque(maxlen=RESTARTS_MAX)).appendleft(restart)
        self.restarts.move_to_end(child.key)
        if len(self.restarts) > KEYS_MAX:
            self.restarts.popitem(last=False)

    def crashed(self, child: KeyedChild, exc: Exception) -> None:
        """Count a crash; the next incarnation is then a restart. The message that caused it is kept."""
        self.count("crashed")
        child.crashed = True
        if self._poison is not None and child.actor is not None:
            message = message_crashed_on(
                self.path,
                self._name,
                child.key,
                child.actor,
                describe(exc.__cause__ if isinstance(exc, Crashed) and exc.__cause__ else exc),
                incarnation=child.incarnation,
                at=self._reporter.now(),
            )
            if message is not None:
                self._poison(message)

    def activated(self, child: KeyedChild) -> None:
        """Count an incarnation that has loaded its rows, and report it if the one before had crashed."""
        self.count("activated")
        if child.crashed:
            child.crashed = False
            self._reporter.report(
                Report(
                    kind="restart",
                    path=self.path,
                    key=child.key,
                    incarnation=child.incarnation,
                    trace_id=trace_id(),
                )
            )

    def released(self, child: KeyedChild, reason: str) -> None:
        """Report that a key's quarantine is over, and why."""
        self._reporter.report(Report(kind="release", path=self.path, key=child.key, reason=reason))

    def paused(self, why: Exception | str, crashes: int | None = None) -> None:
        """Report that the group pauses, and why: an exception, with the crashes so far, or an operator's reason."""
        cause = describe(why) if isinstance(why, Exception) else None
        self._reporter.report(
            Report(
                kind="pause",
                path=self.path,
                reason_type=cause.reason_type if cause else None,
                reason=cause.reason if cause else str(why),
                restarts=crashes,
                budget=None if crashes is None else self._limits.group_crashes,
                decision="pause",
            )
        )

    def resumed(self, reason: str | None = None, *, more_crashes: int = 0) -> None:
        """Report that the group has resumed, and how many of its actors crashed while it was paused."""
        if more_crashes:
            reason = f"{more_crashes} more actors had crashed meanwhile"
        self._reporter.report(Report(kind="resume", path=self.path, reason=reason, count=more_crashes or None))


def _last_message(child: KeyedChild) -> str | None:
    last = child.actor.last_message if child.actor is not None else None
    return last.__name__ if last is not None else None


@functools.cache
def _events(group: str, event: str) -> Counter:
    return metrics.ACTOR_EVENTS.labels(group, event)
