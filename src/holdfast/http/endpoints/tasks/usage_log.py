"""The usage log: one entry per task, newest first, as pages or as a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, get_args

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import (
    API_KEY_ID,
    END_USER,
    FORMAT,
    MODEL,
    PAGE,
    STATUS,
    CsvFile,
    Position,
    columns_of,
    csv_media,
    filter_by,
    list_of_account,
)
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.tasks import UsageList, usage_body
from holdfast.ledger.api_keys import USAGE_READ
from holdfast.ledger.catalog.models import Modality
from holdfast.ledger.values import format_amount
from holdfast.persistence.queries.tasks import usage_of_account
from holdfast.persistence.records.rows import UsageEntry

route = RouteTable("Usage")

_MODALITY: Final = filter_by("modality", "Only entries of this modality.", get_args(Modality))

COLUMNS: Final[Mapping[str, Callable[[UsageEntry], str | int | None]]] = {
    **columns_of("request_id", "ts", "model", "modality", "status", "api_key_id", "billable_units"),
    **columns_of("tokens_in", "tokens_out", "latency_ms"),
    "cost_credits": lambda entry: format_amount(entry.cost_micro),
    **columns_of("operation_id", "error", "end_user"),
}


@route(
    "GET",
    "/v2/usage/logs",
    summary="List the account's usage: newest first, or as a CSV file",
    auth=Auth.SESSION_OR_KEY,
    scope=USAGE_READ,
    reply=UsageList,
    media=(csv_media(COLUMNS),),
    parameters=(*PAGE, STATUS, MODEL, _MODALITY, API_KEY_ID, END_USER, FORMAT),
)
async def list_usage(call: Call) -> Outcome:
    """An entry for each task, with its charge."""
    return await list_of_account(
        call,
        usage_of_account,
        usage_body,
        lambda entry: Position(entry.ts, entry.request_id),
        file=CsvFile("usage.csv", COLUMNS),
    )
