"""The audit of the history: each operation against its postings and the operation before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

from holdfast.ledger.credit.operations import (
    ADJUSTMENTS,
    AVAILABLE,
    BREAKAGE,
    CHAIN_START,
    HELD,
    PROMOTIONS,
    REVENUE,
    NewLot,
    Operation,
    OperationKind,
)
from holdfast.ledger.values import format_amount
from holdfast.persistence.audit.rules import BrokenRule, Difference
from holdfast.persistence.records.reading import operation_of
from holdfast.persistence.records.unreadable import UnreadableRow

SUMS = "the postings of each operation sum to zero"
SHAPES = "each operation's postings match its kind and amount"
NUMBERS = "operation numbers run from 1 without gaps"
TOTALS = "running totals follow from the postings, row by row"
CHAINS = "each operation's chain hash covers it and the previous one"
FLOORS = "available credit goes below zero only by reversals"
HISTORY_RULES = (SUMS, SHAPES, NUMBERS, TOTALS, CHAINS, FLOORS)

_OPERATIONS = text(
    """
    select o.*, p.ledger_accounts, p.amounts_micro, p.lots,
           l.kind as lot_kind, l.source as lot_source, l.expires_at as lot_expires_at
    from unnest(cast(:scope as text[]), cast(:proven as bigint[])) as s (account_id, proven)
    cross join lateral (
        select * from operations where account_id = s.account_id and number >= s.proven order by number limit :most
    ) o
    left join lateral (
        select array_agg(ledger_account order by line) as ledger_accounts,
               array_agg(amount_micro order by line) as amounts_micro,
               array_agg(lot order by line) as lots
        from postings where account_id = o.account_id and number = o.number
    ) p on true
    left join credit_lots l on l.account_id = o.account_id and l.number = o.number
    order by o.account_id, o.number
    """
)
_PROVEN = text(
    "select account_id, max(number) as number from checkpoints where account_id = any(:scope) group by account_id"
)
_FROM_THE_FIRST = -(2**63)


class HistoryPage(NamedTuple):
    """Some operations of a few accounts: the differences, how many there are, and the last of each account."""

    differences: list[Difference]
    counted: int
    last: dict[str, Operation]


def proven_numbers(rows: Connection, scope: Sequence[str]) -> dict[str, int]:
    """Return the number of each account's newest checkpoint, up to which its history was audited."""
    return {row.account_id: row.number for row in rows.execute(_PROVEN, {"scope": list(scope)})}


def check_history(rows: Connection, scope: Sequence[str], proven: Mapping[str, int], *, most: int) -> HistoryPage:
    """Check up to ``most`` operations of each account: those after the number in ``proven``, or its first ones.

    Those of an account are not checked from where one of them has a value that cannot be read.
    """
    starts = [proven.get(account_id, _FROM_THE_FIRST) for account_id in scope]
    # The operation before the first one is read as well.
    try:
        found = rows.execute(_OPERATIONS, {"scope": list(scope), "proven": starts, "most": most + 1}).all()
    except UnreadableRow as unreadable:
        if len(scope) > 1:
            return _together(check_history(rows, [each], proven, most=most) for each in scope)
        what = f"an operation has a value that cannot be read: {unreadable}"
        return HistoryPage([Difference(BrokenRule(scope[0], CHAINS), what)], 0, {})
    differences: list[Difference] = []
    last: dict[str, Operation] = {}
    counted = 0
    for row in found:
        postings = zip(row.ledger_accounts or (), row.amounts_micro or (), row.lots or (), strict=True)
        lot = None if row.lot_kind is None else NewLot(row.lot_kind, row.lot_source, row.lot_expires_at)
        operation = operation_of(row, postings, lot)
        if operation.number != proven.get(operation.account_id):
            differences += _differences(operation, last.get(operation.account_id))
            counted += 1
        last[operation.account_id] = operation
    return HistoryPage(differences, counted, last)


def _together(pages: Iterable[HistoryPage]) -> HistoryPage:
    differences: list[Difference] = []
    last: dict[str, Operation] = {}
    counted = 0
    for page in pages:
        differences += page.differences
        counted += page.counted
        last |= page.last
    return HistoryPage(differences, counted, last)


def _differences(operation: Operation, previous: Operation | None) -> Iterator[Difference]:
    number, balance_micro, held_micro, head = 0, 0, 0, CHAIN_START
    if previous is not None:
        number, head = previous.number, previous.chain_hash
        balance_micro, held_micro = previous.balance_after_micro, previous.held_after_micro

    def difference(rule: str, what: str) -> Difference:
        return Difference(BrokenRule(operation.account_id, rule), f"operation {operation.number}{what}")

    total_micro = sum(posting.amount_micro for posting in operation.postings)
    if total_micro != 0:
        yield difference(SUMS, f"'s postings sum to {format_amount(total_micro)}, not to zero")
    if not _is_well_formed(operation):
        amount = format_amount(operation.amount_micro)
        yield difference(SHAPES, f"'s postings are not those of a {operation.kind} of {amount}")
    if operation.number != number + 1:
        yield difference(NUMBERS, f" follows operation {number}" if number else " is the first")
    available_delta_micro, held_delta_micro = _posted(operation, AVAILABLE), _posted(operation, HELD)
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


def _posted(operation: Operation, ledger_account: str) -> int:
    return sum(posting.amount_micro for posting in operation.postings if posting.ledger_account == ledger_account)


def _is_well_formed(operation: Operation) -> bool:
    """Whether the postings move the operation's amount between the ledger accounts of its kind."""
    amount_micro = operation.amount_micro
    available_micro, held_micro = _posted(operation, AVAILABLE), _posted(operation, HELD)
    revenue_micro = _posted(operation, REVENUE)
    kind: str = operation.kind
    match kind:
        case OperationKind.CREDIT:
            return (available_micro, held_micro, revenue_micro) == (amount_micro, 0, 0) and amount_micro > 0
        case OperationKind.REVERSAL:
            return (available_micro, held_micro, revenue_micro) == (-amount_micro, 0, 0) and amount_micro > 0
        case OperationKind.ADJUSTMENT:
            adjusted_micro = _posted(operation, ADJUSTMENTS)
            return (available_micro, held_micro, adjusted_micro) == (amount_micro, 0, -amount_micro) != (0, 0, 0)
        case OperationKind.GRANT:
            granted_micro = -_posted(operation, PROMOTIONS)
            return (available_micro, held_micro, granted_micro) == (amount_micro, 0, amount_micro) > (0, 0, 0)
        case OperationKind.EXPIRY:
            expired_micro = _posted(operation, BREAKAGE) + _posted(operation, PROMOTIONS)
            return (-available_micro, held_micro, expired_micro) == (amount_micro, 0, amount_micro) > (0, 0, 0)
        case OperationKind.HOLD:
            return (available_micro, held_micro, revenue_micro) == (-amount_micro, amount_micro, 0)
        case OperationKind.RELEASE:
            return (available_micro, held_micro, revenue_micro) == (amount_micro, -amount_micro, 0)
        case OperationKind.CAPTURE:
            return revenue_micro == amount_micro and 0 <= amount_micro <= -held_micro
    return False
