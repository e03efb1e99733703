"""The response bodies of the account's statement. Amounts are below zero where credit left the ledger account."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.http.kit.listing import ListBody
from holdfast.http.schemas.rendering import render
from holdfast.ledger.credit.operations import AVAILABLE, HELD, Operation
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time


class PostingBody(msgspec.Struct, frozen=True):
    """One line of an operation; the amounts of an operation's postings sum to zero."""

    ledger_account: str
    amount: Amount


class StatementEntryBody(msgspec.Struct, frozen=True):
    """One operation on the account and the totals after it.

    ``balance_change`` is what the operation added to the balance: 0 for a hold, which moves credit within it.
    """

    operation_id: str
    number: int
    kind: Literal["credit", "hold", "capture", "release", "reversal", "adjustment"]
    amount: Amount
    balance_change: Amount
    balance: Amount
    held_total: Amount
    available_balance: Amount
    reference: str
    reason: str
    at: Time
    postings: list[PostingBody]


class Statement(ListBody[StatementEntryBody], frozen=True):
    """A page of the account's operations, newest first."""


def statement_entry_body(entry: Operation) -> StatementEntryBody:
    """Render one operation of the statement."""
    return render(
        StatementEntryBody,
        entry,
        kind=entry.kind.value,
        balance_change=format_amount(balance_change_micro(entry)),
        balance=format_amount(entry.balance_after_micro),
        held_total=format_amount(entry.held_after_micro),
        available_balance=format_amount(entry.balance_after_micro - entry.held_after_micro),
        postings=[PostingBody(account, format_amount(amount)) for account, amount in entry.postings],
    )


def balance_change_micro(entry: Operation) -> int:
    """Return what an operation added to the balance, in micro-credits."""
    return sum(amount for account, amount in entry.postings if account in {AVAILABLE, HELD})
