"""One look at the rows for all workers: each waits for its kinds, finds what others left, and never waits long."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
import trio
from psycopg import sql
from sqlalchemy import JSON
from tests.recorded_refs import RecordedRef
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import TaskQueued
from holdfast.actors.workers.dispatcher import (
    CHECK_DUE_EVERY_S,
    FOLLOW_UP_EVERY_CHECKS,
    Dispatcher,
)
from holdfast.actors.workers.due_work import WAIT_S, DueWork
from holdfast.actors.workers.passes import LOOK_S, Schedule, next_tick, repeat
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.archives import TRIES_MAX
from holdfast.persistence.claims.coupons import CLAIM_OVERDUE_S
from holdfast.persistence.claims.due_work import BULK_ACTIONS_GO_ON, KINDS, MONEY_MOVED_WITHIN, DueKind, find_due
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.operators.overrides import Overrides
from holdfast.persistence.records.operator_tables import Override
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

EVERY_S = 5.0


class Rows:
    """A database in which there is work of some kinds; it counts the looks and other calls."""

    def __init__(self) -> None:
        self.due: frozenset[DueKind] = frozenset()
        self.is_away = False
        self.looks = 0
        self.calls: list[str] = []

    async def look(self, query: object, now: datetime, *, me: str, overrides_seen: int) -> frozenset[DueKind]:
        """Return what is due."""
        assert query is find_due
        self.looks += 1
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise DatabaseAway("it is away")
        return self.due

    async def read(self, query: Callable[..., Any], *_: object) -> list[Any]:
        """Record a query that finds nothing."""
        found: list[Any] = await self.work(query)
        return found

    async def work(self, query: Callable[..., Any], *_: object, **__: object) -> Any:
        """Record a claim that finds nothing."""
        name = getattr(query, "func", query).__name__
        self.calls.append(name)
        await trio.lowlevel.checkpoint()
        return ([], "") if name == "claim_waiting" else []


async def no_overrides() -> list[Override]:
    return []


def due_work(rows: Rows) -> DueWork:
    return DueWork(
        database=cast("Database", rows), overrides=Overrides(no_overrides, utc_now), me="proc_me", now=utc_now
    )


async def running(nursery: trio.Nursery, rows: Rows) -> DueWork:
    due = due_work(rows)
    await nursery.start(due.run)
    await wait_all_tasks_blocked()
    return due


def passes_of(nursery: trio.Nursery, wait_due: Callable[[], Awaitable[None]]) -> list[float]:
    at: list[float] = []

    async def work() -> None:
        at.append(trio.current_time())

    async def run() -> None:
        await repeat(work, every_s=EVERY_S, name="passes", schedule=Schedule(wait_due=wait_due))

    nursery.start_soon(run)
    return at


async def test_idle_workers_share_one_look_a_second(autojump_clock: MockClock) -> None:
    rows = Rows()
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        orders, lots = passes_of(nursery, due.waiting_for("orders")), passes_of(nursery, due.waiting_for("lots"))
        begun, looks = trio.current_time(), rows.looks
        await trio.sleep(50.5)
        assert orders == lots == [begun], "their first passes, and no others"
        assert rows.looks - looks == 50
        nursery.cancel_scope.cancel()


async def test_what_becomes_due_is_found_within_a_look(autojump_clock: MockClock) -> None:
    rows = Rows()
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        orders, lots = passes_of(nursery, due.waiting_for("orders")), passes_of(nursery, due.waiting_for("lots"))
        await trio.sleep(20.3)
        rows.due, became_due = frozenset({"lots"}), trio.current_time()
        await trio.sleep(LOOK_S)
        assert len(orders) == 1
        assert len(lots) == 2
        assert lots[1] - became_due <= LOOK_S
        nursery.cancel_scope.cancel()


async def test_a_busy_worker_does_its_passes_as_often_as_without_looks(autojump_clock: MockClock) -> None:
    """What becomes due right after a pass waits no longer than the period of passes."""
    rows = Rows()
    rows.due = KINDS
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        passes = passes_of(nursery, due.waiting_for("lots"))
        await trio.sleep(10 * EVERY_S + 0.5)
        pauses = [later - earlier for earlier, later in itertools.pairwise(passes)]
        assert len(pauses) >= 10
        assert max(pauses) <= EVERY_S
        assert min(pauses) >= EVERY_S - LOOK_S
        nursery.cancel_scope.cancel()


async def test_a_worker_looks_for_itself_if_no_look_finds_its_work(autojump_clock: MockClock) -> None:
    rows = Rows()
    async with trio.open_nursery() as nursery:
        passes = passes_of(nursery, due_work(rows).waiting_for("lots"))
        await trio.sleep(3 * (WAIT_S + EVERY_S))
        assert len(passes) == 4
        nursery.cancel_scope.cancel()


async def test_looks_go_on_after_the_database_was_away(autojump_clock: MockClock) -> None:
    rows = Rows()
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        passes = passes_of(nursery, due.waiting_for("archives"))
        rows.is_away = True
        await trio.sleep(7.5)
        rows.is_away, rows.due, back_at = False, frozenset({"archives"}), trio.current_time()
        await trio.sleep(LOOK_S)
        assert len(passes) == 2
        assert passes[1] - back_at <= LOOK_S
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------- the dispatcher


class NoTasks:
    """Records which tasks are woken."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def ref(self, key: str) -> RecordedRef:
        """Return an address that records a message."""
        return RecordedRef(lambda _: self.woken.append(key))


