"""Who waits for whom: an ask that would close a ring is refused, for nobody in the ring could ever answer it."""

from __future__ import annotations

from contextvars import ContextVar

from holdfast.actors.runtime.faults import Deadlock
from holdfast.supervision.keyed_slots import Slot

asking_from: ContextVar[Slot | None] = ContextVar("asking_from", default=None)
"""The slot whose actor is in its turn: who would wait if it asked. None where the front end or a worker asks."""


def refuse_cycle(asker: Slot, target: Slot) -> None:
    """Raise :class:`Deadlock` where ``target`` waits, directly or through others, for ``asker``."""
    chain = [asker.key, target.key]
    step: Slot | None = target
    while step is not None:
        if step is asker:
            raise Deadlock(" -> ".join(chain))
        step = step.waiting_on
        if step is not None:
            chain.append(step.key)
