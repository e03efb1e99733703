"""The addresses of actors: pykka's references, which stay valid across restart and passivation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, Self, TypeAlias, TypeVar

import pykka
import structlog
import trio

from holdfast.actors.runtime.faults import Quarantined, Unavailable
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, MailboxFull
from holdfast.actors.runtime.messages import Command
from holdfast.ledger.refusals import Refusal
from holdfast.telemetry import metrics
from holdfast.telemetry.traces import traceparent

log = structlog.get_logger(__name__)

R = TypeVar("R")
T = TypeVar("T")

WORKER_MAILBOX_MAX = 10_000
ASK_DEADLINE_S = 10.0
ACCEPT_AGAIN_S = 0.2
"""How often an ask that waits is offered again."""

WhileDown: TypeAlias = Literal["fail", "queue", "wait"]
"""What an ask does while its actor cannot handle it.

fail: it fails at once, with the time after which to retry. queue: it waits in the mailbox of an actor that is about
to be restarted, and fails while the whole group is paused or the database is away. wait: it waits through these as
well. A quarantined actor's asks always fail at once, and the deadline holds for all.
"""


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


class AskRef(Protocol):
    """An address that replies."""

    def ask(
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S, while_down: WhileDown = "queue"
    ) -> Awaitable[R | Refusal]:
        """Send a command; await the returned object for the reply, which is sent once the change is durable.

        Raises, of :mod:`holdfast.actors.runtime.faults`, ``Overloaded``, ``Unavailable`` or ``Deadlock`` if the
        command was not accepted; ``OutcomeUnknown`` if the reply was lost or the deadline passed first; ``Crashed``
        or ``StaleFence`` if handling it failed, and nothing of it was written.
        """
        ...


class TellRef(Protocol):
    """An address that takes messages without a reply."""

    def tell(self, message: Command[object]) -> None:
        """Send a command without waiting for a reply. One that is not accepted is counted as a dead letter."""
        ...


class ActorRef(AskRef, TellRef, Protocol):
    """An address that does both."""


def _refused(self: object, *_: object, **__: object) -> NoReturn:
    raise RuntimeError(f"{self} has no such call; a supervisor stops it, and a proxy belongs to one incarnation")


class TrioActorRef(pykka.ActorRef[pykka.Actor]):
    """The address of a supervised actor. It names a mailbox, not an incarnation, so it is always alive.

    A subclass is an :class:`AskRef`, a :class:`TellRef` or both. What it does not define is refused.
    """

    actor_class = pykka.Actor
    actor_stopped = StoppedFlag()  # type: ignore[assignment]  # the same two methods

    if not TYPE_CHECKING:
        # Not for the type checker, which would take a call that is refused for one that replies.
        ask = tell = stop = proxy = _refused

    def __init__(self, urn: str) -> None:
        # Not super().__init__(): it takes an incarnation.
        self.actor_urn = urn


class KeyedActors(Protocol):
    """Actors that are asked by key: of this process, or of all members."""

    name: str

    def ask(
        self, key: str, message: Command[R], deadline_s: float, while_down: WhileDown
    ) -> Awaitable[R | Refusal]:
        """Ask the actor of a key. Raises as :meth:`AskRef.ask` does."""
        ...

    def tell(self, key: str, message: Command[object]) -> None:
        """Tell the actor of a key."""
        ...


class KeyedRef(TrioActorRef):
    """The address of one virtual actor, by its directory and key."""

    def __init__(self, directory: KeyedActors, key: str) -> None:
        self._directory = directory
        self._key = key

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # computed: most addresses are used once
        """The directory and the key."""
        return f"urn:holdfast:{self._directory.name}:{self._key}"

    def ask(  # type: ignore[override]  # as in AskRef
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S, while_down: WhileDown = "queue"
    ) -> Awaitable[R | Refusal]:
        """Send a command; await the returned object for its reply."""
        return self._directory.ask(self._key, message, deadline_s, while_down)

    def tell(self, message: Command[object]) -> None:
        """Send a command without waiting for a reply."""
        self._directory.tell(self._key, message)


class WorkerRef(TrioActorRef):
    """The address of a worker, and the group of one actor that other members may send messages, but not asks.

    Messages sent while it restarts wait for the next incarnation. A full mailbox drops a message: its work is also
    in the database's rows and is found there later.
    """

    actor_inbox: Mailbox
    is_ready = True

    def __init__(self, name: str, *, mailbox_max: int = WORKER_MAILBOX_MAX) -> None:
        super().__init__(f"urn:holdfast:workers:{name}")
        self.name = name
        self.on_full: Callable[[Envelope], None] | None = None
        """Called with a message that the full mailbox dropped."""
        self.actor_inbox = Mailbox(mailbox_max)

    def ref(self, key: str) -> Self:  # noqa: ARG002 - as every group
        """Return this address, which needs no key."""
        return self

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> object:  # noqa: ARG002 - as every group
        """Refuse an ask: workers send no replies."""
        raise Unavailable(f"{self} sends no replies")

    def tell(self, message: Command[object]) -> None:
        """Send a command; workers send no replies."""
        envelope = Envelope(message, sent_at=trio.current_time(), traceparent=traceparent.get())
        try:
            self.actor_inbox.put(envelope)
        except MailboxFull:
            metrics.DEAD_LETTERS.labels("full").inc()
            if self.on_full is not None:
                self.on_full(envelope)
            log.warning("worker mailbox full", worker=self.name, message=type(message).__name__)


class Directory(Protocol):
    """The actors of one kind, by key."""

    def ref(self, key: str) -> ActorRef:
        """Return an actor's address. The actor is started by its first message."""
        ...


async def until_accepted(accept: Callable[[], T], deadline: float) -> T:
    """Return what ``accept`` returns once it does not raise :class:`Unavailable`, which it does after ``deadline``.

    A quarantine is not waited for.
    """
    while True:
        try:
            return accept()
        except Quarantined:
            raise
        except Unavailable as fault:
            left_s = deadline - trio.current_time()
            if left_s <= 0:
                raise
            await trio.sleep(min(fault.retry_after_s, ACCEPT_AGAIN_S, left_s))