async def start_dispatcher(
    nursery: trio.Nursery, rows: Rows, due: DueWork, tasks: NoTasks, *, slots: int
) -> WorkerRef:
    ref = WorkerRef("dispatcher")
    dispatcher = Dispatcher(
        ref,
        database=cast("Database", rows),
        tasks=cast("Any", tasks),
        slots=lambda: {"studio": slots},
        now=utc_now,
        process=this_process(),
        due=due,
    )
    await nursery.start(lambda *, task_status: dispatcher.run(task_status=task_status))
    return ref


async def test_an_idle_dispatcher_queries_no_rows_until_a_look_finds_a_task(autojump_clock: MockClock) -> None:
    rows, tasks = Rows(), NoTasks()
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        await start_dispatcher(nursery, rows, due, tasks, slots=1)
        await trio.sleep(WAIT_S - LOOK_S)
        rows.calls.clear()
        await trio.sleep(4 * WAIT_S)
        assert 4 <= rows.calls.count("claim_waiting") == rows.calls.count("take_over") <= 5, "its own checks"
        assert rows.calls.count("claim_past_deadline") <= 4
        await trio.sleep(LOOK_S)
        rows.calls.clear()
        rows.due = frozenset({"tasks"})
        await trio.sleep(LOOK_S)
        assert {"take_over", "claim_waiting", "claim_follow_ups"} <= {*rows.calls}, "all checks, at once"
        rows.calls.clear()
        await trio.sleep(FOLLOW_UP_EVERY_CHECKS * CHECK_DUE_EVERY_S + 0.01)
        assert {"take_over", "claim_waiting", "claim_follow_ups"} <= {*rows.calls}, "and each second, as it lasts"
        nursery.cancel_scope.cancel()


async def test_a_process_that_left_tasks_is_looked_for_within_a_look(autojump_clock: MockClock) -> None:
    rows, tasks = Rows(), NoTasks()
    async with trio.open_nursery() as nursery:
        due = await running(nursery, rows)
        await start_dispatcher(nursery, rows, due, tasks, slots=1)
        await trio.sleep(WAIT_S + 3.3)
        rows.calls.clear()
        rows.due = frozenset({"other_processes"})
        await trio.sleep(LOOK_S)
        assert "take_over" in rows.calls
        nursery.cancel_scope.cancel()


async def test_a_new_task_wakes_an_idle_dispatcher(autojump_clock: MockClock) -> None:
    """One takes the free slot at once; one that must wait is checked for as soon as ever, before any look."""
    rows, tasks = Rows(), NoTasks()
    async with trio.open_nursery() as nursery:
        due = due_work(rows)
        due.found = frozenset()
        ref = await start_dispatcher(nursery, rows, due, tasks, slots=1)
        await trio.sleep(3.3)
        rows.calls.clear()
        ref.tell(TaskQueued("studio", "task_one"))
        await wait_all_tasks_blocked()
        assert tasks.woken == ["task_one"]
        assert not rows.calls
        ref.tell(TaskQueued("studio", "task_two"))
        await trio.sleep(FOLLOW_UP_EVERY_CHECKS * CHECK_DUE_EVERY_S + 0.01)
        assert "claim_follow_ups" in rows.calls
        nursery.cancel_scope.cancel()


# ----------------------------------------------------------------------------------------------------- the query


