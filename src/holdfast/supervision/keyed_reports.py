"""The metrics, dead letters and reports of a keyed directory."""

from __future__ import annotations

from typing import Literal

import trio

from holdfast import metrics
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.trace import trace_id
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits
from holdfast.supervision.reports import DeadLetters, DeadReason, Report, Reporter, describe


class KeyedReports:
    """``path`` is the directory's path in the tree."""

    def __init__(self, name: str, limits: KeyedLimits, reporter: Reporter, dead_letters: DeadLetters) -> None:
        self.path = name
        self._name = name
        self._limits = limits
        self._reporter = reporter
        self._dead_letters = dead_letters

    def count(self, event: str) -> None:
        """Count an event of an actor."""
        metrics.ACTOR_EVENTS.labels(self._name, event).inc()

    def awake(self, count: int) -> None:
        """Set the gauge of awake actors."""
        metrics.ACTORS_AWAKE.labels(self._name).set(count)

    def dead_letter(self, reason: DeadReason, child: KeyedChild, envelope: Envelope) -> None:
        """Record a message that no actor will handle."""
        metrics.DEAD_LETTERS.labels(reason).inc()
        self._dead_letters.record(
            reason,
            path=self.path,
            key=child.key,
            message_type=type(envelope.message).__name__,
            trace_id=envelope.trace_id,
        )

    def crash(
        self,
        child: KeyedChild,
        exc: Exception,
        decision: Literal["backoff", "quarantine", "pause"],
        delay_s: float | None = None,
    ) -> None:
        """Report a crash, the state of its mailbox, and the decision."""
        cause = describe(exc)
        last = child.actor.last_message if child.actor is not None else None
        oldest = child.mailbox.oldest_sent_at()
        now = trio.current_time()
        self._reporter.report(
            Report(
                kind="quarantine" if decision == "quarantine" else "crash",
                at=self._reporter.now(),
                path=self.path,
                key=child.key,
                incarnation=child.incarnation,
                context="child_terminated",
                reason_type=cause.reason_type,
                reason=cause.reason,
                location=cause.location,
                last_message_type=last.__name__ if last is not None else None,
                mailbox_depth=len(child.mailbox),
                oldest_age_s=round(now - oldest, 3) if oldest is not None else None,
                restarts=child.window.count(now) if child.window is not None else None,
                budget=self._limits.child_restarts,
                decision=decision,
                delay_s=delay_s,
                trace_id=trace_id.get(),
            )
        )

    def pause(self, exc: Exception, crashes: int | None = None) -> None:
        """Report that the group pauses, and why."""
        cause = describe(exc)
        self._reporter.report(
            Report(
                kind="pause",
                at=self._reporter.now(),
                path=self.path,
                reason_type=cause.reason_type,
                reason=cause.reason,
                restarts=crashes,
                budget=self._limits.group_crashes,
                decision="pause",
            )
        )

    def resumed(self) -> None:
        """Report that the group has resumed."""
        self._reporter.report(Report(kind="progress", at=self._reporter.now(), path=self.path, decision="restart"))
