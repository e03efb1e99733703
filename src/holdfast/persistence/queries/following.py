"""What the stream of an account reads: its totals, and which of its tasks and orders to send."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from sqlalchemy import ARRAY, Connection, Text, any_, bindparam, select, text

from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import find_tasks
from holdfast.persistence.records.reading import ORDER, order_of
from holdfast.persistence.records.tables import accounts, orders
from holdfast.persistence.records.unreadable import UnreadableRow, read_row
from holdfast.persistence.server.repeated_queries import RepeatedQuery, one_of

ROWS_MAX: Final = 500
"""How many rows of a kind a stream sends that resumes: the newest."""
ROWS_AT_ONCE: Final = 16
"""How many changed rows are read at once for a stream: a task's may have megabytes."""

Rows: TypeAlias = Mapping[str, tuple[str, Task | Order | UnreadableRow]]
"""Tasks and orders by their ids, each with its account's id."""

_POSITIONS = RepeatedQuery(
    select(accounts.c.operation_count, accounts.c.id, accounts.c.balance_micro, accounts.c.held_micro).where(
        accounts.c.id == one_of("account_ids", Text())
    )
)
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


class Asked(NamedTuple):
    """What the stream of an account asks for: the rows named by notices, and others if it may have missed some.

    ``after`` is the number of the newest operation whose rows it has sent.
    """

    account_id: str
    row_ids: tuple[str, ...]
    after: int | None
    missed: bool


class Changed(NamedTuple):
    """An account as it is: the number of its newest operation, and its totals; and what was changed before that.

    ``row_ids`` are of the rows to send, each once, and ``rows`` the first of them.
    """

    number: int
    totals: AccountTotals
    row_ids: list[str]
    rows: Rows


def find_changed(rows: Connection, asked: Sequence[Asked]) -> dict[Asked, Changed]:
    """Return what streams ask for; nothing of an account that has gone to another cell.

    The accounts are read before the rows, so that these are not older than the numbers.
    """
    positions = _POSITIONS.rows(rows, {"account_ids": [each.account_id for each in asked]})
    accounts_by_id = {totals[0]: (number, AccountTotals(*totals)) for number, *totals in positions}
    wanted: dict[Asked, list[str]] = {}
    for each in asked:
        account_id, row_ids, after, missed = each
        if account_id not in accounts_by_id:
            continue
        # Without a notice it was changed by a process that is no member, as a command.
        is_sought = missed or (not row_ids and accounts_by_id[account_id][0] != after)
        others = rows_after(rows, account_id, after) if is_sought else []
        wanted[each] = [row_id for row_id in dict.fromkeys((*row_ids, *others)) if row_id != account_id]
    found = find_rows(rows, {row_id: None for row_ids in wanted.values() for row_id in row_ids[:ROWS_AT_ONCE]})
    return {
        each: Changed(
            *accounts_by_id[each.account_id],
            row_ids,
            {row_id: found[row_id] for row_id in row_ids if row_id in found},
        )
        for each, row_ids in wanted.items()
    }


def find_rows(rows: Connection, row_ids: Collection[str]) -> Rows:
    """Return the tasks and orders with these ids, of any account."""
    tasks = [each for each in row_ids if each.startswith("task_")]
    orders = [each for each in row_ids if each.startswith("ord_")]
    return {**(find_tasks(rows, tasks) if tasks else {}), **(find_orders(rows, orders) if orders else {})}


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
