"""A task's events, each with its newest attempts."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import Connection

from holdfast.ledger.tasks.deliveries import DeliveryStatus
from holdfast.ledger.tasks.task import EventKind
from holdfast.persistence.records.mapping import selected
from holdfast.persistence.records.outbox import OutboxAttemptRow
from holdfast.persistence.records.tables import outbox, outbox_attempts

ATTEMPTS_SHOWN_MAX: Final = 50
"""How many of an event's attempts are read, the newest ones."""


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


_EVENT = selected(outbox, [name for name in EventRecord._fields if name != "attempts"])
_ATTEMPT = selected(outbox_attempts, OutboxAttemptRow._fields).join_from(
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
    attempts: defaultdict[str, list[OutboxAttemptRow]] = defaultdict(list)
    if found:
        for row in rows.execute(_ATTEMPT.where(where).order_by(outbox_attempts.c.number.desc())):
            attempts[row.event_id].append(OutboxAttemptRow._make(row))
    return [EventRecord._make((*row, tuple(attempts[row.event_id]))) for row in found]
