"""Queries that clients repeat: planned once, and as safe as others when a connection is lost."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import trio
from sqlalchemy import Connection, Double, bindparam, func, select, text

from holdfast.persistence.queries.accounts import find_totals
from holdfast.persistence.queries.credentials import find_api_keys, find_sessions
from holdfast.persistence.queries.tasks import find_tasks, newest_tasks, tasks_of_account
from holdfast.persistence.records.tables import sign_ins
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.connections import BoundedConnection, await_in_call, connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import QueryTimedOut
from holdfast.persistence.server.repeated_queries import RepeatedQuery

from .test_database import backends_ended

RUNS = 50
LOOKUPS: dict[str, Callable[[Connection, int], object]] = {
    "tasks": lambda rows, count: find_tasks(rows, ["task_1"] * count),
    "newest tasks": lambda rows, count: newest_tasks(21)(rows, ["acct_1"] * count),
    "totals": lambda rows, count: find_totals(rows, ["acct_1"] * count),
    "keys": lambda rows, count: find_api_keys(rows, [b"1"] * count),
    "sessions": lambda rows, count: find_sessions(rows, [b"1"] * count),
}


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_a_lookup_is_planned_once_however_many_keys_it_has(
    database_url: str, look_up: Callable[[Connection, int], object]
) -> None:
    with connected(database_url) as rows:
        for run in range(RUNS):
            look_up(rows, 1 + run % 3)
        prepared = rows.execute(text("select generic_plans, custom_plans from pg_prepared_statements")).all()
    [(generic, custom)] = prepared
    # The driver prepares it after some runs, and the server plans each of the first five runs after that.
    assert custom == 5
    assert generic > RUNS // 2


async def test_a_plan_made_for_empty_tables_finds_rows_by_their_keys(database: Database) -> None:
    """It is used as long as the connection, however many rows there are by then."""

    def plans(rows: Connection) -> list[str]:
        for _ in range(RUNS):
            for look_up in LOOKUPS.values():
                look_up(rows, 1)
            tasks_of_account(rows, "acct_1", limit=20)
        prepared = rows.execute(text("select name, statement from pg_prepared_statements order by name")).all()
        assert len(prepared) == len(LOOKUPS) + 1
        values = [", ".join(["null"] * len(set(re.findall(r"\$\d+", each.statement)))) for each in prepared]
        return [
            "\n".join(rows.execute(text(f"explain execute {each.name}({given})")).scalars())
            for each, given in zip(prepared, values, strict=True)
        ]

    for plan in await database.read(plans):
        assert "Index" in plan
        assert "Seq Scan" not in plan


async def test_a_lookup_on_a_lost_connection_finds_none_of_its_age(database: Database, database_url: str) -> None:
    """It is repeated once only, and all connections of the pool are lost."""
    readers, using, together = 3, trio.Semaphore(0), trio.Event()

    def use(rows: Connection) -> None:
        find_totals(rows, ["acct_1"])
        using.release()
        await_in_call(together.wait)

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(database.read, use)
        for _ in range(readers):
            await using.acquire()
        together.set()
    assert backends_ended(database_url) >= readers
    assert await database.read(lambda rows: find_totals(rows, ["acct_1"])) == {}
    assert database.gate.is_open


async def test_a_lookup_without_a_response_is_slow_and_leaves_the_gate_open(database: Database) -> None:
    sleep = RepeatedQuery(select(func.pg_sleep(bindparam("seconds", type_=Double()))))

    def wait(rows: Connection) -> None:
        driver = rows.connection.driver_connection
        assert isinstance(driver, BoundedConnection)
        driver.answer_s = 0.01
        sleep.rows(rows, {"seconds": 60.0})

    with pytest.raises(QueryTimedOut, match="no response"):
        await database.read(wait)
    assert database.gate.is_open
    # Its connection is not used again.
    assert await database.read(lambda rows: find_totals(rows, ["acct_1"])) == {}


@pytest.mark.parametrize("value", ["infinity", "-infinity", "12000-01-01"])
@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_time_that_python_cannot_hold_is_named(database_url: str, value: str, is_repeated: bool) -> None:
    query = select(sign_ins.c.key, sign_ins.c.updated_at).order_by(sign_ins.c.key)
    with connected(database_url) as rows:
        rows.execute(
            text(
                "insert into sign_ins (key, version, updated_at, state) "
                "values ('a', 1, now(), '{}'), ('b', 1, :at, '{}')"
            ),
            {"at": value},
        )
        with pytest.raises(UnreadableRow, match=r"^sign_ins\.updated_at b: timestamp too"):
            _ = RepeatedQuery(query).rows(rows, {}) if is_repeated else rows.execute(query).all()
        assert rows.execute(select(func.count()).select_from(sign_ins)).scalar_one() == 2
