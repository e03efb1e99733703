"""The account's statement: every operation on its credit with the totals after it, as pages or a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import ACCOUNT_READ
from holdfast.http.kit.listing import (
    FORMAT,
    PAGE,
    CsvFile,
    ListBody,
    Position,
    csv_media,
    filter_by,
    list_of_account,
    number_of,
)
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import render
from holdfast.ledger.clock import format_time
from holdfast.ledger.credit.operations import AVAILABLE, HELD, Operation, OperationKind
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.ledger import statement_of_account


class PostingBody(msgspec.Struct, frozen=True):
    """One line of an operation; the amounts of an operation's postings sum to zero."""

    ledger_account: str
    """The ledger account: `available` and `held` are the customer's, all others the platform's."""
    amount: Amount
    """What is added to it, below zero if it is taken."""
    lot: int | None = None
    """The lot of credit that it moves, by the number of the operation that gave it; null on the platform's accounts
    and for what an overdrawn account owes."""


class StatementEntryBody(msgspec.Struct, frozen=True):
    """One operation on the account and the totals after it."""

    operation_id: str
    """The operation's id, `op_…`."""
    number: int
    """Counts the account's operations from 1, without gaps."""
    kind: Literal["credit", "hold", "capture", "release", "reversal", "adjustment", "grant", "expiry"]
    """What the operation does."""
    amount: Amount
    """Its amount; below zero only for an adjustment that takes credit."""
    balance_change: Amount
    """What it added to the balance; zero for a hold or a release, which move credit within the balance."""
    balance: Amount
    """The balance after it."""
    held_total: Amount
    """The credit held after it."""
    available_balance: Amount
    """The available balance after it."""
    reference: str
    """The task, order or other object that it is about, by its id."""
    reason: str
    """Its cause in words."""
    at: Time
    """When it was made."""
    postings: list[PostingBody]
    """Its lines, which sum to zero."""


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
        postings=[PostingBody(account, format_amount(amount), lot) for account, amount, lot in entry.postings],
    )


def balance_change_micro(entry: Operation) -> int:
    """Return what an operation added to the balance, in micro-credits."""
    return sum(amount for account, amount, _ in entry.postings if account in {AVAILABLE, HELD})


route = RouteTable("Credit")

_KIND: Final = filter_by("kind", "Only operations of this kind.", [kind.value for kind in OperationKind])

COLUMNS: Final[Mapping[str, Callable[[Operation], str | int | None]]] = {
    "operation_id": lambda entry: entry.operation_id,
    "number": lambda entry: entry.number,
    "at": lambda entry: format_time(entry.at),
    "kind": lambda entry: entry.kind.value,
    "amount": lambda entry: format_amount(entry.amount_micro),
    "balance_change": lambda entry: format_amount(balance_change_micro(entry)),
    "balance": lambda entry: format_amount(entry.balance_after_micro),
    "held_total": lambda entry: format_amount(entry.held_after_micro),
    "available_balance": lambda entry: format_amount(entry.balance_after_micro - entry.held_after_micro),
    "reference": lambda entry: entry.reference,
    "reason": lambda entry: entry.reason,
}


@route(
    "GET",
    "/v2/control/ledger",
    summary="List the account's operations: with their postings and the totals after each, or as a CSV file",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=Statement,
    media=(csv_media(COLUMNS),),
    parameters=(_KIND, *PAGE, FORMAT),
)
async def read_statement(call: Call) -> Outcome:
    """Operations are numbered without gaps."""
    return await list_of_account(
        call,
        _entries,
        statement_entry_body,
        lambda entry: Position(entry.at, str(entry.number)),
        file=CsvFile("statement.csv", COLUMNS),
    )


def _entries(
    rows: Connection, account_id: str, /, *, after: Position | None, filters: Mapping[str, str], **options: Any
) -> list[Operation] | Refusal:
    """Read a page of an account's operations; the id of a position is an operation's number."""
    before = number_of(after)
    if isinstance(before, Refusal):
        return before
    return statement_of_account(rows, account_id, before_number=before, kind=filters.get("kind"), **options)
