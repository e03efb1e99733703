"""Rows of members and of singletons: what a heartbeat writes and finds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

import psycopg
import pytest
import trio
from msgspec.structs import replace
from sqlalchemy import Connection

from holdfast.actors.workers.heartbeat import Heartbeat, Presence
from holdfast.persistence.claims.processes import (
    LEASE_S,
    Beat,
    Member,
    Membership,
    Process,
    beat,
    claim_singletons,
    end_lease,
    renew_lease,
    this_process,
)
from holdfast.persistence.server.connections import await_in_call, driver_of
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.service_clock import ServiceClock

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
STUDIO = frozenset({"studio"})
READY = Membership("ready", ("unix:/run/a.sock", "tcp:10.0.0.5:7400"), 1)


async def beat_of(database: Database, process: Process, wanted: Collection[str] = ()) -> Beat:
    clock = ServiceClock(process.member_id)
    return await database.work(
        lambda rows: beat(rows, process, clock, providers=["studio"], membership=READY, wanted=wanted)
    )


def elsewhere(name: str) -> Process:
    return replace(this_process(), member_id=name, machine=f"machine of {name}")


async def test_a_heartbeat_finds_the_members_with_a_valid_lease(database: Database) -> None:
    first, second, gone, older = (elsewhere(name) for name in ("proc_a", "proc_b", "proc_gone", "proc_older"))
    assert (await beat_of(database, first)).members == []
    clock = ServiceClock("proc_gone")
    lapsed = clock.now() - timedelta(seconds=LEASE_S + 1)
    await database.work(lambda rows: renew_lease(rows, gone, lapsed, [], READY))
    assert (await beat_of(database, second)).members == [Member("proc_a", "machine of proc_a", READY, STUDIO)]
    await database.work(lambda rows: renew_lease(rows, older, clock.now(), []))
    found = (await beat_of(database, first)).members
    assert found == [
        Member("proc_b", "machine of proc_b", READY, STUDIO),
        Member("proc_older", "machine of proc_older", Membership()),
    ]
    await database.work(lambda rows: end_lease(rows, second))
    assert [member.member_id for member in (await beat_of(database, first)).members] == ["proc_older"]


async def test_a_singleton_is_held_by_one_process_until_it_gives_it_up(database: Database) -> None:
    first, second = elsewhere("proc_a"), elsewhere("proc_b")
    assert (await beat_of(database, first, {"sweeper", "dispatcher"})).claimed == {"sweeper", "dispatcher"}
    assert (await beat_of(database, second, {"sweeper", "dispatcher", "reconciler"})).claimed == {"reconciler"}
    assert (await beat_of(database, first, {"sweeper"})).claimed == {"sweeper"}
    assert (await beat_of(database, second, {"sweeper", "dispatcher"})).claimed == {"dispatcher"}
    await database.work(lambda rows: end_lease(rows, first))
    assert (await beat_of(database, second, {"sweeper", "dispatcher"})).claimed == {"sweeper", "dispatcher"}
    assert (await beat_of(database, first, {"sweeper"})).claimed == set()


async def test_a_process_that_has_all_it_wants_finds_that_in_one_statement(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = this_process()
    statements: list[object] = []

    class Noted(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Self:
            statements.append(query)
            return super().execute(query, *args, **kwargs)

    def claim(rows: Connection, wanted: Collection[str]) -> frozenset[str]:
        monkeypatch.setattr(driver_of(rows), "cursor_factory", Noted)
        return claim_singletons(rows, process, NOW, wanted)

    await database.work(lambda rows: renew_lease(rows, process, NOW, []))
    one, two = {"archives"}, {"archives", "checker"}
    for wanted, count in ((one, 4), (one, 1), (two, 4), (two, 1), (set(), 4), (set(), 1)):
        statements.clear()
        assert await database.work(claim, wanted) == wanted
        assert len(statements) == count


@pytest.mark.skipif(this_process().machine is None, reason="this system does not list running processes")
async def test_the_singletons_of_a_killed_process_of_this_machine_move_at_once(database: Database) -> None:
    here = this_process()
    killed = replace(here, member_id="proc_killed", started="0")
    assert (await beat_of(database, killed, {"dispatcher"})).claimed == {"dispatcher"}
    assert (await beat_of(database, here, {"dispatcher"})).claimed == {"dispatcher"}


async def test_a_heartbeat_waits_for_no_other_work(database: Database) -> None:
    """Slow sweeps and dispatches take every connection for work, and more of them wait in line."""
    free = trio.Event()
    begun = trio.Semaphore(0)
    sizes = int(database._works.total_tokens)

    def occupy(_: Connection) -> None:
        begun.release()
        await_in_call(free.wait)

    process = elsewhere("proc_a")
    presence = Presence(process, ServiceClock(process.member_id))
    heartbeat = Heartbeat(database=database, presence=presence, providers=tuple)
    async with trio.open_nursery() as nursery:
        try:
            for _ in range(sizes + 5):
                nursery.start_soon(database.work, occupy)
            for _ in range(sizes):
                await begun.acquire()
            async with trio.open_nursery() as beating:
                await beating.start(heartbeat.run)  # returns after the first renewal
                await heartbeat.stop()  # the nursery ends once the lease has ended
        finally:
            free.set()
    assert (await beat_of(database, elsewhere("proc_b"))).members == []


async def test_a_connection_that_is_lost_in_a_renewal_is_replaced(database: Database) -> None:
    process = this_process()

    class CutAfterwards(ServiceClock):
        def measure(self, rows: Connection) -> None:
            super().measure(rows)
            with psycopg.connect(database.url) as other:
                other.execute("select pg_terminate_backend(%s, 5000)", (driver_of(rows).info.backend_pid,))

    def renew(clock: ServiceClock) -> Callable[[Connection], Beat]:
        return partial(beat, process=process, clock=clock, providers=[], membership=READY, wanted={"sweeper"})

    with pytest.raises(DatabaseAway):
        await database.renew(renew(CutAfterwards(process.member_id)))
    await database.open()
    assert (await database.renew(renew(ServiceClock(process.member_id)))).claimed == {"sweeper"}
