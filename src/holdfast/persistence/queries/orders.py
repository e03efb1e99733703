"""Payment orders: one by its id or its provider's ids, or a page of an account's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, Unpack

from sqlalchemy import ColumnElement, Connection, Select, exists, func, select, text

from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.orders.transitions import RECONCILE_PERIOD_S
from holdfast.persistence.queries.paging import (
    AccountPageOptions,
    PageOptions,
    page,
    page_of_account,
)
from holdfast.persistence.records.reading import ORDER, TOP_UP_STATE, decode_top_up, order_of, top_up_of
from holdfast.persistence.records.tables import accounts, auto_top_ups, orders, payment_events
from holdfast.persistence.records.tables import order_payments as named
from holdfast.persistence.records.unreadable import UnreadableEntry, read_row, read_rows

ORDER_ORDER = (orders.c.created_at, orders.c.order_id)
ORDER_WITH_EMAIL = ORDER.add_columns(accounts.c.email).outerjoin(accounts, accounts.c.id == orders.c.account_id)
_TO_RECONCILE = text(
    "select order_id from orders where provider = 'cardprovider' "
    "and created_at > now() - make_interval(secs => :until_s) "
    "and (:every or (wake_at is not null and reconcile_status <> 'reconciled')) order by created_at, order_id"
)


class TroubledOrder(NamedTuple):
    """An order of an operators' list, with its account's e-mail address."""

    order: Order
    email: str | None


OrderTrouble = Literal["held", "mismatched", "unreconciled"]
_TROUBLES: Final[dict[str, ColumnElement[bool]]] = {
    "held": orders.c.status == "held",
    "mismatched": orders.c.reconcile_status == "mismatch",
    # Each is found by the index of due orders: what is reconciled or too old has no due time.
    "unreconciled": orders.c.wake_at.is_not(None)
    & (orders.c.provider == "cardprovider")
    & orders.c.status.in_(("credited", "held"))
    & orders.c.reconcile_status.in_(("unreconciled", "pending", "error")),
}


def orders_to_reconcile(rows: Connection, *, every: bool) -> list[str]:
    """Return the card orders of the reconcile period that are not reconciled yet, or with ``every`` all of them."""
    return list(rows.execute(_TO_RECONCILE, {"until_s": RECONCILE_PERIOD_S, "every": every}).scalars())


def order_by_id(rows: Connection, order_id: str) -> Order | None:
    """Return the order with this id, of any account; for signed webhooks, which carry no credential."""
    return _one(rows, orders.c.order_id == order_id)


def order_of_account(rows: Connection, account_id: str, order_id: str) -> Order | None:
    """Return the account's order with this id; None for another account's order and for an unknown id."""
    return _one(rows, orders.c.account_id == account_id, orders.c.order_id == order_id)


class NamedOrder(NamedTuple):
    """The order that an event names, and its account."""

    account_id: str
    order_id: str


def order_of_event(rows: Connection, provider: str, event: PaymentEvent) -> NamedOrder | None:
    """Return the order that an event names by our own id, or else by the provider's payment or its charge."""
    if event.order_id is not None:
        owner = orders
        query = select(owner.c.account_id, owner.c.order_id).where(owner.c.order_id == event.order_id)
    else:
        owner = named
        names = [name for name in (event.payment_id, event.charge_id) if name is not None]
        query = select(owner.c.account_id, owner.c.order_id).where(owner.c.provider_object_id.in_(names))
        query = query.order_by((owner.c.provider_object_id == names[0]).desc()).limit(1)
    found = rows.execute(query.where(owner.c.provider == provider)).one_or_none()
    return None if found is None else NamedOrder(*found)


class ForEvent(NamedTuple):
    """What an account must know to apply an event to an order of its own.

    ``is_event_taken``: an event with this id was applied to another order, of any account. ``taken_ids``: of the
    payments and charges that it names, those of another order, of any account.
    """

    order: Order
    is_event_taken: bool
    taken_ids: frozenset[str]


