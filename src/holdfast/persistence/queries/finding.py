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
"""How many tasks, and how many orders, are searched for what they have no index for, as for a request."""
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
_RECEIPT: Final = text("select account_id, order_id from receipts where number = :sought")
_OF_ANY_FORM: Final = (_OPERATION, _WEBHOOK, _PAYMENT, _PAYMENT_EVENT, _EVENT, _RECEIPT)


def _of_record(table: str, column: str) -> TextClause:
    return text(
        "select coalesce(r.account_id, t.account_id), r.task_id "
        f"from {table} r left join tasks t on t.request_id = r.task_id where r.{column} = :sought"
    )


_BY_PREFIX: Final = {
    # The first two have no index for it; there are few rows.
    "key_": text("select account_id from api_keys where key_id = :sought limit 1"),
    "ses_": text("select account_id from sessions where session_id = :sought limit 1"),
    "file_": text("select account_id from files where file_id = :sought"),
    "arc_": text("select account_id from archives where archive_id = :sought"),
    "asset_": text("select account_id, request_id from assets where asset_id = :sought"),
    "act_": _of_record("operator_actions", "action_id"),
    "rep_": _of_record("reports", "report_id"),
}

# There is no index for these.
_JOB_OR_HOLD: Final = text(
    "select account_id, request_id as reference from ("
    "select account_id, request_id, state, request from tasks order by request_id desc limit :scanned) newer "
    "where state ->> 'provider_ref' = :sought or request ->> 'hold_id' = :sought limit :most"
)
_REFUND_OR_DISPUTE: Final = text(
    "select account_id, order_id as reference from ("
    "select account_id, order_id, state from orders order by order_id desc limit :scanned) newer "
    "where strpos(cast(state as text), :quoted) > 0 limit :most"
)


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
    """Return what an id is about, the number of a receipt or an id of the card company's too.

    None if nothing has it, or what has it is of no account. Those of accounts, tasks, orders and reviews say it
    themselves.
    """
    by_prefix = [query for prefix, query in _BY_PREFIX.items() if sought.startswith(prefix)]
    for query in by_prefix or _OF_ANY_FORM:
        row = rows.execute(query, {"sought": sought}).first()
        if row is not None:
            return Found(row[0], reference=row[1] if len(row) > 1 else None) if row[0] else None
    return None


def newest_with(rows: Connection, sought: str, most: int) -> list[Found]:
    """Return the tasks of a provider's job or of a hold, or the orders of a refund or dispute, among the newest."""
    given = {"sought": sought, "quoted": f'"{sought}"', "scanned": SCANNED_MAX, "most": most}
    for query in (_JOB_OR_HOLD, _REFUND_OR_DISPUTE):
        found = [Found(row.account_id, reference=row[1]) for row in rows.execute(query, given)]
        if found:
            return found
    return []


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
