"""How anyone reaches a virtual actor: by key, through a directory that wakes it when needed."""

from __future__ import annotations

from typing import Protocol, TypeVar

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.refusals import Refusal

R = TypeVar("R")


class Directory(Protocol):
    """Addresses one kind of virtual actor by key; which process or incarnation answers is nobody's concern."""

    async def ask(self, key: str, command: Command[R], *, deadline_s: float = 10.0) -> R | Refusal:
        """Send a command and wait for its durable reply.

        Raises, of :mod:`holdfast.actors.runtime.faults`, ``Overloaded`` or ``Unavailable`` if the command was not
        accepted, and ``OutcomeUnknown`` if the deadline passed first.
        """
        ...

    def tell(self, key: str, command: Command[R]) -> None:
        """Send a command nobody waits for. A full mailbox drops it with a dead letter; the row will tell again."""
        ...