def read_for_event(
    rows: Connection, account_id: str, order_id: str, event_id: str, object_ids: Iterable[str]
) -> ForEvent | None:
    """Return an order of the account with what other orders have of an event; None if there is no such order."""
    query = ORDER.add_columns(
        exists()
        .where(
            payment_events.c.provider == orders.c.provider,
            payment_events.c.event_id == event_id,
            payment_events.c.order_id != order_id,
            payment_events.c.verdict.in_(("applied", "stale")),
        )
        .label("is_event_taken"),
        select(func.array_agg(named.c.provider_object_id))
        .where(
            named.c.provider == orders.c.provider,
            named.c.provider_object_id.in_(object_ids),
            named.c.order_id != order_id,
        )
        .scalar_subquery()
        .label("taken_ids"),
    )
    found = rows.execute(
        query.where(orders.c.account_id == account_id, orders.c.order_id == order_id)
    ).one_or_none()
    if found is None:
        return None
    order = read_row(order_of, found, "orders", order_id)
    return ForEvent(order, found.is_event_taken, frozenset(found.taken_ids or ()))


def orders_of_account(
    rows: Connection, account_id: str, **page: Unpack[AccountPageOptions]
) -> list[Order | UnreadableEntry]:
    """Return a page of the account's orders, newest first by (created_at, order_id)."""
    found = page_of_account(rows, ORDER, ORDER_ORDER, account_id, **page)
    return read_rows(order_of, found, "orders", lambda row: (row.created_at, row.order_id))


def troubled_orders(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[TroubledOrder | UnreadableEntry]:
    """Return a page of orders of any account, oldest first by (created_at, order_id).

    Those with the :data:`OrderTrouble` of the filter ``trouble``, or without it with any but ``held``.
    """
    found = page(rows, troubled(filters), ORDER_ORDER, oldest_first=True, **options)
    return read_rows(
        lambda row: TroubledOrder(order_of(row), row.email),
        found,
        "orders",
        lambda row: (row.created_at, row.order_id),
    )


def troubled(filters: Mapping[str, str]) -> Select[*tuple[Any, ...]]:
    """Select the orders that :func:`troubled_orders` reads."""
    trouble = filters.get("trouble")
    wanted = _TROUBLES[trouble] if trouble is not None else _TROUBLES["mismatched"] | _TROUBLES["unreconciled"]
    return ORDER_WITH_EMAIL.where(wanted)


def top_up_of_account(rows: Connection, account_id: str) -> AutoTopUp | None:
    """Return an account's saved cards and automatic top-up; None if it has never had any."""
    found = rows.scalar(select(TOP_UP_STATE).where(auto_top_ups.c.account_id == account_id))
    return None if found is None else top_up_of(found, account_id)


class SwitchedOffTopUp(NamedTuple):
    """An account whose automatic top-up was switched off other than by its owner, and its e-mail address."""

    top_up: AutoTopUp
    email: str


_SWITCHED_OFF = select(auto_top_ups.c.account_id, auto_top_ups.c.off_at, TOP_UP_STATE, accounts.c.email).join(
    accounts, accounts.c.id == auto_top_ups.c.account_id
)


def switched_off_top_ups(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[SwitchedOffTopUp | UnreadableEntry]:
    """Return a page of the top-ups that were switched off other than by their owners, newest first, unfiltered."""
    assert not filters
    query = _SWITCHED_OFF.where(auto_top_ups.c.off_at.is_not(None))
    return read_rows(
        lambda row: SwitchedOffTopUp(decode_top_up(row.top_up), row.email),
        page(rows, query, (auto_top_ups.c.off_at, auto_top_ups.c.account_id), **options),
        "auto_top_ups",
        lambda row: (row.off_at, row.account_id),
    )


def pending_order_count(rows: Connection, account_id: str) -> int:
    """Return how many orders of the account are pending."""
    query = select(func.count()).where(orders.c.account_id == account_id, orders.c.status == "pending")
    return rows.execute(query).scalar_one()


def are_of_another_order(rows: Connection, provider: str, object_ids: Iterable[str], order_id: str) -> bool:
    """Whether any of a provider's payments and charges belongs to an order other than ``order_id``."""
    query = select(named.c.order_id).where(
        named.c.provider == provider, named.c.provider_object_id.in_(object_ids), named.c.order_id != order_id
    )
    return rows.execute(query).first() is not None


def _one(rows: Connection, *conditions: ColumnElement[bool]) -> Order | None:
    found = rows.execute(ORDER.where(*conditions).limit(1)).one_or_none()
    return None if found is None else read_row(order_of, found, "orders", found.order_id)
