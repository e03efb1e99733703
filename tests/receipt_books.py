"""An auditor's view of receipts: what the rows must show, found by reading all of them and trusting none."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection

from holdfast.ledger.receipts import ReceiptSeller, ReceiptTerms, issue_receipts
from holdfast.persistence.claims.receipts import BEGINNING, LedgerPosition, read_due, store_receipts
from holdfast.providers.card.base import micro_per_minor

SELLER = ReceiptSeller("Ada's Pictures Ltd", ("1 Main Street", "London"), "GB123")
TERMS = ReceiptTerms("R-", SELLER, micro_per_minor)


def issue_all(connection: Connection, terms: ReceiptTerms = TERMS, *, most: int = 250) -> int:
    """Issue every receipt that is due, as the worker does; return how many. For a connection in autocommit."""
    after: LedgerPosition | None = BEGINNING
    issued = 0
    while after is not None:
        due = read_due(connection, after, settled_at=datetime.now(UTC), most=most)
        found = issue_receipts(
            due.operations,
            due.orders,
            due.firsts,
            due.emails,
            terms,
            last_number=due.last_number,
            now=datetime.now(UTC),
        )
        if found:
            assert partial(store_receipts, issued=found)(connection)
        issued += len(found)
        after = due.next_after
    return issued


class Audited(NamedTuple):
    """What an auditor finds: what is wrong, and how many receipts and credit notes there are."""

    faults: list[str]
    receipts: int
    credit_notes: int
    net_micro: int


def audit_receipts(url: str) -> Audited:
    """Compare all receipts with the ledger's postings on the card provider's cash."""
    with psycopg.connect(url) as connection:
        moved = connection.execute(
            "select o.account_id, o.number, o.operation_id, o.reference, -p.amount_micro from postings p"
            " join operations o using (account_id, number) where p.ledger_account = 'cash:cardprovider'"
        ).fetchall()
        receipts = connection.execute(
            "select sequence, number, kind, account_id, order_id, operation_id, operation_number, receipt_number,"
            " credit_micro from receipts order by sequence"
        ).fetchall()
    return _audited(moved, receipts)


def _audited(moved: list[tuple[Any, ...]], receipts: list[tuple[Any, ...]]) -> Audited:
    faults: list[str] = []
    if [each[0] for each in receipts] != list(range(1, len(receipts) + 1)):
        faults.append("the numbers have gaps or doubles")
    books = {
        operation_id: (account_id, reference, number, amount)
        for account_id, number, operation_id, reference, amount in moved
    }
    seen: Counter[str] = Counter()
    sums: defaultdict[str, int] = defaultdict(int)
    newest: dict[str, int] = {}
    firsts: dict[str, str] = {}
    for sequence, number, kind, account, order, operation_id, place, first, credit in receipts:
        amount = credit if kind == "receipt" else -credit
        seen[operation_id] += 1
        sums[account] += amount
        if books.get(operation_id) != (account, order, place, amount):
            faults.append(f"{number} is not what {operation_id} moved")
        if not number.endswith(str(sequence)):
            faults.append(f"{number} is in place {sequence}")
        if place <= newest.get(account, 0):
            faults.append(f"{number} is not in the order of its account")
        newest[account] = place
        if first != firsts.get(order):
            faults.append(f"{number} names {first}")
        firsts.setdefault(order, number)
    faults += [f"{operation_id} has no receipt" for operation_id in books.keys() - seen]
    faults += [f"{operation_id} has {count} receipts" for operation_id, count in seen.items() if count > 1]
    booked: defaultdict[str, int] = defaultdict(int)
    for account, _, _, _, amount in moved:
        booked[account] += amount
    if booked != sums:
        faults.append(f"the sums differ: {sum(booked.values())} and {sum(sums.values())}")
    notes = sum(each[2] == "credit_note" for each in receipts)
    return Audited(faults, len(receipts) - notes, notes, sum(sums.values()))
