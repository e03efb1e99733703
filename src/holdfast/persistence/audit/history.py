"""The audit of the history: each operation against its postings and the operation before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from holdfast.ledger.credit.operations import (
    ADJUSTMENTS,
    AVAILABLE,
    CHAIN_START,
    HELD,
    REVENUE,
    Operation,
    OperationKind,
)
from holdfast.ledger.money import format_amount
from holdfast.persistence.audit.checks import Difference
from holdfast.persistence.audit.scope import of_accounts, of_all
from holdfast.persistence.records.ledger import operation_of

ROWS_PER_FETCH = 2000

SUMS = "the postings of each operation sum to zero"
SHAPES = "each operation's postings match its kind and amount"
NUMBERS = "operation numbers run from 1 without gaps"
TOTALS = "running totals follow from the postings, row by row"
CHAINS = "each operation's chain hash covers it and the previous one"
FLOORS = "available credit goes below zero only by reversals"
HISTORY_RULES = (SUMS, SHAPES, NUMBERS, TOTALS, CHAINS, FLOORS)

_POSTINGS = """
    select account_id, number,
           array_agg(ledger_account order by line) as ledger_accounts,
           array_agg(amount_micro order by line) as amounts_micro
    from postings {which} group by account_id, number
"""
_WHOLE = f"""
    select o.*, false as is_proven, p.ledger_accounts, p.amounts_micro
    from operations o left join ({_POSTINGS.format(which="")}) p using (account_id, number)
    order by o.account_id, o.number
"""
_OF_ONE = f"left join lateral ({_POSTINGS.format(which='where account_id = o.account_id and number = o.number')}) p"
_RECENT = text(
    f"""
    select o.*, o.number is not distinct from c.number as is_proven, p.ledger_accounts, p.amounts_micro
    from accounts a
    left join lateral (
        select number from checkpoints where account_id = a.id order by number desc limit 1
    ) c on true
    cross join lateral (
        select * from operations where account_id = a.id and number >= coalesce(c.number, 0)
    ) o
    {_OF_ONE} on true
    order by o.account_id, o.number
    """
)
_PAGE = text(
    f"""
    select o.*, false as is_proven, p.ledger_accounts, p.amounts_micro
    from (
        select * from operations where account_id = :account_id and number > :after order by number limit :most
    ) o
    {_OF_ONE} on true
    order by o.number
    """
)


class HistoryPage(NamedTuple):
    """Some operations in order: the differences among them, how many there are, and the last of them."""

    differences: list[Difference]
    counted: int
    last: Operation | None


def walk_history(connection: Connection, *, recent: bool) -> Iterator[Iterator[Difference]]:
    """Read operations in order, and check each against the previous one; that of a checkpoint is proven already."""
    rows = connection.execute(
        _RECENT if recent else of_all(_WHOLE),
        execution_options={"stream_results": True, "yield_per": ROWS_PER_FETCH},
    )
    for _, differences in _walk(rows):
        yield differences


def check_histories(rows: Connection, scope: Sequence[str]) -> HistoryPage:
    """Check all operations of a few accounts."""
    return _page(_walk(rows.execute(of_accounts(_WHOLE), {"scope": list(scope)})))


def check_history(rows: Connection, account_id: str, previous: Operation | None, *, most: int) -> HistoryPage:
    """Check up to ``most`` operations of an account that follow ``previous``, or its first ones."""
    after = -1 if previous is None else previous.number
    found = rows.execute(_PAGE, {"account_id": account_id, "after": after, "most": most})
    return _page(_walk(found, previous))


def _page(walk: Iterable[tuple[Operation, Iterator[Difference]]]) -> HistoryPage:
    differences: list[Difference] = []
    last: Operation | None = None
    counted = 0
    for operation, found in walk:
        differences += found
        counted += 1
        last = operation
    return HistoryPage(differences, counted, last)


def _walk(
    rows: Iterable[Any], previous: Operation | None = None
) -> Iterator[tuple[Operation, Iterator[Difference]]]:
    """Yield each operation that is not proven already, with what differs in it and from the previous one."""
    for row in rows:
        postings = zip(row.ledger_accounts or (), row.amounts_micro or (), strict=True)
        operation = operation_of(row, postings)
        if not row.is_proven:
            is_first = previous is None or previous.account_id != operation.account_id
            yield operation, _differences(operation, None if is_first else previous)
        previous = operation


def _differences(operation: Operation, previous: Operation | None) -> Iterator[Difference]:
    number, balance_micro, held_micro, head = 0, 0, 0, CHAIN_START
    if previous is not None:
        number, head = previous.number, previous.chain_hash
        balance_micro, held_micro = previous.balance_after_micro, previous.held_after_micro

    def difference(rule: str, what: str) -> Difference:
        return Difference(rule, operation.account_id, f"operation {operation.number}{what}")

    total_micro = sum(posting.amount_micro for posting in operation.postings)
    if total_micro != 0:
        yield difference(SUMS, f"'s postings sum to {format_amount(total_micro)}, not to zero")
    if not _is_well_formed(operation):
        amount = format_amount(operation.amount_micro)
        yield difference(SHAPES, f"'s postings are not those of a {operation.kind} of {amount}")
    if operation.number != number + 1:
        yield difference(NUMBERS, f" follows operation {number}" if number else " is the first")
    available_delta_micro, held_delta_micro = _moved(operation, AVAILABLE), _moved(operation, HELD)
    posted_micro = balance_micro + available_delta_micro + held_delta_micro
    posted_held_micro = held_micro + held_delta_micro
    if operation.balance_after_micro != posted_micro:
        balance = format_amount(operation.balance_after_micro)
        yield difference(
            TOTALS, f"'s balance is {balance}, the postings up to it sum to {format_amount(posted_micro)}"
        )
    if operation.held_after_micro != posted_held_micro:
        held = format_amount(operation.held_after_micro)
        yield difference(
            TOTALS, f"'s held total is {held}, the postings up to it sum to {format_amount(posted_held_micro)}"
        )
    if operation.hash_after(head) != operation.chain_hash:
        yield difference(CHAINS, "'s hash does not match it and the operation before it")
    available_micro = operation.balance_after_micro - operation.held_after_micro
    is_reversal = operation.kind == OperationKind.REVERSAL
    if available_micro < min(0, balance_micro - held_micro) and not is_reversal:
        yield difference(FLOORS, f" takes the available credit to {format_amount(available_micro)}")


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
        case OperationKind.ADJUSTMENT:
            adjusted_micro = _moved(operation, ADJUSTMENTS)
            return (available_micro, held_micro, adjusted_micro) == (amount_micro, 0, -amount_micro) != (0, 0, 0)
        case OperationKind.HOLD:
            return (available_micro, held_micro, revenue_micro) == (-amount_micro, amount_micro, 0)
        case OperationKind.RELEASE:
            return (available_micro, held_micro, revenue_micro) == (amount_micro, -amount_micro, 0)
        case OperationKind.CAPTURE:
            return revenue_micro == amount_micro and 0 <= amount_micro <= -held_micro
    return False
