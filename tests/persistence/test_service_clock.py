"""Service time is steady although the clocks of the database and of this machine are set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.server import service_clock
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.service_clock import ServiceClock

HOURS_2 = 7200.0
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
    times.database_off_s = -HOURS_2
    times.passes(600)
    next_one = new_clock("next")
    await database.work(next_one.measure)
    assert next_one.now() >= ended_at
