"""One look at the rows for all workers of a process: whether there may be something for them to do.

A worker whose work is found in rows does a pass, pauses, and waits until a look finds something of its kinds. So an
idle service runs one query a second instead of one for each worker, and finds what is due, or was left by another
process, no later. In case a look misses something, a worker waits for :data:`WAIT_S` at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from holdfast.actors.workers.passes import LOOK_S, next_tick, one_pass
from holdfast.ledger.values import Now
from holdfast.persistence.claims.due_work import KINDS, DueKind, find_due
from holdfast.persistence.operators.overrides import Overrides
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)

WAIT_S: Final = 60.0

WaitDue = Callable[[], Awaitable[None]]
"""Returns when there may be something to do."""


class DueWork:
    """Looks every second. ``me`` is this process, and ``overrides`` what it knows of these."""

    def __init__(self, *, database: Database, overrides: Overrides, me: str, now: Now) -> None:
        self._database = database
        self._overrides = overrides
        self._me = me
        self._now = now
        self._waiting: dict[trio.Event, frozenset[DueKind]] = {}
        self.found = KINDS
        """What the last look has found; everything before the first one."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Look every second until cancelled."""
        task_status.started()
        while True:
            try:
                with one_pass("look for due work"):
                    await self.look()
            except DatabaseAway as away:
                log.debug("look for due work postponed", reason=str(away))
            await trio.sleep_until(next_tick(LOOK_S))

    async def look(self) -> None:
        """Find what there may be to do, and wake those who wait for it. Raises :class:`DatabaseAway`.

        Overrides that were changed are read at once.
        """
        seen = self._overrides.seen
        self.found = await self._database.look(find_due, self._now(), me=self._me, overrides_seen=seen)
        if "overrides" in self.found:
            await self._overrides.reread()
        for event, kinds in self._waiting.items():
            if not kinds.isdisjoint(self.found):
                event.set()

    def may_have(self, *kinds: DueKind) -> bool:
        """Whether the last look has found one of these kinds."""
        return not self.found.isdisjoint(kinds)

    def waiting_for(self, *kinds: DueKind) -> WaitDue:
        """Return what waits for a later look that finds one of these kinds, for :data:`WAIT_S` at most."""
        wanted = frozenset(kinds)

        async def wait() -> None:
            event = trio.Event()
            self._waiting[event] = wanted
            try:
                with trio.move_on_after(WAIT_S):
                    await event.wait()
            finally:
                del self._waiting[event]

        return wait
