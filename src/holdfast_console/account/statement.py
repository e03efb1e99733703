"""The account's statement: downloads, and the check of a signed one."""

from __future__ import annotations

import io
from typing import Final

import msgspec

from holdfast.http.endpoints.statement import (
    list_statement_keys,
    published_keys,
    read_signed_statement,
    read_statement,
    read_verifier,
)
from holdfast.http.kit.calls import Auth
from holdfast.ledger.credit.verify_statement import Check, read_keys
from holdfast.ledger.refusals import Refusal
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

STATEMENT: Final = "/account/statement"
CHECKED_BYTES_MAX: Final = 4 * 1024 * 1024
"""About 14,000 operations, which are checked in a second; the program checks larger files."""

view = ViewTable(Auth.SESSION)

_FILES: Final = {
    "csv": read_statement,
    "signed": read_signed_statement,
    "keys": list_statement_keys,
    "program": read_verifier,
}


@view(STATEMENT)
async def statement(visit: Visit) -> ViewResult:
    """What may be downloaded, or with ``file`` one of it."""
    file = visit.parameter("file")
    if file not in _FILES:
        return await _page(visit)
    query = {name: visit.parameter(name) for name in ("from", "to") if visit.parameter(name)}
    return await visit.stream(_FILES[file], query={**query, "format": "csv"} if file == "csv" else query)


@view(f"{STATEMENT}/check", method="POST", form_bytes_max=CHECKED_BYTES_MAX, takes_file=True)
async def check(visit: Visit) -> ViewResult:
    """Check a statement by the program that customers have, too."""
    call = visit.call
    if not call.files:
        return Refusal(code="missing_parameter", message="Choose a signed statement.", param="file")
    keys = read_keys(msgspec.json.encode(await published_keys(call)))
    content = io.BytesIO(call.files[0].content)
    checked = await call.compute(Check, content, keys, caller=call.session.account_id)
    # The page that it is shown on, should one of its forms be sent next.
    call.address = STATEMENT
    return await _page(visit, checked)


async def _page(visit: Visit, checked: Check | None = None) -> Html:
    keys = (await published_keys(visit.call)).keys
    return Html("statement.html", {"keys": keys, "checked": checked, "mebibytes_max": CHECKED_BYTES_MAX >> 20})
