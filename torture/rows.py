"""A snapshot of accounts in the database, read by the harness's own queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation; ``postings_sum_micro`` is the sum of its postings, which must be zero."""

    number: int
    operation_id: str
    kind: str
    amount_micro: int
    balance_after_micro: int
    held_after_micro: int
    hold_id: str | None
    reference: str
    postings_sum_micro: int = 0


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A hold; ``settled_number`` is the operation that ended it, or None while it is open."""

    hold_id: str
    amount_micro: int
    reference: str
    settled_number: int | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task; ``number`` is our own number for the request, from its metadata. ``key_id`` is its API key's."""

    request_id: str
    status: str
    hold_id: str
    number: int | None
    retry_of: str | None
    error: str | None = None
    results: int = 0
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A task's entry in the usage log."""

    request_id: str
    status: str
    cost_micro: int
    operation_id: str | None


@dataclass(frozen=True, slots=True)
class OrderRow:
    """A payment order; of ``origin`` ``top_up`` if the service made it. ``day`` is the UTC day of its creation."""

    order_id: str
    provider: str
    status: str
    operation_id: str
    origin: str = "customer"
    amount_micro: int = 0
    day: str = ""


@dataclass(slots=True)
class AccountRows:
    """All credit-related rows of one account, from one snapshot; ``expiring`` are lots yet to expire."""

    account_id: str
    balance_micro: int
    held_micro: int
    operation_count: int
    operations: list[OperationRow] = field(default_factory=list)
    holds: list[HoldRow] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    usage: list[UsageRow] = field(default_factory=list)
    orders: list[OrderRow] = field(default_factory=list)
    expiring: list[int] = field(default_factory=list)


_OPERATIONS = """
    select o.account_id, o.number, o.operation_id, o.kind, o.amount_micro, o.balance_after_micro,
           o.held_after_micro, o.hold_id, o.reference,
           coalesce((select sum(p.amount_micro) from postings p
                     where p.account_id = o.account_id and p.number = o.number), -1)::bigint
    from operations o where o.account_id = any(%s) order by o.account_id, o.number
"""
_TASKS = """
    select account_id, request_id, status, request ->> 'hold_id', request -> 'metadata' ->> 'number',
           request ->> 'retry_of', state ->> 'error',
           coalesce(json_array_length(state -> 'output'), 0), coalesce(request ->> 'api_key_id', '')
    from tasks where account_id = any(%s)
"""


def read_rows(url: str, account_ids: Sequence[str]) -> dict[str, AccountRows]:
    """Read the rows of these accounts by id, all from one snapshot. Blocks; raises ``psycopg.Error``."""
    ids = list(account_ids)
    with psycopg.connect(url, connect_timeout=5) as connection:
        connection.execute("set transaction isolation level repeatable read, read only")
        found = {
            row[0]: AccountRows(*row)
            for row in connection.execute(
                "select id, balance_micro, held_micro, operation_count from accounts where id = any(%s)", (ids,)
            )
        }
        for account_id, *values in connection.execute(_OPERATIONS, (ids,)):
            found[account_id].operations.append(OperationRow(*values))
        holds = "select account_id, hold_id, amount_micro, reference, settled_number from holds"
        for account_id, *values in connection.execute(f"{holds} where account_id = any(%s)", (ids,)):
            found[account_id].holds.append(HoldRow(*values))
        for account_id, request_id, status, hold_id, number, *more in connection.execute(_TASKS, (ids,)):
            known = int(number) if number is not None else None
            found[account_id].tasks.append(TaskRow(request_id, status, hold_id, known, *more))
        usage = "select account_id, request_id, status, cost_micro, operation_id from usage_entries"
        for account_id, *values in connection.execute(f"{usage} where account_id = any(%s)", (ids,)):
            found[account_id].usage.append(UsageRow(*values))
        lots = "select account_id, number from credit_lots where closed_number is null and expires_at is not null"
        for account_id, number in connection.execute(f"{lots} and account_id = any(%s)", (ids,)):
            found[account_id].expiring.append(number)
        orders = "select account_id, order_id, provider, status, request from orders"
        for account_id, order_id, provider, status, request in connection.execute(
            f"{orders} where account_id = any(%s)", (ids,)
        ):
            document = request if isinstance(request, dict) else json.loads(request)
            found[account_id].orders.append(
                OrderRow(
                    order_id,
                    provider,
                    status,
                    document["operation_id"],
                    document.get("origin", "customer"),
                    document["amount_micro"],
                    document["created_at"][:10],
                )
            )
    return found
