"""Quarantine: a key whose incarnations keep crashing accepts no messages for a while, longer each time.

The first message after that time is a trial. If the key crashes again within the period of its restart budget, it
returns to quarantine at once and for longer. If it does not, or ends normally, its budget starts over.
"""

from __future__ import annotations

import random

import trio

from holdfast.actors.runtime.faults import Quarantined
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.supervision.keyed_child import KeyedChild, KeyedLimits
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.telemetry.reports.causes import describe


class Quarantine:
    """The quarantine of one directory. ``name`` is the directory's."""

    def __init__(self, name: str, limits: KeyedLimits, reports: KeyedReports, rng: random.Random) -> None:
        self._name = name
        self._limits = limits
        self._reports = reports
        self._rng = rng

    def put(self, child: KeyedChild, exc: Exception, *, for_s: float | None = None) -> None:
        """Quarantine a key: waiting messages and new ones are refused until its time is over.

        A child whose actor has not begun begins none.
        """
        child.state = "quarantined"
        child.quarantines += 1
        delay_s = self._limits.quarantine.delay(child.quarantines, self._rng) if for_s is None else for_s
        child.quarantined_until = trio.current_time() + delay_s
        child.quarantine_reason = describe(exc).reason
        child.refused_types = frozenset()
        self._reports.count("quarantined")
        self._reports.crash(child, exc, "quarantine", delay_s)
        self.clear_mailbox(child)
        if child.actor is None and child.scope is not None:
            child.scope.cancel(reason="its key was quarantined")

    def clear_mailbox(self, child: KeyedChild) -> None:
        """Refuse all waiting messages."""
        for envelope in child.mailbox.take_all():
            if not envelope.fail(self.refusal(child)):
                self.dead_letter(child, envelope)

    def dead_letter(self, child: KeyedChild, envelope: Envelope) -> None:
        """Record a message whose sender does not wait; the first of its type in a quarantine is reported."""
        name = type(envelope.message).__name__
        self._reports.dead_letter(child, "dead", envelope, is_reported=name not in child.refused_types)
        child.refused_types |= {name}

    def refusal(self, child: KeyedChild) -> Quarantined:
        """Return the fault for an ask; a retry may succeed when the key's time is over."""
        left_s = max(child.quarantined_until - trio.current_time(), 1.0)
        return Quarantined(f"{self._name} {child.key} is quarantined", retry_after_s=left_s)

    def begin_trial(self, child: KeyedChild) -> bool:
        """Let a quarantined key handle messages again if its time is over. Returns whether it is."""
        if trio.current_time() < child.quarantined_until:
            return False
        self._reports.count("tried")
        child.trial_at = trio.current_time()
        child.state = "passivated"
        return True

    def is_on_trial(self, child: KeyedChild) -> bool:
        """Whether a crash now fails a trial."""
        if child.trial_at is not None and trio.current_time() - child.trial_at > self._limits.child_period_s:
            self.recovered(child)
        return child.trial_at is not None

    def recovered(self, child: KeyedChild) -> None:
        """Record that a key has worked: after a trial its budget starts over."""
        if child.trial_at is not None:
            child.trial_at, child.window, child.quarantines = None, None, 0
            self._reports.released(child, "its trial succeeded")

    def release(self, child: KeyedChild, reason: str) -> None:
        """End a key's quarantine before its time, for an operator."""
        self._reports.count("released")
        self._reports.released(child, f"by an operator: {reason}")
        child.trial_at, child.window, child.quarantines = None, None, 0
        child.state = "passivated"

    def is_long_over(self, child: KeyedChild) -> bool:
        """Whether a quarantine ended so long ago, without a message since, that the key may be forgotten."""
        return trio.current_time() > child.quarantined_until + self._limits.quarantine.max_s
