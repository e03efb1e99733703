"""The search of operators: accounts by the beginning of an address or of an API key, and an operation by its id."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import API_KEY_START, KEY_PREFIX_CHARS
from holdfast.http.kit.listing import LIMIT, filter_by, read_window
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.search import accounts_of_address, accounts_of_key, operation_place

route = RouteTable("Operators")

_SOUGHT: Final = replace(
    filter_by("q", "The beginning of an e-mail address or of an API key, or the id of an operation."), required=True
)


class Found(msgspec.Struct, frozen=True):
    """An account that was found. ``reference`` is the task or order of an operation that was sought."""

    account_id: str
    email: str | None = None
    reference: str | None = None


class FoundList(msgspec.Struct, frozen=True):
    """What was found, at most as many as asked for."""

    data: list[Found]


@route(
    "GET",
    "/ops/api/find",
    summary="Find accounts by the beginning of an e-mail address or API key, or the account of an operation",
    auth=Auth.OPERATOR_READ,
    reply=FoundList,
    parameters=(_SOUGHT, LIMIT),
    errors=("missing_parameter",),
)
async def find(call: Call) -> Outcome:
    """One read of an index. Addresses are compared in lower case, as they are stored; a key by its prefix."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    sought = window.filters["q"].strip()

    def read(rows: Connection) -> list[Found]:
        if sought.startswith("op_"):
            place = operation_place(rows, sought)
            return [] if place is None else [Found(account_id=place[0], reference=place[1])]
        if sought.startswith(API_KEY_START):
            found = accounts_of_key(rows, sought[:KEY_PREFIX_CHARS], window.limit)
        else:
            found = accounts_of_address(rows, sought.lower(), window.limit)
        return [Found(each.account_id, each.email) for each in found]

    return FoundList(await call.deps.database.read(read) if sought else [])
