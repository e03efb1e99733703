"""Service time is steady although the clocks of the database and of this machine are set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import trio
from sqlalchemy import Connection, text
from trio.testing import MockClock

from holdfast.actors.workers.heartbeat import Heartbeat, Presence
from holdfast.persistence.claims.processes import BEAT_S, Beat, this_process
from holdfast.persistence.operators.clocks import read_clocks, reset_service_time
from holdfast.persistence.server import service_clock
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.service_clock import ClocksDiffer, ServiceClock

HOURS_2 = 7200.0
MINUTES_50 = 3000.0
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Times:
    """The times that the test controls: since boot, of the wall clock, and of the database."""

    def __init__(self) -> None:
        self.passed_s = 1000.0
        self.database_off_s = 0.0
        self.wall_off_s = 0.0
        self.next_answer_late_s = 0.0

    def passes(self, seconds: float) -> None:
        self.passed_s += seconds

    def true(self) -> datetime:
        return NOON + timedelta(seconds=self.passed_s)

    def wall(self) -> datetime:
        return self.true() + timedelta(seconds=self.wall_off_s)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    sql = service_clock._READ.text.replace("clock_timestamp()", "cast(:at as timestamptz)")
    first = service_clock._FIRST.text.replace("clock_timestamp()", "cast(:at as timestamptz)")

    class Asked:
        """A statement that gets the database's time as a parameter."""

        def __init__(self, sql: str) -> None:
            self.sql = sql

        def _execute_on_connection(self, connection: Connection, parameters: Any, options: Any) -> Any:
            at = times.true() + timedelta(seconds=times.database_off_s)
            times.passes(times.next_answer_late_s)
            times.next_answer_late_s = 0.0
            return text(self.sql).bindparams(at=at)._execute_on_connection(connection, parameters, options)

    monkeypatch.setattr(service_clock, "_READ", Asked(sql))
    monkeypatch.setattr(service_clock, "_FIRST", Asked(first))
    return times


@pytest.fixture
def new_clock(times: Times) -> Callable[[str], ServiceClock]:
    return lambda name: ServiceClock(name, counter=lambda: times.passed_s, wall=times.wall)


def off_s(clock: ServiceClock, times: Times) -> float:
    """Return how far a clock is from the true time."""
    return (clock.now() - times.true()).total_seconds()


def test_service_time_is_the_last_whole_millisecond(times: Times, new_clock: Callable[[str], ServiceClock]) -> None:
    times.passes(0.0007)
    clock = new_clock("a")
    times.passes(0.0002)
    assert clock.now() == NOON + timedelta(seconds=1000)
    times.passes(0.0004)
    assert clock.now() == NOON + timedelta(seconds=1000, milliseconds=1)


@pytest.mark.parametrize("step_s", [HOURS_2, -HOURS_2])
async def test_a_wall_clock_that_is_set_changes_nothing(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock], step_s: float
) -> None:
    clock = new_clock("a")
    await database.work(clock.measure)
    times.wall_off_s = step_s
    assert off_s(clock, times) == 0
    times.passes(4)
    await database.work(clock.measure)
    assert off_s(clock, times) == 0


@pytest.mark.parametrize("step_s", [HOURS_2, -HOURS_2])
async def test_a_database_clock_that_is_set_moves_no_process(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock], step_s: float
) -> None:
    clocks = [new_clock("a"), new_clock("b")]
    for clock in clocks:
        await database.work(clock.measure)
    times.passes(4)
    times.database_off_s = step_s
    for clock in (*clocks, new_clock("c")):
        await database.work(clock.measure)
        assert abs(off_s(clock, times)) < 2
    # The correction shrinks as time passes, and the clocks stay together.
    for _ in range(100):
        times.passes(4)
        for clock in clocks:
            await database.work(clock.measure)
        assert abs(off_s(clocks[0], times) - off_s(clocks[1], times)) < 1
    assert 30 < abs(off_s(clocks[0], times)) < 50
    # After it is corrected, service time follows without a jump.
    before = off_s(clocks[0], times)
    times.database_off_s = 0
    await database.work(clocks[0].measure)
    assert abs(off_s(clocks[0], times) - before) < 2


