"""The addresses of actors: pykka's references, which stay valid across restart and passivation."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NoReturn, Protocol, TypeVar

import pykka

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.refusals import Refusal

R = TypeVar("R")

ASK_DEADLINE_S = 10.0


class StoppedFlag:
    """The part of ``threading.Event`` that pykka uses of ``actor_stopped``, at a sixteenth of its size."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the actor has stopped."""
        return self._is_set

    def set(self) -> None:
        """Mark the actor as stopped."""
        self._is_set = True


class TrioActorRef(pykka.ActorRef[pykka.Actor]):
    """The address of a supervised actor. It names a mailbox, not an incarnation, so it is always alive.

    ``stop`` and ``proxy`` raise RuntimeError: supervisors stop actors, and a proxy belongs to one incarnation.
    """

    actor_class = pykka.Actor
    actor_stopped = StoppedFlag()  # type: ignore[assignment]  # the same two methods

    def __init__(self, urn: str) -> None:
        # Not super().__init__(): it takes an incarnation.
        self.actor_urn = urn

    def ask(  # type: ignore[override]  # awaited; pykka's blocks
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S
    ) -> Awaitable[R | Refusal]:
        """Send a command; await the returned object for the reply, which is sent once the change is durable.

        Raises, of :mod:`holdfast.actors.runtime.faults`, ``Overloaded``, ``Unavailable`` or ``Deadlock`` if the
        command was not accepted, and ``OutcomeUnknown`` if the deadline passed first.
        """
        raise NotImplementedError(f"{self} sends no replies")

    def tell(self, message: Command[object]) -> None:
        """Send a command without waiting for a reply. A full mailbox drops and counts it."""
        raise NotImplementedError

    def stop(self, *_: object, **__: object) -> NoReturn:
        """Refuse: only the supervisor stops an actor."""
        raise RuntimeError(f"{self} is stopped by its supervisor")

    def proxy(self) -> NoReturn:
        """Refuse: a proxy belongs to one incarnation."""
        raise RuntimeError(f"{self} has no proxy; send it messages")


class Directory(Protocol):
    """The actors of one kind, by key."""

    def ref(self, key: str) -> TrioActorRef:
        """Return an actor's address. The actor is started by its first message."""
        ...
