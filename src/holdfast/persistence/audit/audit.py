"""The audit: every rule about credit, checked against the rows of one snapshot.

It trusts nothing that the service computed: balances are summed again from postings, chains are hashed again from
the rows, tasks, holds and usage are compared with each other, and orders with operations and events. Most checks
are one query that finds the rows that break a rule; the history itself and the orders are read once through a
server-side cursor, so memory does not grow with them. Auditing a database in use is safe: writers are not blocked.

A checkpoint records how far an account's history was audited. An audit of recent history begins there, which saves
most of the time. A history that was rewritten before a checkpoint no longer matches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, TextClause, text

from holdfast.ledger.credit.operations import AVAILABLE, CHAIN_START, HELD, REVENUE, Operation, OperationKind
from holdfast.ledger.tasks.task import TERMINAL
from holdfast.persistence.audit.checks import EXAMPLES_MAX, Check, Failure, make_check, tally
from holdfast.persistence.audit.events import EVENT_RULES
from holdfast.persistence.audit.orders import COLUMNS, HISTORY, NET, ORDER_RULES, STATUSES, walk_orders
from holdfast.persistence.audit.rules import RULES, Rule
from holdfast.persistence.audit.spread import SPREAD_RULES
from holdfast.persistence.records.ledger import operation_of

ROWS_PER_FETCH = 2000

SUMS = "the postings of each operation sum to zero"
SHAPES = "each operation's postings match its kind and amount"
NUMBERS = "operation numbers run from 1 without gaps"
TOTALS = "running totals follow from the postings, row by row"
CHAINS = "each operation's chain hash covers it and the previous one"
FLOORS = "available credit goes below zero only by reversals"

_POSTINGS = """
    select account_id, number,
           array_agg(ledger_account order by line) as ledger_accounts,
           array_agg(amount_micro order by line) as amounts_micro
    from postings {which} group by account_id, number
"""
_HISTORY = text(
    f"""
    select o.*, false as is_proven, p.ledger_accounts, p.amounts_micro
    from operations o left join ({_POSTINGS.format(which="")}) p using (account_id, number)
    order by o.account_id, o.number
    """
)
_RECENT_HISTORY = text(
    f"""
    select o.*, o.number is not distinct from c.number as is_proven, p.ledger_accounts, p.amounts_micro
    from accounts a
    left join lateral (
        select number from checkpoints where account_id = a.id order by number desc limit 1
    ) c on true
    cross join lateral (
        select * from operations where account_id = a.id and number >= coalesce(c.number, 0)
    ) o
    left join lateral (
        {_POSTINGS.format(which="where account_id = a.id and number = o.number")}
    ) p on true
    order by o.account_id, o.number
    """
)
_WRITE_CHECKPOINTS = text(
    """
    insert into checkpoints (account_id, number, balance_micro, held_micro, chain_head, at)
    select id, operation_count, balance_micro, held_micro, chain_head, now() from accounts a
    where operation_count > coalesce((select max(number) from checkpoints c where c.account_id = a.id), 0)
    on conflict do nothing
    """
)


def run_audit(connection: Connection, *, recent: bool = False, checkpoint: bool = False) -> list[Check]:
    """Run every check on one snapshot. Blocks for as long as reading the whole history takes.

    With ``recent``, the chain before each account's newest checkpoint is not read again. With ``checkpoint``, each
    account gets a checkpoint at its newest operation of the snapshot if every check passes. The connection must
    have no transaction open; none is left open.
    """
    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=not checkpoint)
    with connection.begin():
        history = _walk_history(connection, _RECENT_HISTORY if recent else _HISTORY)
        checks = tally((SUMS, SHAPES, NUMBERS, TOTALS, CHAINS, FLOORS), history)
        checks += tally((NET, STATUSES, HISTORY, COLUMNS), walk_orders(connection))
        checks += [_run_rule(connection, rule) for rule in (*RULES, *ORDER_RULES, *EVENT_RULES, *SPREAD_RULES)]
        if checkpoint and all(check.ok for check in checks):
            connection.execute(_WRITE_CHECKPOINTS)
    return checks


def _run_rule(connection: Connection, rule: Rule) -> Check:
    """Run a rule's two queries: how many rows it covers, and which break it."""
    parameters: dict[str, Any] = {"terminal": list(TERMINAL), "chain_start": CHAIN_START}
    counted = connection.execute(text(rule.counted)).scalar_one()
    breaking = text(
        f"select found.what, count(*) over () as total from ({rule.breaking}) as found (what) limit {EXAMPLES_MAX}"
    )
    used = {name: value for name, value in parameters.items() if f":{name}" in rule.breaking}
    rows = connection.execute(breaking, used).all()
    total = int(rows[0].total) if rows else 0
    return make_check(rule.name, int(counted), [str(row.what) for row in rows], total)


