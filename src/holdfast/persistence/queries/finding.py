"""What operators find: accounts by a part of a name, and what an id is about that a customer or a log shows."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from sqlalchemy import Connection, TextClause, bindparam, select, text

from holdfast.ledger.orders.order import Provider
from holdfast.ledger.public_types import AccountId
from holdfast.persistence.records.tables import (
    accounts,
    api_keys,
    operations,
    order_payments,
    outbox,
    payment_events,
    webhooks,
)

SCANNED_MAX: Final = 50_000
"""How many tasks, and how many orders, are searched for a request: they have no index for it."""
CLOCKS_APART_MS: Final = 10_000
"""How much earlier than its request the clock of another machine may make a task."""
_UUID7: Final = "7"


class Found(msgspec.Struct, frozen=True):
    """An account that was found."""

    account_id: AccountId
    email: str | None = None
    """Its e-mail address; null where an id was sought."""
    reference: str | None = None
    """The task or order that the id is about; null if it is about the account alone."""


def _of_request(table: str, column: str, order: str) -> TextClause:
    return text(
        f"select account_id, {column} as reference from ("
        f"select account_id, {column}, request from {table} where {column} >= :first order by {column} {order} "
        "limit :scanned) newer where left(request ->> 'traceparent', 35) = :trace "
        "or request ->> 'http_request_id' = :request_id limit :most"
    )


_TABLES: Final = (("tasks", "request_id", "task_"), ("orders", "order_id", "ord_"))
_AFTER: Final = [(_of_request(table, column, "asc"), prefix) for table, column, prefix in _TABLES]
_NEWEST: Final = [(_of_request(table, column, "desc"), prefix) for table, column, prefix in _TABLES]
_PROVIDERS: Final = get_args(Provider)
_OPERATION: Final = select(operations.c.account_id, operations.c.reference).where(
    operations.c.operation_id == bindparam("sought")
)
_WEBHOOK: Final = select(webhooks.c.account_id).where(webhooks.c.webhook_id == bindparam("sought")).limit(1)
_PAYMENT: Final = select(order_payments.c.account_id, order_payments.c.order_id).where(
    order_payments.c.provider.in_(_PROVIDERS), order_payments.c.provider_object_id == bindparam("sought")
)
_PAYMENT_EVENT: Final = select(payment_events.c.account_id, payment_events.c.order_id).where(
    payment_events.c.provider.in_(_PROVIDERS),
    payment_events.c.event_id == bindparam("sought"),
    payment_events.c.account_id.is_not(None),
)
_EVENT: Final = select(outbox.c.account_id, outbox.c.request_id).where(outbox.c.event_id == bindparam("sought"))


def made_by_request(rows: Connection, digits: str, most: int) -> list[Found]:
    """Return the tasks and orders of the request or trace with this id, 32 hex digits.

    The id of a request, and of a trace that began with it, has its time: what came next is searched. A caller's
    trace has none, although some look as if they had: the newest are searched.
    """
    first = f"{max(0, int(digits[:12], 16) - CLOCKS_APART_MS):012x}"
    given = {"trace": f"00-{digits}", "request_id": f"req_{digits}", "scanned": SCANNED_MAX, "most": most}
    searches = [(_AFTER, first), (_NEWEST, "")]
    for queries, least in searches if digits[12] == _UUID7 else searches[1:]:
        found = [
            Found(row.account_id, reference=row.reference)
            for query, prefix in queries
            for row in rows.execute(query, {**given, "first": prefix + least})
        ]
        if found:
            return found[:most]
    return []


def subject_of(rows: Connection, sought: str) -> Found | None:
    """Return what an operation, a webhook, the card company's payment, charge or event, or our event is about."""
    for query in (_OPERATION, _WEBHOOK, _PAYMENT, _PAYMENT_EVENT, _EVENT):
        row = rows.execute(query, {"sought": sought}).first()
        if row is not None:
            return Found(row.account_id, reference=row[1] if len(row) > 1 else None)
    return None


# Each search for a part of a name reads a range of an index, however large the table.

_LAST_CHARACTER = "\U0010ffff"
_BY_ADDRESS = text(
    # In the order of the index, which compares bytes whatever the database's collation is.
    "select id, email from accounts where email ~>=~ :start and email ~<~ :end order by email using ~<~ limit :most"
)


def accounts_of_address(rows: Connection, start: str, limit: int) -> list[Found]:
    """Return accounts whose e-mail address begins so, in alphabetical order."""
    given = {"start": start, "end": start + _LAST_CHARACTER, "most": limit}
    return [Found(row.id, row.email) for row in rows.execute(_BY_ADDRESS, given)]


def accounts_of_key(rows: Connection, prefix: str, limit: int) -> list[Found]:
    """Return the accounts of the API keys with this prefix, revoked or not."""
    query = (
        select(accounts.c.id, accounts.c.email)
        .join(api_keys, api_keys.c.account_id == accounts.c.id)
        .where(api_keys.c.prefix == prefix)
        .distinct()
        .order_by(accounts.c.id)
        .limit(limit)
    )
    return [Found(row.id, row.email) for row in rows.execute(query)]
