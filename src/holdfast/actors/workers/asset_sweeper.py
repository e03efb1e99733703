"""The asset sweeper: expires results and uploaded files, and removes contents that none of them refers to.

All its work is found in rows and is idempotent. So several processes may sweep at once, and another process
continues where one has died. :mod:`holdfast.persistence.claims.contents` explains how a removal avoids a
concurrent storing of the same content.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.task.messages import DropInput, ExpireAssets, TaskReply
from holdfast.actors.workers.passes import ALWAYS, Schedule, repeat
from holdfast.ledger.values import Now
from holdfast.persistence.claims.contents import (
    LEASE_S,
    START,
    Content,
    delete_marked,
    mark_contents,
    tasks_with_expired_assets,
)
from holdfast.persistence.claims.files import FIRST_USE, ExpiredFile, sweep_files, sweep_uses
from holdfast.persistence.claims.tasks import FIRST_EXPIRED, Expired, tasks_with_expired_input
from holdfast.persistence.server.database import Database
from holdfast.providers.storage.base import AssetStore, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS

log = structlog.get_logger(__name__)

SWEEP_S: Final = 5.0
SWEEP_BOUND_S: Final = 300.0
TASKS_MAX: Final = 200
CONTENTS_MAX: Final = 1_000
"""How many contents one sweep checks; the next sweep continues from there, which is millions a day."""
_FIRST_FILE: Final = ExpiredFile(*FIRST_EXPIRED)
CONCURRENT_MAX: Final = 4
ASK_DEADLINE_S: Final = 30.0


class Swept(msgspec.Struct, frozen=True):
    """The result of one sweep: tasks whose results expired, contents removed, inputs dropped, files deleted."""

    expired: int
    removed: int
    inputs: int = 0
    files: int = 0


class AssetSweeper:
    """Sweeps every few seconds, a bounded number of rows at a time."""

    def __init__(
        self,
        *,
        database: Database,
        tasks: Directory,
        store: AssetStore,
        now: Now,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._schedule = schedule
        self._database = database
        self._tasks = tasks
        self._store = store
        self._now = now
        self._after = START
        # Where the next sweep continues, so that tasks which cannot be swept do not delay the others.
        self._tasks_after: dict[Callable[..., object], Expired] = {}
        self._files_after = _FIRST_FILE
        self._uses_after = FIRST_USE
        self._marked: dict[Content, datetime] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Sweep every few seconds until cancelled."""
        task_status.started()
        await repeat(
            self.sweep,
            every_s=SWEEP_S,
            name="sweep of assets",
            bound_s=SWEEP_BOUND_S,
            schedule=self._schedule,
        )

    async def sweep(self) -> Swept:
        """Expire results, delete files, remove unreferenced contents, drop old inputs. Raises ``DatabaseAway``."""
        files = await self._delete_files()
        expired = await self._ask_due(tasks_with_expired_assets, ExpireAssets())
        removed = await self._remove()
        swept = Swept(expired, removed, await self._ask_due(tasks_with_expired_input, DropInput()), files)
        if swept != Swept(0, 0):
            log.info("assets swept", **msgspec.structs.asdict(swept))
        try:
            await self._store.remove_leftovers()
        except OSError as fault:
            log.warning("leftovers not removed", reason=fault.strerror)
        return swept

    async def _delete_files(self) -> int:
        """Delete the next expired files that no unfinished task needs, and what is stored of ended tasks' needs."""
        self._uses_after = await self._database.work(
            sweep_uses, self._now(), after=self._uses_after, most=CONTENTS_MAX
        )
        swept = await self._database.work(sweep_files, self._now(), after=self._files_after, most=CONTENTS_MAX)
        self._files_after = swept.next_after or _FIRST_FILE
        return swept.deleted

    async def _ask_due(self, find: Callable[..., list[Expired]], command: Command[TaskReply]) -> int:
        """Ask the next tasks that are due; return how many did it."""
        after = self._tasks_after.get(find, FIRST_EXPIRED)
        due = await self._database.read(find, self._now(), after=after, most=TASKS_MAX)
        self._tasks_after[find] = due[-1] if len(due) == TASKS_MAX else FIRST_EXPIRED
        request_ids = dict.fromkeys(expired.request_id for expired in due)
        return sum([await self._ask(request_id, command) for request_id in request_ids])

    async def _ask(self, request_id: str, command: Command[TaskReply]) -> bool:
        try:
            await self._tasks.ref(request_id).ask(command, deadline_s=ASK_DEADLINE_S)
        except (AskFault, Crashed) as fault:
            # Its rows stay, and are found again after the others.
            log.info("task not swept", task_id=request_id, reason=str(fault))
            return False
        return True

    async def _remove(self) -> int:
        """Mark the next page of unreferenced contents for deletion, and remove all that are marked."""
        page = await self._database.work(mark_contents, self._now(), after=self._after, page_max=CONTENTS_MAX)
        self._after = page.next_after
        self._marked.update(dict.fromkeys(page.contents, page.at))
        removed = await self._remove_from_store()
        if removed:
            await self._database.work(delete_marked, {content: self._marked[content] for content in removed})
            for content in removed:
                del self._marked[content]
        return len(removed)

    async def _remove_from_store(self) -> list[Content]:
        """Remove marked contents from the store, and return them; after a failure the rest waits."""
        removed: list[Content] = []
        limiter = trio.CapacityLimiter(CONCURRENT_MAX)
        async with trio.open_nursery() as nursery:

            async def remove(content: Content, marked_at: datetime) -> None:
                async with limiter:
                    if self._now() - marked_at > timedelta(seconds=LEASE_S / 2):
                        # Too late: after the lease another process may remove it, and a third store it again.
                        del self._marked[content]
                        return
                    key = asset_key(content.sha256, EXTENSIONS[content.content_type])
                    try:
                        await self._store.delete(key)
                    except OSError as fault:
                        log.warning("asset not removed", key=key, reason=fault.strerror)
                        nursery.cancel_scope.cancel()
                        return
                    removed.append(content)

            for content, marked_at in list(self._marked.items()):
                nursery.start_soon(remove, content, marked_at)
        return removed
