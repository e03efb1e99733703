"""Events with their newest attempts: a task's, or those of all accounts whose delivery fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, Row, Select, exists, func, select, tuple_

from holdfast.ledger.alerts.account_events import AnyEventKind
from holdfast.ledger.tasks.events import DeliveryStatus
from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.rows import OutboxAttemptRow
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import outbox, outbox_attempts
from holdfast.persistence.records.unreadable import UnreadableEntry, UnreadableRow

ATTEMPTS_SHOWN_MAX: Final = 50
"""How many of an event's attempts are read, the newest ones."""
COUNTED_MAX: Final = 10_000
HOSTS_MAX: Final = 20
MAIL: Final = "mail"
"""The host of events that are sent by mail."""
_HOST = func.coalesce(
    func.regexp_replace(func.lower(func.substring(outbox.c.url, "^[A-Za-z]+://([^/?#]*)")), ":443$", ""), MAIL
)
"""SQL: the host of an event's receiver, with its port unless that is the usual one."""


class EventAddress(NamedTuple):
    """An event, and whose deliveries wait for each other."""

    account_id: str
    event_id: str
    receiver: str


class EventRecord(NamedTuple):
    """An event, its delivery status, and its newest attempts, newest first.

    It is of a task or of the account itself, for a webhook or another receiver.
    """

    account_id: str
    event_id: str
    receiver: str
    request_id: str | None
    webhook_id: str | None
    kind: AnyEventKind
    url: str
    status: DeliveryStatus
    created_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    reason: str | None
    attempts: tuple[OutboxAttemptRow, ...]

    @property
    def address(self) -> EventAddress:
        """What is needed to send it again."""
        return EventAddress(self.account_id, self.event_id, self.receiver)


class FailingHost(msgspec.Struct, frozen=True):
    """A host that does not accept events."""

    host: str
    """Its name, with its port unless that is the usual one."""
    accounts: int
    """How many accounts send to it."""
    events: int
    """How many events it has not accepted."""


class WebhookSummary(msgspec.Struct, frozen=True):
    """How many events are not delivered, ten thousand in all at most."""

    failing: int
    """How many are tried again."""
    given_up: int
    """How many were given up."""
    hosts: list[FailingHost]
    """The hosts with most of them, at most twenty."""


EVENT_ORDER: Final = (outbox.c.created_at, outbox.c.event_id)
EVENT = selected(outbox, [name for name in EventRecord._fields if name != "attempts"])
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
    """Return the account's events of a task for its own ``webhook_url``, newest first; or the one named."""
    where = (
        (outbox.c.account_id == account_id) & (outbox.c.request_id == request_id) & outbox.c.webhook_id.is_(None)
    )
    if event_id is not None:
        where &= outbox.c.event_id == event_id
    newest_first = EVENT.where(where).order_by(outbox.c.created_at.desc(), outbox.c.event_id.desc())
    return with_attempts(rows, rows.execute(newest_first).all())


def failed_events(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[EventRecord | UnreadableEntry]:
    """Return a page of the events that were given up or had an attempt that failed, newest first.

    ``filters`` are exact matches by column name, and of the ``host``.
    """
    return listed_with_attempts(rows, page(rows, failing(filters), EVENT_ORDER, **options))


def failing(filters: Mapping[str, str]) -> Select[*tuple[Any, ...]]:
    """Select the events that :func:`failed_events` reads."""
    matches = [(_HOST if name == "host" else outbox.c[name]) == value for name, value in filters.items()]
    return EVENT.where(_FAILED, *matches)


def event_of_account(rows: Connection, account_id: str, event_id: str) -> EventRecord | None:
    """Return an event, delivered or not; None if the account has no such event."""
    found = rows.execute(EVENT.where(outbox.c.account_id == account_id, outbox.c.event_id == event_id)).all()
    return next(iter(with_attempts(rows, found)), None)


def failed_event_addresses(
    rows: Connection, now: datetime, *, most: int, account_id: str | None = None, host: str | None = None
) -> list[EventAddress]:
    """Return failed events that are not due at ``now``, the oldest first.

    They are those of an account, of a host, or both.
    """
    where = _FAILED & (outbox.c.due_at.is_(None) | (outbox.c.due_at > now))
    if account_id is not None:
        where &= outbox.c.account_id == account_id
    if host is not None:
        where &= host == _HOST
    found = rows.execute(selected(outbox, EventAddress._fields).where(where).order_by(*EVENT_ORDER).limit(most))
    return [EventAddress(*row) for row in found]


def failure_counts(rows: Connection) -> WebhookSummary:
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
        .limit(HOSTS_MAX)
    )
    hosts = [FailingHost(*row) for row in by_host]
    return WebhookSummary(by_status.get("pending", 0), by_status.get("given_up", 0), hosts)


def listed_with_attempts(
    rows: Connection, found: Sequence[Row[*tuple[Any, ...]] | UnreadableEntry]
) -> list[EventRecord | UnreadableEntry]:
    """Return a page of events with their newest attempts; one with an attempt that cannot be read is unreadable."""
    readable = [each for each in found if not isinstance(each, UnreadableEntry)]
    if len(readable) == len(found):
        with suppress(UnreadableRow):
            return [*with_attempts(rows, readable)]
    listed: list[EventRecord | UnreadableEntry] = []
    for each in found:
        if isinstance(each, UnreadableEntry):
            listed.append(each)
            continue
        try:
            listed += with_attempts(rows, [each])
        except UnreadableRow:
            listed.append(UnreadableEntry(each.created_at, each.event_id))
    return listed


def with_attempts(rows: Connection, found: Sequence[Row[*tuple[Any, ...]]]) -> list[EventRecord]:
    """Return the events of rows of :data:`EVENT`, with their newest attempts."""
    if not found:
        return []
    keys = [(row.account_id, row.event_id) for row in found]
    attempts: defaultdict[tuple[str, str], list[OutboxAttemptRow]] = defaultdict(list)
    of_these = _ATTEMPT.where(tuple_(outbox.c.account_id, outbox.c.event_id).in_(keys))
    for row in rows.execute(of_these.order_by(outbox_attempts.c.number.desc())):
        attempts[row.account_id, row.event_id].append(OutboxAttemptRow(*row))
    return [EventRecord._make((*row, tuple(attempts[row.account_id, row.event_id]))) for row in found]
