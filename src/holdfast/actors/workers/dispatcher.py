"""The dispatcher: gives waiting tasks a place at their provider, and wakes whatever is due.

A provider has so many places. A new task takes a free one at once; otherwise it waits in its row, and the oldest
go first when places come free. Everything else that falls due (polls, deadlines, hosting rounds, what a dead
process left behind) is found by its ``wake_at``. Claiming moves ``wake_at`` on under ``SKIP LOCKED``, so
several processes share the work, and a claim whose process dies lapses by itself.

While the event loop is busy, callers are waiting: then each provider is given new tasks one at a time and at most a
few a second, so that starting tasks does not hold up the taking in of new ones. Its places stay its own: slow
jobs keep them all busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
import trio
from sqlalchemy import Connection, Row, TextClause, text

from holdfast.actors.mailbox import Envelope, MailboxFull
from holdfast.actors.messages import Command
from holdfast.actors.task_messages import Wake
from holdfast.actors.turns import Teller
from holdfast.actors.worker_messages import PlaceFreed, TaskCreated
from holdfast.actors.workers.loop_load import LoopLoad
from holdfast.actors.workers.worker import Worker, WorkerPost
from holdfast.ledger.clock import Now
from holdfast.persistence.database import Database, DatabaseAway

log = structlog.get_logger(__name__)

TICK_S = 0.25
FOLLOW_UP_TICKS = 4
AUDIT_TICKS = 60
FOLLOW_UPS_MAX = 200
WAITING_SEEN_MAX = 2_000
"""How many of those that have waited longest are looked at for a deadline that has passed."""
OVERDUE_MARGIN_S = 5
"""The database's clock and ours may differ, and who is woken before its deadline takes a place that is not free."""
LEASE_S = 10
HELD_UNSEEN_S = 30.0
LOAD_SAMPLE_S = 0.25
BUSY_SHARE = 0.8
BUSY_PAUSE_S = 0.25
"""While the loop is busy, the time between two new tasks of one provider."""

_CLAIM_WAITING = text(
    "with due as (select request_id from tasks where wake_at <= now() and not dispatched "
    "and provider = :provider order by wake_at limit :places for update skip locked) "
    "update tasks t set wake_at = now() + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id"
)
_CLAIM_FOLLOW_UPS = text(
    "with due as (select request_id from tasks where wake_at <= now() and dispatched "
    "order by wake_at limit :most for update skip locked) "
    "update tasks t set wake_at = now() + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id, t.updated_at"
)
_CLAIM_OVERDUE = text(
    "with waiting as (select request_id, state from tasks where wake_at <= now() and not dispatched "
    "order by wake_at limit :seen), due as (select t.request_id from tasks t "
    "join waiting w using (request_id) where t.wake_at <= now() and not t.dispatched "
    "and cast(w.state ->> 'overall_deadline_at' as timestamptz) < now() - make_interval(secs => :margin_s) "
    "limit :most for update of t skip locked) "
    "update tasks t set wake_at = now() + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id"
)
"""Who waits in vain: for a provider that has left the catalog, or one whose places never come free in time."""

_LEFT_BEHIND_DUE = text(
    "update tasks set wake_at = least(wake_at, now()) where wake_at is not null and dispatched "
    "and updated_at < :before returning request_id, provider, "
    "status <> 'review' and coalesce(state -> 'hosting' ->> 'status', 'pending') = 'pending' as occupies"
)
_STILL_OCCUPYING = text(
    "select request_id from tasks where request_id = any(:held) and wake_at is not null and dispatched "
    "and status <> 'review'"
)


@dataclass(frozen=True, slots=True)
class Tick(Command[None]):
    """Look for what is due."""


