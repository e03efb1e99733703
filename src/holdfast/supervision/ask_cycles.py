"""Detection of ask cycles: an ask whose target waits, directly or not, for its sender is refused."""

from __future__ import annotations

from contextvars import ContextVar

from holdfast.actors.runtime.faults import Deadlock
from holdfast.supervision.keyed_child import KeyedChild

asking_from: ContextVar[KeyedChild | None] = ContextVar("asking_from", default=None)
"""The child whose actor handles a message now. None in HTTP handlers and workers."""


def refuse_cycle(asker: KeyedChild, target: KeyedChild) -> None:
    """Raise :class:`Deadlock` if ``target`` waits, directly or through others, for ``asker``."""
    chain = [asker.key, target.key]
    step: KeyedChild | None = target
    while step is not None:
        if step is asker:
            raise Deadlock(" -> ".join(chain))
        step = step.waiting_on
        if step is not None:
            chain.append(step.key)
