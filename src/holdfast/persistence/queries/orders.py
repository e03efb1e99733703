"""Payment orders: one by its id or its provider's ids, or a page of an account's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Text, cast, select, text

from holdfast.ledger.orders.order import Order, OrderRequest, OrderState
from holdfast.ledger.orders.transitions import RECONCILE_PERIOD_S
from holdfast.persistence.queries.paging import page, page_of_account
from holdfast.persistence.records.tables import orders
from holdfast.persistence.records.unreadable import LeftOut, read_rows

_REQUEST = msgspec.json.Decoder(OrderRequest)
_STATE = msgspec.json.Decoder(OrderState)

# The JSON columns are read as text and decoded once, directly into their types.
_ORDER = select(
    orders.c.order_id,
    orders.c.created_at,
    orders.c.version,
    orders.c.updated_at,
    orders.c.wake_at,
    cast(orders.c.request, Text).label("request"),
    cast(orders.c.state, Text).label("state"),
)
_BACKLOG = text(
    "select count(*) filter (where status = 'held') as held, "
    "count(*) filter (where reconcile_status = 'mismatch') as mismatched, "
    "(select count(*) from tasks where wake_at is not null and dispatched and status = 'review') as in_review "
    "from orders where status = 'held' or reconcile_status = 'mismatch'"
)
_TO_RECONCILE = text(
    "select order_id from orders where provider = 'cardprovider' "
    "and created_at > now() - make_interval(secs => :until_s) "
    "and (:every or (wake_at is not null and reconcile_status <> 'reconciled')) order by created_at, order_id"
)


class OperatorBacklog(NamedTuple):
    """How many orders are held, how many do not match their provider, and how many tasks are in review."""

    held: int
    mismatched: int
    in_review: int


def operator_backlog(rows: Connection) -> OperatorBacklog:
    """Count what waits for an operator."""
    return OperatorBacklog._make(rows.execute(_BACKLOG).one())


def orders_to_reconcile(rows: Connection, *, every: bool) -> list[str]:
    """Return the card orders of the reconcile period that are not reconciled yet, or with ``every`` all of them."""
    return list(rows.execute(_TO_RECONCILE, {"until_s": RECONCILE_PERIOD_S, "every": every}).scalars())


def order_by_id(rows: Connection, order_id: str) -> Order | None:
    """Return the order with this id, of any account; for signed webhooks, which carry no credential."""
    return _one(rows, orders.c.order_id == order_id)


def order_of_account(rows: Connection, account_id: str, order_id: str) -> Order | None:
    """Return the account's order with this id; None for another account's order and for an unknown id."""
    return _one(rows, orders.c.account_id == account_id, orders.c.order_id == order_id)


def order_by_payment(
    rows: Connection, provider: str, *, payment_id: str | None = None, charge_id: str | None = None
) -> Order | None:
    """Return the order of the provider's payment, or else of its charge."""
    found = None
    if payment_id is not None:
        found = _one(rows, orders.c.provider == provider, orders.c.provider_payment_id == payment_id)
    if found is None and charge_id is not None:
        found = _one(rows, orders.c.provider == provider, orders.c.provider_charge_id == charge_id)
    return found


def orders_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    filters: Mapping[str, str] | None = None,
) -> list[Order | LeftOut]:
    """Return up to ``limit`` orders, newest first by (created_at, order_id), after the position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches of ``status`` and ``provider``.
    """
    order = (orders.c.created_at, orders.c.order_id)
    found = page_of_account(
        rows, _ORDER, order, account_id, limit=limit, since=since, until=until, after=after, filters=filters
    )
    return _listed(found)


def held_orders(
    rows: Connection,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
) -> list[Order | LeftOut]:
    """Return up to ``limit`` held orders of any account, oldest first by (created_at, order_id)."""
    order = (orders.c.created_at, orders.c.order_id)
    held = _ORDER.where(orders.c.status == "held")
    found = page(rows, held, order, limit=limit, since=since, until=until, after=after, oldest_first=True)
    return _listed(found)


def _one(rows: Connection, *conditions: ColumnElement[bool]) -> Order | None:
    found = rows.execute(_ORDER.where(*conditions).limit(1)).one_or_none()
    return None if found is None else _order(found)


def _listed(page: Iterable[Row[*tuple[Any, ...]]]) -> list[Order | LeftOut]:
    return read_rows(_order, page, "orders", lambda row: (row.created_at, row.order_id))


def _order(row: Row[*tuple[Any, ...]]) -> Order:
    return Order(
        version=row.version,
        updated_at=row.updated_at,
        wake_at=row.wake_at,
        request=_REQUEST.decode(row.request),
        state=_STATE.decode(row.state),
    )