class Dispatcher(Worker):
    """Knows which of this process's tasks occupy a provider, and hands out the places left."""

    def __init__(
        self,
        post: WorkerPost,
        *,
        database: Database,
        tasks: Teller,
        places: Callable[[], Mapping[str, int]],
        now: Now,
    ) -> None:
        super().__init__(post)
        self._database = database
        self._tasks = tasks
        self._places = places
        self._held: dict[str, dict[str, float]] = {}
        # Providers for whose places rows may be waiting: a new task must not overtake them.
        self._backlog: dict[str, bool] = {}
        self._ticks = 0
        self._is_busy = False
        self._placed_at: dict[str, float] = {}
        # What was touched before we began is nobody's; what has been touched since is in living hands.
        self._recover_before: datetime = now()
        self._has_recovered = False

    def habits(self) -> tuple[Callable[[], Any], ...]:
        """Look around now and then, and keep an eye on how busy the loop is."""
        return (self._keep_time, self._watch_loop)

    async def _watch_loop(self) -> None:
        load = LoopLoad()
        trio.lowlevel.add_instrument(load)
        try:
            while True:
                await trio.sleep(LOAD_SAMPLE_S)
                self._is_busy = load.share() > BUSY_SHARE
        finally:
            trio.lowlevel.remove_instrument(load)

    async def _keep_time(self) -> None:
        while True:
            with suppress(MailboxFull):
                self.actor_inbox.put(Envelope(Tick(), sent_at=trio.current_time()))
            await trio.sleep(TICK_S)

    async def on_receive(self, message: Any) -> None:
        """Place a new task, pass a freed place on, or look around."""
        try:
            if isinstance(message, TaskCreated):
                self._place_new(message)
            elif isinstance(message, PlaceFreed):
                self._held.get(message.provider, {}).pop(message.request_id, None)
                if self._backlog.get(message.provider, True):
                    await self._place_waiting(message.provider)
            elif isinstance(message, Tick):
                await self._look_around()
        except DatabaseAway as away:
            # What is due stays due; the next tick finds it.
            log.info("due tasks cannot be read", reason=str(away))

    def _place_new(self, created: TaskCreated) -> None:
        if self._backlog.get(created.provider, True) or not self._free(created.provider):
            self._backlog[created.provider] = True
        else:
            self._take(created.provider, created.request_id)

    async def _look_around(self) -> None:
        if not self._has_recovered:
            await self._take_up_what_was_left()
        self._ticks += 1
        if self._ticks % AUDIT_TICKS == 0:
            await self._return_lost_places()
            await self._wake_overdue()
        look_everywhere = self._ticks % FOLLOW_UP_TICKS == 0
        for provider in self._places():
            # Rows of other processes and of earlier lives are looked for less often than known backlogs.
            if look_everywhere or self._backlog.get(provider, True):
                await self._place_waiting(provider)
        if not look_everywhere:
            return
        claim = {"most": FOLLOW_UPS_MAX, "lease_s": LEASE_S}
        for row in await self._claim(_CLAIM_FOLLOW_UPS, claim):
            self._tasks.tell(row.request_id, Wake(recovering=row.updated_at < self._recover_before))

    async def _take_up_what_was_left(self) -> None:
        """Make due what an earlier life had at its providers; until it ends there, it keeps its places."""
        left = await self._claim(_LEFT_BEHIND_DUE, {"before": self._recover_before})
        now = trio.current_time()
        for row in left:
            if row.occupies:
                self._held.setdefault(row.provider, {})[row.request_id] = now
        self._has_recovered = True

    async def _wake_overdue(self) -> None:
        """End the waiting of tasks whose time is over: they need no place to fail and give their credit back."""
        claim = {
            "seen": WAITING_SEEN_MAX,
            "margin_s": OVERDUE_MARGIN_S,
            "most": FOLLOW_UPS_MAX,
            "lease_s": LEASE_S,
        }
        for row in await self._claim(_CLAIM_OVERDUE, claim):
            self._tasks.tell(row.request_id, Wake())

    async def _place_waiting(self, provider: str) -> None:
        """Give free places to the tasks that have waited longest."""
        places = self._free(provider)
        if not places:
            self._backlog[provider] = True
            return
        claim = {"provider": provider, "places": places, "lease_s": LEASE_S}
        waiting = await self._claim(_CLAIM_WAITING, claim)
        self._backlog[provider] = len(waiting) == places
        for row in waiting:
            self._take(provider, row.request_id)

    async def _claim(self, statement: TextClause, parameters: dict[str, Any]) -> Sequence[Row[Any]]:
        def claim(connection: Connection) -> Sequence[Row[Any]]:
            return connection.execute(statement, parameters).all()

        return await self._database.work(claim)

    async def _return_lost_places(self) -> None:
        """Take back the places of tasks that ended without our hearing of it, through another process say."""
        settled_before = trio.current_time() - HELD_UNSEEN_S
        held = [r for places in self._held.values() for r, since in places.items() if since < settled_before]
        if not held:
            return

        def occupying(connection: Connection) -> set[str]:
            return {row.request_id for row in connection.execute(_STILL_OCCUPYING, {"held": held})}

        still = await self._database.read(occupying)
        for places in self._held.values():
            for request_id in held:
                if request_id not in still:
                    places.pop(request_id, None)

    def _free(self, provider: str) -> int:
        free = max(0, self._places().get(provider, 0) - len(self._held.get(provider, ())))
        if free and self._is_busy:
            rested = trio.current_time() - self._placed_at.get(provider, 0.0) >= BUSY_PAUSE_S
            return 1 if rested else 0
        return free

    def _take(self, provider: str, request_id: str) -> None:
        now = trio.current_time()
        self._held.setdefault(provider, {})[request_id] = now
        self._placed_at[provider] = now
        self._tasks.tell(request_id, Wake())
