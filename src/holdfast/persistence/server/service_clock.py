"""Service time: one clock for all processes on a database, unaffected by changes of wall clocks.

Due times, deadlines and leases are compared by any process, so they are stored in service time. It is the
database's clock plus ``service_clock.ahead_s``. Between two measurements a process adds its machine's time since
boot, so nothing it decides depends on a wall clock.

When a measurement shows that the database's clock was set (by more than :data:`STEP_S`, with no other process
having measured in between), the step is subtracted in ``ahead_s``, and service time continues unchanged for all
processes. ``ahead_s`` then shrinks by :data:`DECAY_SHARE` of the time that passes, so that service time approaches
a database clock that has been corrected. While no process runs, a step cannot be detected; service time then starts
no earlier than it ended. So the first process to measure is refused while the clocks are far from each other: what
expires by a wrong clock is gone for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Row, text

from holdfast.ledger.values import format_time
from holdfast.telemetry.reports.causes import CannotServe

log = structlog.get_logger(__name__)

STEP_S = 1.0
"""The difference from which the database's clock counts as set; service time follows smaller ones."""
DECAY_SHARE = 0.1
PROMPT_S = 0.1
"""A reading that took longer may be off by half of that: the loop was busy, or the process frozen."""
READINGS_MAX = 3
RECENT_S = 12.0
"""If another process has measured within this time, a difference is not a step: it would have found one."""

OFF_MAX_S = 3600.0
"""How far the clocks may be from each other at a start, unless a setting says otherwise."""

_READ = text(
    "with locked as materialized (select * from service_clock where id = 1 for update) "
    "select clock_timestamp() as database_now, c.ahead_s, c.process_id, c.database_at, c.service_at from locked c"
)
"""The database's clock is read once the lock is held."""
_FIRST = text(
    "insert into service_clock (id, ahead_s, process_id, database_at, service_at) "
    "values (1, 0, '', clock_timestamp(), clock_timestamp()) on conflict do nothing"
)
_WRITE = text(
    "update service_clock set ahead_s = :ahead_s, process_id = :process_id, database_at = :database_at, "
    "service_at = :service_at where id = 1"
)


_since_boot_s = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns the seconds of a clock that cannot be set; on Linux it includes the time the machine slept."""

_MILLISECOND: Final = timedelta(milliseconds=1)


def _wall() -> datetime:
    return datetime.now(UTC)


class ClocksDiffer(CannotServe):
    """Service time cannot begin, because one of the clocks must be wrong."""


class ServiceClock:
    """One process's view of service time. Until the first measurement it is the wall clock.

    :meth:`now` may be called on any thread; :meth:`measure` runs inside a read-write transaction.
    """

    def __init__(
        self,
        member_id: str,
        *,
        off_max_s: float = OFF_MAX_S,
        counter: Callable[[], float] = _since_boot_s,
        wall: Callable[[], datetime] = _wall,
    ) -> None:
        self._member_id = member_id
        self._off_max_s = off_max_s
        self._counter = counter
        self._wall = wall
        # A service time in whole milliseconds, and the counter at that time; replaced together.
        self._anchor = _anchor(wall(), counter())
        self.is_measured = False

    def now(self) -> datetime:
        """Return service time, aware UTC, truncated to milliseconds."""
        at, counted = self._anchor
        return at + int((self._counter() - counted) * 1000) * _MILLISECOND

    def measure(self, rows: Connection) -> None:
        """Compare with the database's clock and store the measurement.

        The first time it raises :class:`ClocksDiffer` if another process does not keep service time now, and the
        clocks are far from each other; else what the database raises.
        """
        for _ in range(READINGS_MAX):
            started = self._counter()
            row = rows.execute(_READ).first()
            took_s = self._counter() - started
            if row is not None and took_s <= PROMPT_S:
                break
            if row is None:
                rows.execute(_FIRST)
        assert row is not None
        counted = started + took_s / 2
        ahead_s: float = row.ahead_s
        by_database: datetime = row.database_now + timedelta(seconds=ahead_s)
        since_s = (row.database_now - row.database_at).total_seconds()
        other_measured = row.process_id not in ("", self._member_id) and 0 <= since_s <= RECENT_S
        if not self.is_measured:
            # Never before the last service time. Only the database's clock shows how long no process ran.
            service_at = max(by_database, row.service_at)
            if not other_measured:
                self._refuse_differing(row, by_database)
        else:
            at, from_counted = self._anchor
            own = at + timedelta(seconds=counted - from_counted)
            off_s = (by_database - own).total_seconds()
            if abs(off_s) <= STEP_S or other_measured:
                service_at = by_database
            else:
                service_at = own
                log.warning("the database's clock was set", by_s=round(off_s, 1))
        ahead_s = _decayed((service_at - row.database_now).total_seconds(), since_s)
        self._anchor = _anchor(row.database_now + timedelta(seconds=ahead_s), counted)
        self.is_measured = True
        measured = {
            "ahead_s": ahead_s,
            "process_id": self._member_id,
            "database_at": row.database_now,
            "service_at": row.database_now + timedelta(seconds=ahead_s),
        }
        rows.execute(_WRITE, measured)

    def _refuse_differing(self, row: Row[Any], by_database: datetime) -> None:
        wall = self._wall()
        if (row.service_at - by_database).total_seconds() > self._off_max_s:
            other = f"had reached {format_time(row.service_at)} when it was last measured"
        elif abs((by_database - wall).total_seconds()) > self._off_max_s:
            other = f"this machine's clock is at {format_time(wall)}"
        else:
            return
        raise ClocksDiffer(
            f"Service time would go on at {format_time(by_database)}, by the database's clock, which is at "
            f"{format_time(row.database_now)}; but {other}. That is more than "
            f"HOLDFAST_CLOCK_OFF_MAX_S={self._off_max_s:g} apart: set the wrong clock right; see `holdfast clock`."
        )


def _anchor(at: datetime, counted: float) -> tuple[datetime, float]:
    """Return the last whole millisecond until a time, and the counter then, if it is ``counted`` at that time."""
    over_us = at.microsecond % 1000
    return at - timedelta(microseconds=over_us), counted - over_us / 1e6


def _decayed(ahead_s: float, since_s: float) -> float:
    """Return ``ahead_s`` reduced for the time since the last measurement."""
    decay_s = DECAY_SHARE * max(0.0, min(since_s, RECENT_S))
    return ahead_s - max(-decay_s, min(decay_s, ahead_s))
