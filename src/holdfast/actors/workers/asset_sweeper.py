"""The asset sweeper: ends the time of stored results, and takes away contents that nobody refers to any more.

Both halves find their work in rows and may be done twice: a task told again has nothing left to give up, and a
content removed again was gone. So several processes sweep side by side, and one that dies leaves nothing behind
that another would not find. How a removal keeps clear of somebody storing the very same content is told in
:mod:`holdfast.persistence.claims.contents`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.task.messages import DropInput, ExpireAssets, TaskReply
from holdfast.actors.workers.worker import Worker, WorkerRef
from holdfast.ledger.clock import Now
from holdfast.persistence.claims.contents import (
    LEASE_S,
    START,
    Content,
    delete_marked,
    mark_contents,
    tasks_with_expired_assets,
)
from holdfast.persistence.claims.tasks import tasks_with_expired_input
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.storage import AssetStore, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS

log = structlog.get_logger(__name__)

SWEEP_S: Final = 5.0
TASKS_MAX: Final = 200
CONTENTS_MAX: Final = 1_000
"""How many contents are looked at in one sweep; the next goes on from there, so a day passes millions."""
AT_ONCE_MAX: Final = 4
ASK_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep came to: tasks whose results expired, contents that left the store, inputs dropped."""

    expired: int
    removed: int
    inputs: int = 0


class AssetSweeper(Worker):
    """Sweeps every few seconds, a bounded piece at once."""

    def __init__(
        self, post: WorkerRef, *, database: Database, tasks: Directory, store: AssetStore, now: Now
    ) -> None:
        super().__init__(post)
        self._database = database
        self._tasks = tasks
        self._store = store
        self._now = now
        self._after = START
        self._doomed: dict[Content, datetime] = {}

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Sweep now and then, beginning with what fell due while nobody ran."""
        return (self._sweep_loop,)

    async def _sweep_loop(self) -> None:
        while True:
            try:
                await self.sweep()
            except DatabaseAway as away:
                log.info("sweep of assets put off", reason=str(away))
            await trio.sleep(SWEEP_S)

    async def sweep(self) -> Swept:
        """Expire what is past its time and remove what nobody refers to. Raises :class:`DatabaseAway`."""
        swept = Swept(await self._expire(), await self._remove(), await self._drop_inputs())
        if swept != Swept(0, 0, 0):
            log.info("assets swept", expired=swept.expired, removed=swept.removed, inputs=swept.inputs)
        return swept

    async def _drop_inputs(self) -> int:
        due = await self._database.read(tasks_with_expired_input, self._now(), most=TASKS_MAX)
        told = [await self._tell(request_id, DropInput()) for request_id in due]
        return sum(told)

    async def _expire(self) -> int:
        due = await self._database.read(tasks_with_expired_assets, self._now(), most=TASKS_MAX)
        told = [await self._tell(request_id, ExpireAssets()) for request_id in due]
        return sum(told)

    async def _tell(self, request_id: str, command: Command[TaskReply]) -> bool:
        try:
            await self._tasks.ref(request_id).ask(command, deadline_s=ASK_DEADLINE_S)
        except (AskFault, Crashed) as fault:
            # Its rows stay, and the next sweep finds them.
            log.info("a task's assets are put off", request_id=request_id, reason=str(fault))
            return False
        return True

    async def _remove(self) -> int:
        """Doom the next page, and remove what is doomed: of this page, and of pages whose removal failed before."""
        page = await self._database.work(mark_contents, self._now(), after=self._after, page_max=CONTENTS_MAX)
        self._after = page.next_after
        self._doomed.update(dict.fromkeys(page.contents, page.at))
        removed: list[Content] = []
        await self._empty_store(removed)
        if removed:
            await self._database.work(delete_marked, {content: self._doomed[content] for content in removed})
            for content in removed:
                del self._doomed[content]
        return len(removed)

    async def _empty_store(self, removed: list[Content]) -> None:
        """Take what is doomed out of the store; a store that fails once is left alone until the next sweep."""
        at_once = trio.CapacityLimiter(AT_ONCE_MAX)
        async with trio.open_nursery() as nursery:

            async def take_out(content: Content, doomed_at: datetime) -> None:
                async with at_once:
                    if self._now() - doomed_at > timedelta(seconds=LEASE_S / 2):
                        # Too late to begin: after the lease another may remove it, and yet another store it anew.
                        del self._doomed[content]
                        return
                    key = asset_key(content.sha256, EXTENSIONS[content.content_type])
                    try:
                        await self._store.delete(key)
                    except OSError as fault:
                        log.warning("an asset cannot be removed", key=key, reason=fault.strerror)
                        nursery.cancel_scope.cancel()
                        return
                    removed.append(content)

            for content, doomed_at in list(self._doomed.items()):
                nursery.start_soon(take_out, content, doomed_at)
