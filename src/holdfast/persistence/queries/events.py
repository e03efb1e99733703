"""Events with their newest attempts: a task's, or those of all accounts whose delivery fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Unpack

from sqlalchemy import ColumnElement, Connection, Row, exists, func, select, tuple_

from holdfast.ledger.tasks.events import DeliveryStatus
from holdfast.ledger.tasks.task import EventKind
from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.rows import OutboxAttemptRow
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import outbox, outbox_attempts

ATTEMPTS_SHOWN_MAX: Final = 50
"""How many of an event's attempts are read, the newest ones."""
COUNTED_MAX: Final = 10_000
_HOST = func.regexp_replace(func.lower(func.substring(outbox.c.url, "^[A-Za-z]+://([^/?#]*)")), ":443$", "")
"""SQL: the host of an event's receiver, with its port unless that is the usual one."""


class EventRecord(NamedTuple):
    """An event, its delivery status, and its newest attempts, newest first."""

    event_id: str
    kind: EventKind
    url: str
    status: DeliveryStatus
    created_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    reason: str | None
    attempts: tuple[OutboxAttemptRow, ...]


class HostFailures(NamedTuple):
    """How many events of how many accounts a host does not accept."""

    host: str
    accounts: int
    events: int


class FailureCounts(NamedTuple):
    """How many events are failing, and how many were given up; ``hosts`` has those with most events first."""

    failing: int
    given_up: int
    hosts: tuple[HostFailures, ...]


class FailedEvent(NamedTuple):
    """An event of a task, as operators see it."""

    account_id: str
    request_id: str
    event: EventRecord


_EVENT = selected(outbox, [name for name in EventRecord._fields if name != "attempts"])
_OPERATED = selected(outbox, ["account_id", "request_id", *(n for n in EventRecord._fields if n != "attempts")])
# The first attempt of a new event is counted when it begins, and recorded when it has failed.
_FAILED = (outbox.c.status == "given_up") | (
    outbox.c.due_at.is_not(None)
    & (outbox.c.attempts > 0)
    & exists().where(
        outbox_attempts.c.account_id == outbox.c.account_id, outbox_attempts.c.event_id == outbox.c.event_id
    )
)
_ATTEMPT = selected(outbox_attempts, OutboxAttemptRow.__struct_fields__).join_from(
    outbox_attempts,
    outbox,
    (outbox.c.account_id == outbox_attempts.c.account_id)
    & (outbox.c.event_id == outbox_attempts.c.event_id)
    & (outbox_attempts.c.number > outbox.c.attempts - ATTEMPTS_SHOWN_MAX),
)


def events_of_task(
    rows: Connection, account_id: str, request_id: str, *, event_id: str | None = None
) -> list[EventRecord]:
    """Return the account's events of a task, newest first; or the one named."""
    where = (outbox.c.account_id == account_id) & (outbox.c.request_id == request_id)
    if event_id is not None:
        where &= outbox.c.event_id == event_id
    found = rows.execute(_EVENT.where(where).order_by(outbox.c.created_at.desc(), outbox.c.event_id.desc())).all()
    attempts = _attempts_of(rows, where) if found else {}
    return [EventRecord._make((*row, attempts.get((account_id, row.event_id), ()))) for row in found]


def failed_events(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[FailedEvent]:
    """Return a page of the events that were given up or had an attempt that failed, newest first.

    ``filters`` are exact matches by column name, and of the ``host``.
    """
    matches = [(_HOST if name == "host" else outbox.c[name]) == value for name, value in filters.items()]
    found = page(rows, _OPERATED.where(_FAILED, *matches), (outbox.c.created_at, outbox.c.event_id), **options)
    return _with_attempts(rows, found)


def event_of_account(rows: Connection, account_id: str, event_id: str) -> FailedEvent | None:
    """Return an event, delivered or not; None if the account has no such event."""
    found = rows.execute(_OPERATED.where(outbox.c.account_id == account_id, outbox.c.event_id == event_id)).all()
    return next(iter(_with_attempts(rows, found)), None)


def failed_event_keys(
    rows: Connection, now: datetime, *, most: int, account_id: str | None = None, host: str | None = None
) -> list[tuple[str, str]]:
    """Return account and id of failed events that are not due at ``now``, the oldest first.

    They are those of an account, of a host, or both.
    """
    where = _FAILED & (outbox.c.due_at.is_(None) | (outbox.c.due_at > now))
    if account_id is not None:
        where &= outbox.c.account_id == account_id
    if host is not None:
        where &= host == _HOST
    order = (outbox.c.created_at, outbox.c.event_id)
    found = rows.execute(select(outbox.c.account_id, outbox.c.event_id).where(where).order_by(*order).limit(most))
    return [(row.account_id, row.event_id) for row in found]


def failure_counts(rows: Connection, *, hosts_max: int = 20) -> FailureCounts:
    """Count the events whose delivery fails or was given up, at most :data:`COUNTED_MAX` in all."""
    columns = (outbox.c.account_id, outbox.c.status, _HOST.label("host"))
    failed = select(*columns).where(_FAILED).limit(COUNTED_MAX).subquery()
    number = func.count()
    statuses = select(failed.c.status, number).group_by(failed.c.status)
    by_status: dict[str, int] = {row[0]: row[1] for row in rows.execute(statuses)}
    by_host = rows.execute(
        select(failed.c.host, func.count(failed.c.account_id.distinct()), number)
        .group_by(failed.c.host)
        .order_by(number.desc(), failed.c.host)
        .limit(hosts_max)
    )
    hosts = tuple(HostFailures(*row) for row in by_host)
    return FailureCounts(by_status.get("pending", 0), by_status.get("given_up", 0), hosts)


def _with_attempts(rows: Connection, found: Sequence[Row[*tuple[Any, ...]]]) -> list[FailedEvent]:
    if not found:
        return []
    keys = [(row.account_id, row.event_id) for row in found]
    attempts = _attempts_of(rows, tuple_(outbox.c.account_id, outbox.c.event_id).in_(keys))
    return [
        FailedEvent(
            row.account_id,
            row.request_id,
            EventRecord._make((*row[2:], attempts.get((row.account_id, row.event_id), ()))),
        )
        for row in found
    ]


def _attempts_of(
    rows: Connection, where: ColumnElement[bool]
) -> dict[tuple[str, str], tuple[OutboxAttemptRow, ...]]:
    """Return the newest attempts by account and event, newest first."""
    attempts: defaultdict[tuple[str, str], list[OutboxAttemptRow]] = defaultdict(list)
    for row in rows.execute(_ATTEMPT.where(where).order_by(outbox_attempts.c.number.desc())):
        attempts[row.account_id, row.event_id].append(OutboxAttemptRow(*row))
    return {key: tuple(each) for key, each in attempts.items()}
