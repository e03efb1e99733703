"""The base of workers that receive messages: a mailbox that survives restarts, and a nursery for long work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.workers.passes import one_pass


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
        self._stop()

    async def _turn(self, envelope: Envelope) -> None:
        with one_pass(type(envelope.message).__name__):
            await super()._turn(envelope)

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the loops that run beside the handler."""
        return ()
