"""Quarantine: keys whose incarnations keep crashing are set aside for a while, longer each time.

A key's first message after its time is a trial. If the key crashes again within the period of its restart budget,
it goes back at once and for longer; if it does not, or ends in order, its budget starts over.
"""

from __future__ import annotations

import random

import trio

from holdfast.actors.runtime.faults import Unavailable
from holdfast.supervision.keyed_reports import KeyedReports
from holdfast.supervision.keyed_slots import KeyedLimits, Slot


class Quarantine:
    """What one directory does with the slots it sets aside. ``name`` is the directory's."""

    def __init__(self, name: str, limits: KeyedLimits, notes: KeyedReports, rng: random.Random) -> None:
        self._name = name
        self._limits = limits
        self._notes = notes
        self._rng = rng

    def put(self, slot: Slot, exc: Exception) -> None:
        """Set a key aside: what waits for it is refused, and so is what comes until its time is over."""
        slot.state = "quarantined"
        slot.quarantines += 1
        delay_s = self._limits.quarantine.delay(slot.quarantines, self._rng)
        slot.quarantined_until = trio.current_time() + delay_s
        self._notes.count("quarantined")
        self._notes.crash(slot, exc, "quarantine", delay_s)
        self.clear_mailbox(slot)

    def clear_mailbox(self, slot: Slot) -> None:
        """Refuse all that waits."""
        for envelope in slot.mailbox.take_all():
            if not envelope.fail(self.refusal(slot)):
                self._notes.bury("dead", slot, envelope)

    def refusal(self, slot: Slot) -> Unavailable:
        """What an asker is told; trying again makes sense when the key's time is over."""
        left_s = max(slot.quarantined_until - trio.current_time(), 1.0)
        return Unavailable(f"{self._name} {slot.key} is quarantined", retry_after_s=left_s)

    def begin_trial(self, slot: Slot) -> bool:
        """Let a quarantined key whose time is over read its mail again; whether it is over."""
        if trio.current_time() < slot.quarantined_until:
            return False
        self._notes.count("tried")
        slot.trial_at = trio.current_time()
        slot.state = "asleep"
        return True

    def is_on_trial(self, slot: Slot) -> bool:
        """Whether a crash now is a failed trial."""
        if slot.trial_at is not None and trio.current_time() - slot.trial_at > self._limits.child_period_s:
            self.recovered(slot)
        return slot.trial_at is not None

    def recovered(self, slot: Slot) -> None:
        """A key that was on trial has worked: its budget starts over."""
        if slot.trial_at is not None:
            slot.trial_at, slot.window, slot.quarantines = None, None, 0

    def release(self, slot: Slot) -> None:
        """An operator lets a key go before its time."""
        self._notes.count("released")
        slot.trial_at, slot.window, slot.quarantines = None, None, 0
        slot.state = "asleep"

    def is_long_over(self, slot: Slot) -> bool:
        """Whether nobody has asked for a quarantined key for so long that it may be forgotten."""
        return trio.current_time() > slot.quarantined_until + self._limits.quarantine.max_s