def _walk_history(connection: Connection, history: TextClause) -> Iterator[Iterator[Failure]]:
    """Read operations in order, and check each against the previous one; that of a checkpoint is proven already."""
    previous: Operation | None = None
    rows = connection.execute(history, execution_options={"stream_results": True, "yield_per": ROWS_PER_FETCH})
    for row in rows:
        operation = operation_of(row, zip(row.ledger_accounts or (), row.amounts_micro or (), strict=True))
        if not row.is_proven:
            is_first = previous is None or previous.account_id != operation.account_id
            yield _failures(operation, None if is_first else previous)
        previous = operation


def _failures(operation: Operation, previous: Operation | None) -> Iterator[Failure]:
    number, balance_micro, held_micro, head = 0, 0, 0, CHAIN_START
    if previous is not None:
        number, head = previous.number, previous.chain_hash
        balance_micro, held_micro = previous.balance_after_micro, previous.held_after_micro

    def failure(name: str, reason: str) -> Failure:
        return name, f"{operation.account_id} operation {operation.number}: {reason}"

    if sum(posting.amount_micro for posting in operation.postings) != 0:
        yield failure(SUMS, "its postings do not sum to zero")
    if not _is_well_formed(operation):
        yield failure(SHAPES, f"is not what a {operation.kind} of its amount posts")
    if operation.number != number + 1:
        yield failure(NUMBERS, f"follows number {number}")
    available_delta_micro, held_delta_micro = _moved(operation, AVAILABLE), _moved(operation, HELD)
    if (operation.balance_after_micro, operation.held_after_micro) != (
        balance_micro + available_delta_micro + held_delta_micro,
        held_micro + held_delta_micro,
    ):
        yield failure(TOTALS, "its totals do not follow from its postings")
    if operation.hash_after(head) != operation.chain_hash:
        yield failure(CHAINS, "its hash does not match")
    available_micro = operation.balance_after_micro - operation.held_after_micro
    is_reversal = operation.kind == OperationKind.REVERSAL
    if available_micro < min(0, balance_micro - held_micro) and not is_reversal:
        yield failure(FLOORS, f"takes the available credit to {available_micro} micro-credits")


def _moved(operation: Operation, ledger_account: str) -> int:
    return sum(posting.amount_micro for posting in operation.postings if posting.ledger_account == ledger_account)


def _is_well_formed(operation: Operation) -> bool:
    """Whether the postings move the operation's amount between the ledger accounts of its kind."""
    amount_micro = operation.amount_micro
    available_micro, held_micro = _moved(operation, AVAILABLE), _moved(operation, HELD)
    revenue_micro = _moved(operation, REVENUE)
    kind: str = operation.kind
    match kind:
        case OperationKind.CREDIT:
            return (available_micro, held_micro, revenue_micro) == (amount_micro, 0, 0) and amount_micro > 0
        case OperationKind.REVERSAL:
            return (available_micro, held_micro, revenue_micro) == (-amount_micro, 0, 0) and amount_micro > 0
        case OperationKind.HOLD:
            return (available_micro, held_micro, revenue_micro) == (-amount_micro, amount_micro, 0)
        case OperationKind.RELEASE:
            return (available_micro, held_micro, revenue_micro) == (amount_micro, -amount_micro, 0)
        case OperationKind.CAPTURE:
            return revenue_micro == amount_micro and 0 <= amount_micro <= -held_micro
    return False
