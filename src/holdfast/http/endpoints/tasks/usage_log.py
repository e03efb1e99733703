"""The usage log: one entry per task, newest first, as pages or as a CSV file."""

from __future__ import annotations

from typing import Final, get_args

from sqlalchemy import Connection

from holdfast.http.endpoints.tasks.usage_csv import CsvPage, csv_response, page_rows, read_csv_page
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Position, list_of_account, read_cursor, read_window
from holdfast.http.kit.parameters import MODEL, PAGE, STATUS, filter_by
from holdfast.http.kit.routes import Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.shown import invalid_parameter
from holdfast.http.schemas.tasks import UsageList, usage_body
from holdfast.ledger.catalog.models import Modality
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.credentials import SessionRecord
from holdfast.persistence.queries.tasks import usage_of_account

route = RouteTable("Usage")

_MODALITY: Final = filter_by("modality", "Only entries of this modality.", get_args(Modality))
_API_KEY_ID: Final = filter_by("api_key_id", "Only entries of this API key.")
_FORMAT: Final = Parameter(
    "format",
    "query",
    "`csv` returns a file of all matching entries, or of `limit` entries.",
    schema={"type": "string", "enum": ["json", "csv"], "default": "json"},
)
_KIND: Final = "usage"
_FILTERS: Final = (STATUS, MODEL, _MODALITY, _API_KEY_ID)


@route(
    "GET",
    "/v2/usage/logs",
    summary="List the account's usage, newest first, or export it as CSV",
    auth=Auth.SESSION,
    reply=UsageList,
    media=(Media(status=200, content_types=("text/csv",), description="A page, or a CSV file."),),
    parameters=(*PAGE, *_FILTERS, _FORMAT),
)
async def list_usage(call: Call) -> Outcome:
    """One read: the session and a page."""
    formats = call.query().get("format", ["json"])
    if formats == ["csv"]:
        return await _export(call)
    if formats != ["json"]:
        return invalid_parameter("format", "must be json or csv", formats[-1])
    return await list_of_account(
        call,
        UsageList,
        usage_of_account,
        usage_body,
        lambda entry: Position(entry.ts, entry.request_id),
        kind=_KIND,
        filters=_FILTERS,
    )


async def _export(call: Call) -> Outcome:
    """The session and the first page are one read, so that a refusal comes before the file starts."""
    window = read_window(call.query(), kind=_KIND, filters=_FILTERS)
    if isinstance(window, Refusal):
        return window

    def read(rows: Connection, session: SessionRecord) -> tuple[str, CsvPage] | Refusal:
        position = read_cursor(session.account_id, window)
        if isinstance(position, Refusal):
            return position
        page = read_csv_page(rows, session.account_id, window, position, page_rows(window, 0))
        return session.account_id, page

    found = await call.read_as_session(read)
    return found if isinstance(found, Refusal) else csv_response(call.deps, found[0], window, found[1])
