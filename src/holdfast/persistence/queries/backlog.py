"""What is unfinished in the database: tasks by status, and events to customers. Bounded, whatever waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, text

from holdfast.persistence.records.reading import OCCUPIES

COUNTED_MAX = 10_000
REVIEWS_READ_MAX = 1_000

_QUEUED = text(
    # By the index of waiting tasks, provider by provider, so that a long queue at one hides no other.
    "with recursive providers as ("
    "  (select provider from tasks where wake_at is not null and not dispatched order by provider limit 1)"
    "  union all"
    "  select n.provider from providers p cross join lateral (select t.provider from tasks t "
    "    where t.wake_at is not null and not t.dispatched and t.provider > p.provider "
    "    order by t.provider limit 1) n"
    ") select p.provider, q.number, q.oldest_at from providers p cross join lateral ("
    "  select count(*) as number, min(created_at) as oldest_at from ("
    "    select t.created_at from tasks t where t.provider = p.provider and t.wake_at is not null "
    "    and not t.dispatched limit :most) w) q"
)
_DISPATCHED = text(
    f"select provider, status, count(*) as number, count(*) filter (where occupies) as occupying from ("
    f"  select provider, status, {OCCUPIES} as occupies from tasks t "
    f"  where wake_at is not null and dispatched limit :most) d "
    "group by provider, status"
)
_EVENTS = text(
    "select count(*) as number, min(created_at) as oldest_at from ("
    "  select created_at from outbox where due_at is not null limit :most) e"
)

_OLDEST_REVIEW = text(
    # A task in review entered it with its last change of status.
    "select min((state #>> '{status_history,-1,ts}')::timestamptz) from ("
    "  select state from tasks where status = 'review' order by created_at, request_id limit :most) r"
)

_FOR_OPERATORS = text(
    "select count(*) filter (where status = 'held') as held, "
    "count(*) filter (where reconcile_status = 'mismatch') as mismatched, "
    "(select count(*) from (select from tasks where status = 'review' limit :most) r) as in_review "
    "from (select status, reconcile_status from orders "
    "where status = 'held' or reconcile_status = 'mismatch' limit :most) o"
)

_SWITCHED_OFF = text("select count(*) from (select from auto_top_ups where off_at >= :since limit :most) o")


class OperatorBacklog(NamedTuple):
    """How many orders are held, how many do not match their provider, and how many tasks are in review."""

    held: int
    mismatched: int
    in_review: int


class Backlog(NamedTuple):
    """Unfinished tasks by provider and status, and what else waits. Ages are in seconds.

    ``slots_used`` counts those whose job may still be running, by provider, and ``queued_age_s`` is the age of the
    oldest task that waits for a slot. ``review_age_s`` is how long the review has waited that was opened first, of
    the :data:`REVIEWS_READ_MAX` oldest tasks in review.
    """

    tasks: Mapping[tuple[str, str], int]
    slots_used: Mapping[str, int]
    queued_age_s: Mapping[str, float]
    events: int
    events_age_s: float
    review_age_s: float
    operators: OperatorBacklog


def measure_backlog(rows: Connection, now: datetime) -> Backlog:
    """Count what is unfinished at ``now`` (service time), at most :data:`COUNTED_MAX` of each kind."""
    most = {"most": COUNTED_MAX}
    queued = rows.execute(_QUEUED, most).all()
    tasks = {(row.provider, "queued"): row.number for row in queued}
    slots_used = Counter[str]()
    for row in rows.execute(_DISPATCHED, most):
        slots_used[row.provider] += row.occupying
        tasks[row.provider, row.status] = tasks.get((row.provider, row.status), 0) + row.number
    events = rows.execute(_EVENTS, most).one()
    return Backlog(
        tasks,
        slots_used,
        {row.provider: _age_s(row.oldest_at, now) for row in queued},
        events.number,
        _age_s(events.oldest_at, now),
        _age_s(rows.execute(_OLDEST_REVIEW, {"most": REVIEWS_READ_MAX}).scalar(), now),
        operator_backlog(rows),
    )


def operator_backlog(rows: Connection) -> OperatorBacklog:
    """Count what waits for an operator, at most :data:`COUNTED_MAX` orders and as many tasks."""
    return OperatorBacklog._make(rows.execute(_FOR_OPERATORS, {"most": COUNTED_MAX}).one())


def switched_off_since(rows: Connection, since: datetime) -> int:
    """Count the top-ups switched off other than by their owners, at most :data:`COUNTED_MAX`."""
    return int(rows.execute(_SWITCHED_OFF, {"since": since, "most": COUNTED_MAX}).scalar_one())


def _age_s(at: datetime | None, now: datetime) -> float:
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


# How long PostgreSQL takes to flush its log to disk, by its own statistics.

_VERSION = text("select current_setting('server_version_num')::int, current_setting('track_wal_io_timing')::bool")
_SINCE_18 = text(
    "select coalesce(sum(fsyncs), 0), coalesce(sum(fsync_time), 0) from pg_stat_io where object = 'wal'"
)
_BEFORE_18 = text("select wal_sync, wal_sync_time from pg_stat_wal")


class WalSyncs(msgspec.Struct, frozen=True):
    """The server's flushes since its statistics began, and the seconds that they took."""

    count: int
    seconds: float


def read_wal_syncs(rows: Connection) -> WalSyncs | None:
    """Return the server's totals; None if it does not measure (``track_wal_io_timing``)."""
    version, is_measured = rows.execute(_VERSION).one()
    if not is_measured:
        return None
    count, took_ms = rows.execute(_SINCE_18 if version >= 180_000 else _BEFORE_18).one()
    return WalSyncs(int(count), float(took_ms) / 1000)
