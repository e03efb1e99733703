"""What the stream of an account reads: its totals, and which of its tasks and orders to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import ARRAY, Connection, Text, any_, bindparam, select, text

from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.orders.order import Order
from holdfast.persistence.records.reading import ORDER, order_of
from holdfast.persistence.records.tables import accounts, orders
from holdfast.persistence.records.unreadable import UnreadableRow, read_row

ROWS_MAX: Final = 500
"""How many rows of a kind a stream sends that resumes: the newest."""

_POSITION = select(
    accounts.c.operation_count, accounts.c.id, accounts.c.balance_micro, accounts.c.held_micro
).where(accounts.c.id == bindparam("account_id"))
_REFERENCES = text(
    "(select reference from operations where account_id = :account_id and number > :after"
    " order by number desc limit :limit)"
    " union (select reference from holds where account_id = :account_id and settled_number is null"
    " order by opened_number desc limit :limit)"
)
_NEWEST_ORDERS = text(
    "select order_id from orders where account_id = :account_id"
    " order by created_at desc, order_id desc limit :limit"
)
_ORDERS_BY_IDS = ORDER.where(orders.c.order_id == any_(bindparam("order_ids", type_=ARRAY(Text))))


class AccountPosition(NamedTuple):
    """An account's totals, and the number of its newest operation then."""

    number: int
    totals: AccountTotals


def account_position(rows: Connection, account_id: str) -> AccountPosition:
    """Return the totals of an account that exists."""
    number, *totals = rows.execute(_POSITION, {"account_id": account_id}).one()
    return AccountPosition(number, AccountTotals(*totals))


def rows_after(rows: Connection, account_id: str, number: int | None) -> list[str]:
    """Return the ids of the tasks that have not ended, and with ``number`` of what may have changed since.

    That is what the operations after this one are of, and the newest orders: an order that fails or expires has no
    operation. At most :data:`ROWS_MAX` of each.
    """
    parameters = {"account_id": account_id, "limit": ROWS_MAX}
    found = rows.execute(_REFERENCES, {**parameters, "after": 2**63 - 1 if number is None else number})
    row_ids = list(found.scalars())
    if number is not None:
        row_ids += rows.execute(_NEWEST_ORDERS, {**parameters, "limit": ROWS_MAX // 10}).scalars()
    return row_ids


def find_orders(rows: Connection, order_ids: Sequence[str]) -> dict[str, tuple[str, Order | UnreadableRow]]:
    """Return the orders with these ids, of any account, with their accounts' ids."""
    found: dict[str, tuple[str, Order | UnreadableRow]] = {}
    for row in rows.execute(_ORDERS_BY_IDS, {"order_ids": list(order_ids)}):
        try:
            found[row.order_id] = row.account_id, read_row(order_of, row, "orders", row.order_id)
        except UnreadableRow as unreadable:
            found[row.order_id] = row.account_id, unreadable
    return found
