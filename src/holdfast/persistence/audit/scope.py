"""Which rows a query of the audit sees: those of a few accounts.

The queries name tables as if they read all of them. Each table is replaced by a common table expression of its name
with these accounts' rows alone, which PostgreSQL merges into the query, so that its plan goes by the keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from sqlalchemy import Connection, TextClause, text

OWNERS: Mapping[str, str] = {
    "accounts": "id",
    **dict.fromkeys(
        (
            "api_keys",
            "assets",
            "checkpoints",
            "holds",
            "operations",
            "order_payments",
            "orders",
            "outbox",
            "outbox_attempts",
            "payment_events",
            "postings",
            "sessions",
            "task_events",
            "tasks",
            "usage_entries",
        ),
        "account_id",
    ),
}
"""The tables whose rows belong to accounts, with the column that names the account. An index begins with it."""


@cache
def of_accounts(query: str) -> TextClause:
    """Return a query over the accounts in the parameter ``scope``, a list of ids."""
    scoped = [
        f"{table} as not materialized (select * from {table} where {owner} = any(:scope))"
        for table, owner in OWNERS.items()
        if re.search(rf"\b{table}\b", query)
    ]
    return text(f"with {', '.join(scoped)} {query}")


_FOLLOWING = (
    "least("
    + ", ".join(f"(select min({owner}) from {table} where {owner} > {{after}})" for table, owner in OWNERS.items())
    + ")"
)
_NEXT = text(
    f"""
    with recursive found (id, n) as (
        select {_FOLLOWING.format(after="cast(:after as text)")}, 1
        union all
        select {_FOLLOWING.format(after="found.id")}, n + 1 from found where id is not null and n < :most
    )
    select found.id, coalesce(a.operation_count, 0) as operations
    from found left join accounts a using (id) where found.id is not null order by n
    """
)


def next_accounts(rows: Connection, after: str, *, accounts_max: int, operations_max: int) -> dict[str, int]:
    """Return the accounts that follow ``after`` in the order of ids, each with the number of its operations.

    Every id that any table names counts, also one without an account. There are at most ``accounts_max`` accounts,
    and no more than ``operations_max`` operations unless the first account alone has more. None are left if there
    are none.
    """
    found: dict[str, int] = {}
    total = 0
    for row in rows.execute(_NEXT, {"after": after, "most": accounts_max}):
        total += row.operations
        if found and total > operations_max:
            break
        found[row.id] = row.operations
    return found
