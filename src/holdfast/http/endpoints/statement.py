"""The account's statement: every operation on its credit with the totals after it, as pages or a CSV file.

Or as a signed file, which the public keys and a program, also sent from here, prove unaltered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, Literal

import msgspec
from quart import Response
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import (
    CSV_PAGE_ROWS,
    FORMAT,
    FROM,
    PAGE,
    SEND_TIMEOUT_S,
    TO,
    CsvFile,
    ListBody,
    Position,
    columns_of,
    csv_media,
    filter_by,
    list_of_account,
    number_of,
    read_window,
)
from holdfast.http.kit.routes import Media, Outcome, RouteTable
from holdfast.http.schemas.common import render
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.credit.operations import AVAILABLE, HELD, Operation, OperationKind
from holdfast.ledger.credit.signed_statement import (
    SigningKey,
    StatementRange,
    StatementWriter,
    base64url,
    signing_key,
)
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, time_or_none
from holdfast.persistence.claims.statement_keys import NOTED_EVERY, note_use, used_keys
from holdfast.persistence.queries.ledger import Numbers, chained_operations, chained_range, statement_of_account
from holdfast.settings.settings import Settings


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
    **columns_of("operation_id", "number", "at"),
    "kind": lambda entry: entry.kind.value,
    **columns_of("amount_micro"),
    "balance_change": lambda entry: format_amount(balance_change_micro(entry)),
    "balance": lambda entry: format_amount(entry.balance_after_micro),
    "held_total": lambda entry: format_amount(entry.held_after_micro),
    "available_balance": lambda entry: format_amount(entry.balance_after_micro - entry.held_after_micro),
    **columns_of("reference", "reason"),
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


# ------------------------------------------------------------------------------------------ signed statements

SIGNED_CONTENT_TYPE: Final = "application/x-ndjson"
KEYS_CONTENT_TYPE: Final = "application/jwk-set+json"
VERIFIER: Final = files("holdfast.ledger.credit") / "verify_statement.py"
KEYS_MAX_AGE_S: Final = 300
"""How long caches may keep the public keys: soon after a rotation all readers know the new one."""


class StatementKeyBody(msgspec.Struct, frozen=True):
    """A public key as a JSON Web Key (RFC 8037), and when it has signed."""

    kty: Literal["OKP"]
    """The kind of key."""
    crv: Literal["Ed25519"]
    """The curve."""
    x: str
    """The key's 32 bytes, in base64url without padding."""
    kid: str
    """Its id and fingerprint, the thumbprint of RFC 7638: the `key_id` of statements that it has signed."""
    valid_from: Time | None
    """When it was first used; null if it was not yet."""
    valid_until: Time | None
    """No later statement is signed by it; null if it may still sign."""


class StatementKeys(msgspec.Struct, frozen=True):
    """All public keys that have signed statements: a JSON Web Key Set (RFC 7517)."""

    keys: list[StatementKeyBody]
    """The keys, the present one first."""


def statement_keys_of(settings: Settings) -> list[SigningKey]:
    """Return the key that signs statements, and the one before it while that is configured."""
    return [signing_key(seed) for seed in settings.derived_keys("signed statements")]


async def published_keys(call: Call) -> StatementKeys:
    """Return all keys that sign statements or have signed any."""
    replaced = {row.key_id: row for row in await call.read(used_keys)}
    keys: list[StatementKeyBody] = []
    for each in statement_keys_of(call.deps.settings):
        used = replaced.pop(each.key_id, None)
        keys.append(_key_body(each.key_id, each.public, used and used.first_used_at, None))
    for row in replaced.values():
        keys.append(_key_body(row.key_id, row.public_key, row.first_used_at, row.last_used_at + NOTED_EVERY))
    return StatementKeys(keys)


def _key_body(key_id: str, public: bytes, since: datetime | None, until: datetime | None) -> StatementKeyBody:
    return StatementKeyBody("OKP", "Ed25519", base64url(public), key_id, time_or_none(since), time_or_none(until))


@route(
    "GET",
    "/v2/control/statement",
    summary="Download the account's operations as a signed statement",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    media=(
        Media(
            status=200,
            content_types=(SIGNED_CONTENT_TYPE,),
            description="A statement, a line of JSON for each operation.",
        ),
    ),
    parameters=(FROM, TO),
)
async def read_signed_statement(call: Call) -> Outcome:
    """All operations, or those of a time, oldest first, with their hash chain and a signature.

    `verify_statement.py` checks the file without this service, and names what was altered in it.
    """
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    part = await call.read(partial(chained_range, account_id=account_id, since=window.since, until=window.until))
    key, now = statement_keys_of(call.deps.settings)[0], call.deps.now()
    writer = StatementWriter(
        key,
        part,
        issuer=call.deps.urls.base,
        account_id=account_id,
        since=window.since,
        until=window.until,
        issued_at=now,
    )
    # The first operations are read before the response begins, so that a fault is one.
    begin = writer.first_line + await _signed_lines(call, account_id, part, writer)
    await call.write(account_id, partial(note_use, key_id=key.key_id, public_key=key.public, at=now))

    async def parts() -> AsyncIterator[bytes]:
        yield begin
        while writer.newest.number < part.end.number:
            yield await _signed_lines(call, account_id, part, writer)
        yield writer.last_line()

    headers = {"Content-Disposition": f'attachment; filename="statement-{account_id}-{part.end.number}.jsonl"'}
    response = Response(parts(), content_type=SIGNED_CONTENT_TYPE, headers=headers)
    response.timeout = SEND_TIMEOUT_S
    return response


async def _signed_lines(call: Call, account_id: str, part: StatementRange, writer: StatementWriter) -> bytes:
    """Return the lines of the next operations."""
    start = writer.newest.number
    numbers = Numbers(start, min(start + CSV_PAGE_ROWS, part.end.number))
    found = await call.read(partial(chained_operations, account_id=account_id, numbers=numbers))
    return writer.lines(found, up_to=numbers.number_max)


@route(
    "GET",
    "/.well-known/holdfast-statement-keys.json",
    summary="List the public keys of signed statements",
    media=(Media(status=200, content_types=(KEYS_CONTENT_TYPE,), description="The keys.", schema_type="object"),),
)
async def list_statement_keys(call: Call) -> Outcome:
    """Keys that were replaced stay, with the time of their last use: keep a copy of your own."""
    headers = {"Cache-Control": f"public, max-age={KEYS_MAX_AGE_S}"}
    return Response(
        msgspec.json.encode(await published_keys(call)), content_type=KEYS_CONTENT_TYPE, headers=headers
    )


@route(
    "GET",
    "/verify_statement.py",
    summary="Download the program that checks signed statements",
    media=(Media(status=200, content_types=("text/x-python",), description="One file of plain Python."),),
)
async def read_verifier(call: Call) -> Outcome:
    """It needs Python alone: `python verify_statement.py FILE --keys KEYS`."""
    del call
    headers = {
        "Cache-Control": f"public, max-age={KEYS_MAX_AGE_S}",
        "Content-Disposition": f'attachment; filename="{VERIFIER.name}"',
    }
    return Response(_verifier(), content_type="text/x-python; charset=utf-8", headers=headers)


@cache
def _verifier() -> bytes:
    return VERIFIER.read_bytes()
