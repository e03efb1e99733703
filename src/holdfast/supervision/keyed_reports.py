"""What a keyed directory tells: counts for the meters, dead letters, and reports for people."""

from __future__ import annotations

from typing import Literal

import trio

from holdfast import metrics
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.trace import trace_id
from holdfast.supervision.keyed_slots import KeyedLimits, Slot
from holdfast.supervision.reports import DeadLetters, DeadReason, Report, Reporter, describe


class KeyedReports:
    """The voice of one directory. ``path`` is where in the tree it lives."""

    def __init__(self, name: str, limits: KeyedLimits, reporter: Reporter, dead_letters: DeadLetters) -> None:
        self.path = name
        self._name = name
        self._limits = limits
        self._reporter = reporter
        self._dead_letters = dead_letters

    def count(self, event: str) -> None:
        """Count something that happened to an actor."""
        metrics.ACTOR_EVENTS.labels(self._name, event).inc()

    def awake(self, count: int) -> None:
        """Show how many actors are awake."""
        metrics.ACTORS_AWAKE.labels(self._name).set(count)

    def bury(self, reason: DeadReason, slot: Slot, envelope: Envelope) -> None:
        """Note a message that nobody will handle."""
        metrics.DEAD_LETTERS.labels(reason).inc()
        self._dead_letters.record(
            reason,
            path=self.path,
            key=slot.key,
            message_type=type(envelope.message).__name__,
            trace_id=envelope.trace_id,
        )

    def crash(
        self,
        slot: Slot,
        exc: Exception,
        decision: Literal["backoff", "quarantine", "pause"],
        delay_s: float | None = None,
    ) -> None:
        """Report who died, why, what it held, and what was decided."""
        cause = describe(exc)
        last = slot.actor.last_message if slot.actor is not None else None
        oldest = slot.mailbox.oldest_sent_at()
        now = trio.current_time()
        self._reporter.report(
            Report(
                kind="quarantine" if decision == "quarantine" else "crash",
                at=self._reporter.now(),
                path=self.path,
                key=slot.key,
                incarnation=slot.incarnation,
                context="child_terminated",
                reason_type=cause.reason_type,
                reason=cause.reason,
                location=cause.location,
                last_message_type=last.__name__ if last is not None else None,
                mailbox_depth=len(slot.mailbox),
                oldest_age_s=round(now - oldest, 3) if oldest is not None else None,
                restarts=slot.window.count(now) if slot.window is not None else None,
                budget=self._limits.child_restarts,
                decision=decision,
                delay_s=delay_s,
                trace_id=trace_id.get(),
            )
        )

    def pause(self, exc: Exception, crashes: int | None = None) -> None:
        """Report that the whole group waits, and for what."""
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
        """Report that the group goes on."""
        self._reporter.report(Report(kind="progress", at=self._reporter.now(), path=self.path, decision="restart"))