async def test_an_answer_that_is_read_late_moves_no_process(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    """While it waited, the process was busy or frozen."""
    busy, other = new_clock("busy"), new_clock("other")
    for clock in (busy, other):
        await database.work(clock.measure)
    for late_s in (1.5, 3.0):
        times.next_answer_late_s = late_s
        for clock in (busy, other):
            await database.work(clock.measure)
            assert off_s(clock, times) == 0


async def test_a_suspended_process_follows_the_others(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    stood_s = 0.0
    steady = new_clock("steady")
    halting = ServiceClock("halting", counter=lambda: times.passed_s - stood_s, wall=times.wall)
    for clock in (steady, halting):
        await database.work(clock.measure)
    for _ in range(100):
        times.passes(4)
        stood_s += 4
        await database.work(steady.measure)
    assert off_s(halting, times) == -400
    await database.work(halting.measure)
    assert (off_s(halting, times), off_s(steady, times)) == (0, 0)


async def test_a_clock_set_back_while_no_process_ran_continues(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    last = new_clock("last")
    await database.work(last.measure)
    ended_at = last.now()
    times.database_off_s = -MINUTES_50
    times.passes(600)
    next_one = new_clock("next")
    await database.work(next_one.measure)
    assert next_one.now() >= ended_at


DAYS_3 = 3 * 86400.0


async def started(database: Database, clock: ServiceClock) -> str | None:
    """Measure for the first time; return why that was refused."""
    try:
        await database.work(clock.measure)
    except ClocksDiffer as refused:
        return str(refused)
    return None


@pytest.mark.parametrize(
    ("database_off_s", "wall_off_s", "reason"),
    [
        (DAYS_3, 0.0, "this machine's clock is at 2026-11-21T14:16:40.000Z"),
        (0.0, DAYS_3, "this machine's clock is at 2026-11-24T14:16:40.000Z"),
        (0.0, -DAYS_3, "this machine's clock is at 2026-11-18T14:16:40.000Z"),
        # Both are on one machine, or wrong alike.
        (-DAYS_3, -DAYS_3, "had reached 2026-11-21T12:16:40.000Z when it was last measured"),
        (MINUTES_50, 0.0, None),
        (-MINUTES_50, 0.0, None),
        (0.0, MINUTES_50, None),
        (0.0, 0.0, None),
        # As after three days in which nothing ran.
        (DAYS_3, DAYS_3, None),
    ],
)
async def test_the_first_process_is_refused_while_a_clock_is_far_off(
    database: Database,
    times: Times,
    new_clock: Callable[[str], ServiceClock],
    *,
    database_off_s: float,
    wall_off_s: float,
    reason: str | None,
) -> None:
    await database.work(new_clock("last").measure)
    before = await database.read(clock_row)
    times.passes(HOURS_2)
    times.database_off_s, times.wall_off_s = database_off_s, wall_off_s
    refused = await started(database, new_clock("next"))
    if reason is None:
        assert refused is None
        return
    assert refused is not None
    assert reason in refused
    assert "HOLDFAST_CLOCK_OFF_MAX_S=3600" in refused
    assert await database.read(clock_row) == before
    # An operator may say that it is right so.
    allowed = ServiceClock("next", off_max_s=DAYS_3 + 10, counter=lambda: times.passed_s, wall=times.wall)
    assert await started(database, allowed) is None


def clock_row(rows: Connection) -> Any:
    return rows.execute(text("select * from service_clock")).one()


async def test_an_empty_database_is_refused_while_its_clock_is_far_off(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    times.database_off_s = DAYS_3
    assert await started(database, new_clock("first")) is not None
    times.database_off_s = 0
    assert await started(database, new_clock("first")) is None


async def test_a_process_that_joins_others_is_not_refused(
    database: Database, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    """They keep service time, whichever clock is set."""
    steady = new_clock("steady")
    await database.work(steady.measure)
    times.wall_off_s = times.database_off_s = DAYS_3
    times.passes(4)
    await database.work(steady.measure)
    joining = new_clock("joining")
    assert await started(database, joining) is None
    assert abs(off_s(joining, times)) < 2


async def test_service_time_that_is_ahead_can_be_set_back(
    database: Database, database_url: str, times: Times, new_clock: Callable[[str], ServiceClock]
) -> None:
    await database.work(new_clock("last").measure)
    now = datetime.now(UTC)
    ahead = {"at": now + timedelta(seconds=DAYS_3)}
    with connected(database_url) as rows:
        rows.execute(
            text("insert into processes values ('gone', null, 1, null, :at, '{}', 'ready', '{}', 1)"), ahead
        )
        insert = "insert into auto_top_ups (account_id, wake_at, state) values ('acct_ada', :at, '{}')"
        rows.execute(text(insert), ahead)
        rows.execute(
            text("update service_clock set ahead_s = :off_s, database_at = :at, service_at = :at"),
            {"off_s": DAYS_3, "at": now - timedelta(minutes=5)},
        )
        clocks = read_clocks(rows)
        assert clocks.service is not None
        assert clocks.service - clocks.database == timedelta(seconds=DAYS_3)
        assert reset_service_time(rows) is None
        clocks = read_clocks(rows)
        assert clocks.service == clocks.database
        assert rows.scalar(text("select count(*) from processes")) == 0
        assert rows.scalar(text("select wake_at <= clock_timestamp() from auto_top_ups")) is True
        rows.execute(text("update service_clock set database_at = now(), process_id = 'runs'"))
        assert reset_service_time(rows) == "running"


async def test_nothing_that_falls_due_is_started_before_service_time_is_known(autojump_clock: MockClock) -> None:
    presence = Presence(this_process(), ServiceClock("p"))
    beats: list[float] = []

    class AwayAtFirst:
        async def renew(self, _change: object) -> Beat:
            beats.append(trio.current_time())
            if len(beats) < 3:
                raise DatabaseAway("it starts")
            presence.clock.is_measured = True
            return Beat((), frozenset())

    heartbeat = Heartbeat(database=cast("Database", AwayAtFirst()), presence=presence, providers=lambda: ())
    async with trio.open_nursery() as nursery:
        await nursery.start(heartbeat.run)
        assert beats == [0, BEAT_S, 2 * BEAT_S]
        nursery.cancel_scope.cancel()
