"""The usage log as a CSV file (RFC 4180) of any length, read in pages while it is sent.

Each page is one short read that starts after the last line of the previous page. A task created meanwhile is newer
than all lines still to come, so no line is missing or repeated. A read that fails closes the connection, so that an
incomplete file does not look complete.

Spreadsheets take a cell that starts with one of :data:`FORMULA_STARTS` for a formula, and some texts come from
callers: such a cell gets a leading quote, which marks it as text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, NamedTuple

from quart import Response
from sqlalchemy import Connection

from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import Position, Window
from holdfast.ledger.clock import format_time
from holdfast.ledger.money import format_amount
from holdfast.persistence.queries.tasks import usage_of_account
from holdfast.persistence.records.row_types import UsageEntry
from holdfast.persistence.records.unreadable import UnreadableEntry

CSV_CONTENT_TYPE: Final = "text/csv; charset=utf-8"
PAGE_ROWS: Final = 1000
SEND_TIMEOUT_S: Final = 3600.0
"""How long a client may take to fetch one file."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

COLUMNS: Final[dict[str, Callable[[UsageEntry], str | int | None]]] = {
    "request_id": lambda entry: entry.request_id,
    "ts": lambda entry: format_time(entry.ts),
    "model": lambda entry: entry.model,
    "modality": lambda entry: entry.modality,
    "status": lambda entry: entry.status,
    "api_key_id": lambda entry: entry.api_key_id,
    "billable_units": lambda entry: entry.billable_units,
    "tokens_in": lambda entry: entry.tokens_in,
    "tokens_out": lambda entry: entry.tokens_out,
    "latency_ms": lambda entry: entry.latency_ms,
    "cost_credits": lambda entry: format_amount(entry.cost_micro),
    "operation_id": lambda entry: entry.operation_id,
    "error": lambda entry: entry.error,
}


class CsvPage(NamedTuple):
    """Lines of the file, the position of the last row, and the number of rows read."""

    lines: bytes
    last: Position | None
    lines_count: int


def read_csv_page(
    rows: Connection, account_id: str, window: Window, after: Position | None, rows_max: int
) -> CsvPage:
    """Read the next lines of an account's log, after ``after``."""
    entries = usage_of_account(
        rows,
        account_id,
        limit=rows_max,
        since=window.since,
        until=window.until,
        after=after,
        filters=window.filters,
    )
    last = None
    if entries:
        end = entries[-1]
        last = Position(end.at, end.id) if isinstance(end, UnreadableEntry) else Position(end.ts, end.request_id)
    readable = [entry for entry in entries if not isinstance(entry, UnreadableEntry)]
    lines = csv_lines([[cell(entry) for cell in COLUMNS.values()] for entry in readable])
    return CsvPage(lines, last, len(entries))


def page_rows(window: Window, sent: int) -> int:
    """Return the size of the next page, after ``sent`` rows; a given limit bounds the whole file."""
    return min(PAGE_ROWS, window.limit - sent) if window.limit_given else PAGE_ROWS


def csv_response(deps: Dependencies, account_id: str, window: Window, first: CsvPage) -> Response:
    """Return a response that starts with the page already read; further pages are read while it is sent."""
    response = Response(
        _pages(deps, account_id, window, first),
        content_type=CSV_CONTENT_TYPE,
        headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
    )
    response.timeout = SEND_TIMEOUT_S
    return response


async def _pages(deps: Dependencies, account_id: str, window: Window, first: CsvPage) -> AsyncIterator[bytes]:
    yield csv_lines([COLUMNS]) + first.lines
    page, rows_max, sent = first, page_rows(window, 0), first.lines_count
    while page.lines_count == rows_max and (rows_max := page_rows(window, sent)):
        after = page.last

        def read(rows: Connection, after: Position | None = after, rows_max: int = rows_max) -> CsvPage:
            return read_csv_page(rows, account_id, window, after, rows_max)

        page = await deps.database.read(read)
        sent += page.lines_count
        yield page.lines


def csv_lines(table: Iterable[Iterable[str | int | None]]) -> bytes:
    """Return rows as lines of a CSV file, with no cell that a spreadsheet takes for a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in table])
    return text.getvalue().encode()


def _cell(value: str | int | None) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
