"""The dispatcher on real rows: places, backlogs, what falls due, and what an earlier life left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
import trio
import trio.testing

from holdfast.actors.messages import Command
from holdfast.actors.task_messages import Wake
from holdfast.actors.worker_messages import PlaceFreed, TaskCreated
from holdfast.actors.workers.dispatcher import AUDIT_TICKS, Dispatcher, Tick
from holdfast.actors.workers.loop_load import LoopLoad
from holdfast.actors.workers.worker import WorkerPost
from holdfast.ledger.clock import format_time, utc_now
from holdfast.persistence import tables
from holdfast.persistence.database import Database


@dataclass
class Tasks:
    """Who would be woken."""

    woken: list[tuple[str, bool]] = field(default_factory=list)
    told: trio.Event = field(default_factory=trio.Event)

    def tell(self, key: str, command: Command[Any]) -> None:
        """Note the wake."""
        assert isinstance(command, Wake)
        self.woken.append((key, command.recovering))
        self.told.set()

    async def count(self, number: int) -> list[tuple[str, bool]]:
        """The wakes so far, once there are ``number`` of them."""
        with trio.fail_after(20):
            while len(self.woken) < number:
                self.told = trio.Event()
                await self.told.wait()
        return self.woken


@dataclass
class Desk:
    """A dispatcher with two places at the studio, and its surroundings."""

    database: Database
    post: WorkerPost
    tasks: Tasks
    nursery: trio.Nursery

    async def plant(
        self,
        request_id: str,
        *,
        dispatched: bool,
        due_in_s: float,
        touched_ago_s: float = 0,
        provider: str = "studio",
        ends_in_s: float = 3600,
        hosting: str | None = None,
    ) -> None:
        """Write a task's row."""
        now = utc_now()
        ends_at = now + timedelta(seconds=ends_in_s)
        row = {
            "account_id": "acct_1",
            "request_id": request_id,
            "version": 1,
            "status": "queued",
            "model": "studio/image-1",
            "provider": provider,
            "created_at": now,
            "updated_at": now - timedelta(seconds=touched_ago_s),
            "wake_at": now + timedelta(seconds=due_in_s),
            "dispatched": dispatched,
            "request": {},
            "state": {
                "overall_deadline_at": format_time(ends_at),
                "hosting": {} if hosting is None else {"status": hosting},
            },
        }
        await self.database.work(lambda rows: rows.execute(sqlalchemy.insert(tables.tasks), [row]).rowcount)

    def dispatcher(self) -> Dispatcher:
        """A dispatcher that does not run yet."""
        return Dispatcher(
            self.post, database=self.database, tasks=self.tasks, places=lambda: {"studio": 2}, now=utc_now
        )

    async def start(self) -> None:
        """Run a dispatcher."""
        dispatcher = self.dispatcher()
        await self.nursery.start(lambda *, task_status: dispatcher.run(task_status=task_status))


@pytest.fixture
async def desk(database: Database, nursery: trio.Nursery) -> AsyncIterator[Desk]:
    yield Desk(database, WorkerPost("dispatcher"), Tasks(), nursery)
    nursery.cancel_scope.cancel()


async def test_the_oldest_get_the_places_and_the_next_one_when_one_is_freed(desk: Desk) -> None:
    for number in (3, 2, 1):
        await desk.plant(f"task_{number}", dispatched=False, due_in_s=-10 * number)
    await desk.start()

    assert await desk.tasks.count(2) == [("task_3", False), ("task_2", False)]

    desk.post.tell("", TaskCreated("studio", "task_new"))
    desk.post.tell("", PlaceFreed("studio", "task_3"))
    assert (await desk.tasks.count(3))[2] == ("task_1", False)


async def test_a_new_task_goes_first_only_where_nobody_waits(desk: Desk) -> None:
    dispatcher = desk.dispatcher()

    await dispatcher.on_receive(TaskCreated("studio", "task_unsure"))
    assert desk.tasks.woken == []

    await dispatcher.on_receive(Tick())
    await dispatcher.on_receive(TaskCreated("studio", "task_new"))
    assert desk.tasks.woken == [("task_new", False)]


async def test_what_an_earlier_life_followed_up_is_looked_at_at_once(desk: Desk) -> None:
    await desk.plant("task_left", dispatched=True, due_in_s=3600, touched_ago_s=60)
    await desk.start()

    assert await desk.tasks.count(1) == [("task_left", True)]


async def test_jobs_of_an_earlier_life_keep_their_places_until_they_end(desk: Desk) -> None:
    await desk.plant("task_running", dispatched=True, due_in_s=3600, touched_ago_s=60)
    await desk.plant("task_storing", dispatched=True, due_in_s=3600, touched_ago_s=60, hosting="transferring")
    for number in (1, 2):
        await desk.plant(f"task_{number}", dispatched=False, due_in_s=-10 * number)
    dispatcher = desk.dispatcher()

    await dispatcher.on_receive(Tick())
    assert desk.tasks.woken == [("task_2", False)]

    await dispatcher.on_receive(PlaceFreed("studio", "task_running"))
    assert desk.tasks.woken == [("task_2", False), ("task_1", False)]


async def test_what_this_life_has_begun_before_it_first_looked_around_is_not_taken_for_left_behind(
    desk: Desk,
) -> None:
    dispatcher = desk.dispatcher()
    await desk.plant("task_waits", dispatched=True, due_in_s=3600)
    await desk.plant("task_due", dispatched=True, due_in_s=-1)
    await desk.plant("task_left", dispatched=True, due_in_s=3600, touched_ago_s=60)
    await desk.nursery.start(lambda task_status: dispatcher.run(task_status=task_status))

    assert sorted(await desk.tasks.count(2)) == [("task_due", False), ("task_left", True)]


async def test_a_claimed_task_is_not_claimed_again_within_its_lease(desk: Desk) -> None:
    await desk.plant("task_due", dispatched=True, due_in_s=-1, touched_ago_s=60)
    await desk.start()
    await desk.tasks.count(1)

    await desk.plant("task_later", dispatched=True, due_in_s=-1)

    woken = await desk.tasks.count(2)
    assert sorted(key for key, _ in woken) == ["task_due", "task_later"]


async def test_who_waits_in_vain_is_woken_when_its_time_is_over(desk: Desk) -> None:
    dispatcher = desk.dispatcher()
    for name in ("task_1", "task_2"):
        await desk.plant(name, dispatched=False, due_in_s=-100)
    await desk.plant("task_gone", dispatched=False, due_in_s=-90, provider="gone", ends_in_s=-60)
    await desk.plant("task_full", dispatched=False, due_in_s=-80, ends_in_s=-60)
    await desk.plant("task_hopes", dispatched=False, due_in_s=-70, provider="gone")
    for _ in range(AUDIT_TICKS - 1):
        await dispatcher.on_receive(Tick())
    assert sorted(key for key, _ in desk.tasks.woken) == ["task_1", "task_2"]
    await dispatcher.on_receive(Tick())
    assert sorted(key for key, _ in desk.tasks.woken) == ["task_1", "task_2", "task_full", "task_gone"]


async def test_a_busy_loop_is_known_by_how_little_it_sleeps(mock_clock: trio.testing.MockClock) -> None:
    load = LoopLoad()
    trio.lowlevel.add_instrument(load)
    try:
        mock_clock.jump(1.0)
        await trio.lowlevel.checkpoint()
        assert load.share() == 1.0
    finally:
        trio.lowlevel.remove_instrument(load)