NOW = utc_now()
LATER = NOW + timedelta(seconds=1)
DUE: dict[DueKind, list[tuple[str, dict[str, object]]]] = {
    "tasks": [
        ("tasks", {"wake_at": LATER, "dispatched": False, "provider": "p"}),
        ("tasks", {"wake_at": LATER, "dispatched": True, "owner": "proc_gone"}),
    ],
    "other_processes": [("processes", {"process_id": "proc_other"})],
    "orders": [("orders", {"wake_at": NOW})],
    "resuming_accounts": [("auto_top_ups", {"wake_at": NOW})],
    "money": [
        ("operations", {"kind": "credit", "reference": "ord_1"}),
        ("operations", {"kind": "reversal", "reference": "ord_1"}),
    ],
    "events": [("outbox", {"due_at": LATER})],
    "stored": [("contents", {}), ("files", {}), ("file_uses", {}), ("tasks", {"input_until": NOW})],
    "lots": [("credit_lots", {"expires_at": NOW, "closed_number": None})],
    "coupon_claims": [("coupon_uses", {"claimed_at": NOW - timedelta(seconds=CLAIM_OVERDUE_S)})],
    "closings": [("accounts", {"closes_at": NOW})],
    "archives": [("archives", {"claimed_until": NOW})],
    "overrides": [("overrides", {"version": 1})],
    "bulk_actions": [
        ("operator_actions", {"action": "act_on_all", "effect": "{}"}),
        ("operator_actions", {"action": "continue_bulk_action", "effect": "{}"}),
    ],
}
NOT_DUE: list[tuple[str, dict[str, object]]] = [
    ("tasks", {}),
    ("processes", {"process_id": "proc_me"}),
    ("orders", {"wake_at": LATER}),
    ("orders", {}),
    ("auto_top_ups", {"wake_at": LATER}),
    ("operations", {"kind": "credit", "reference": "sandbox"}),
    ("operations", {"kind": "credit", "reference": "ord_1", "at": NOW - MONEY_MOVED_WITHIN}),
    ("outbox", {}),
    ("credit_lots", {"expires_at": LATER}),
    ("coupon_uses", {"claimed_at": NOW}),
    ("accounts", {"closes_at": LATER}),
    ("archives", {"claimed_until": LATER}),
    ("archives", {"claimed_until": NOW, "tries": TRIES_MAX}),
    ("operator_actions", {"action": "release_actor"}),
    ("operator_actions", {"action": "act_on_all", "result": "done"}),
    ("operator_actions", {"action": "act_on_all", "at": NOW - BULK_ACTIONS_GO_ON}),
]
_VALUES: dict[type, object] = {datetime: NOW, str: "", int: 0, bool: False, bytes: b"", float: 0.0, list: []}


def insert(url: str, name: str, given: dict[str, object]) -> None:
    """Insert a row with the given values, and others where there must be some."""
    columns = [column for column in metadata.tables[name].c if not column.nullable or column.name in given]
    values = [
        given.get(column.name, "{}" if isinstance(column.type, JSON) else _VALUES[column.type.python_type])
        for column in columns
    ]
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
    marks = sql.SQL(", ").join([sql.Placeholder()] * len(columns))
    with psycopg.connect(url, autocommit=True) as rows:
        rows.execute(sql.SQL("insert into {} ({}) values ({})").format(sql.Identifier(name), names, marks), values)


@pytest.mark.parametrize(
    ("kind", "table", "values"), [(kind, *row) for kind, of_kind in DUE.items() for row in of_kind]
)
async def test_a_look_finds_each_kind_alone(
    database: Database, kind: DueKind, table: str, values: dict[str, object]
) -> None:
    insert(database.url, table, values)
    assert await database.look(find_due, NOW, me="proc_me", overrides_seen=0) == frozenset({kind})


@pytest.mark.parametrize(("table", "values"), [("accounts", {}), *NOT_DUE])
async def test_what_is_not_due_is_not_found(database: Database, table: str, values: dict[str, object]) -> None:
    insert(database.url, table, values)
    assert await database.look(find_due, NOW, me="proc_me", overrides_seen=0) == frozenset()


async def test_each_kind_is_tried() -> None:
    assert DUE.keys() == KINDS


async def test_what_is_looked_at_regularly_is_looked_at_together(mock_clock: MockClock) -> None:
    ticks = []
    for _ in range(4):
        ticks.append((trio.current_time(), next_tick(0.5), next_tick(1.0)))
        mock_clock.jump(0.25)
    assert ticks == [(0, 0.5, 1), (0.25, 0.5, 1), (0.5, 1, 1), (0.75, 1, 1)]
