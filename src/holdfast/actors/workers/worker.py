"""The base of workers that receive messages: a mailbox that survives restarts, and a nursery for long work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

import structlog
import trio

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.faults import Unavailable
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, MailboxFull, SystemMessage
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.workers.passes import one_pass
from holdfast.telemetry import metrics
from holdfast.telemetry.traces import traceparent

log = structlog.get_logger(__name__)

WORKER_MAILBOX_MAX = 10_000


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


class Worker(TrioActor):
    """One incarnation of a worker, run as a child of the tree. A handler that raises ends it."""

    def __init__(self, ref: WorkerRef) -> None:
        super().__init__(ref.actor_inbox)
        self.nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Handle messages until stopped, then finish the work in the nursery, unless the shutdown time runs out."""
        self.actor_inbox.clear_system()
        async with trio.open_nursery() as self.nursery:
            await self.on_start()
            async with trio.open_nursery() as background_loops:
                for loop in self.background_loops():
                    background_loops.start_soon(loop)
                task_status.started()
                await self.serve()
                background_loops.cancel_scope.cancel()

    async def stop(self) -> None:  # type: ignore[override]  # the tree awaits it
        """Stop once the mailbox is empty."""
        self.actor_inbox.put_system(SystemMessage.STOP)

    async def _turn(self, envelope: Envelope) -> None:
        with one_pass(type(envelope.message).__name__):
            await super()._turn(envelope)

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the loops that run beside the handler."""
        return ()
