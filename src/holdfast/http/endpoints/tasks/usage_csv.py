"""The usage log as a file of comma-separated values (RFC 4180): all of it, however long, a page of rows at a time.

Each page is one short read that begins behind the last line of the page before, and its lines are written on the
reader's thread; between pages nothing is held but one position. A task that is made meanwhile is newer than every
line still to come, so no line is missing or there twice. A read that fails breaks the connection off, so that half
a file does not look like a whole one.

Spreadsheets take a cell that begins with one of :data:`FORMULA_STARTS` for a formula, and some of the texts are not
ours: such a cell gets a leading quote, which spreadsheets read as "this is text".
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
from holdfast.ledger.tasks.task import UsageEntry
from holdfast.persistence.queries.usage import usage_of_account
from holdfast.persistence.records.unreadable import LeftOut

CSV_CONTENT_TYPE: Final = "text/csv; charset=utf-8"
PAGE_ROWS: Final = 1000
SEND_TIMEOUT_S: Final = 3600.0
"""How long one export may take to be fetched, however slow the line."""

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
    """Some lines, the position behind them, and how many rows they come from."""

    lines: bytes
    last: Position | None
    lines_count: int


def read_csv_page(
    rows: Connection, account_id: str, window: Window, after: Position | None, rows_max: int
) -> CsvPage:
    """The next lines of an account's log behind ``after``."""
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
        last = Position(end.at, end.id) if isinstance(end, LeftOut) else Position(end.ts, end.request_id)
    readable = [entry for entry in entries if not isinstance(entry, LeftOut)]
    lines = written([[cell(entry) for cell in COLUMNS.values()] for entry in readable])
    return CsvPage(lines, last, len(entries))


def rows_wanted(window: Window, sent: int) -> int:
    """How many rows the next page has at most: all there are, unless a limit was given."""
    return min(PAGE_ROWS, window.limit - sent) if window.limit_given else PAGE_ROWS


def csv_answer(deps: Dependencies, account_id: str, window: Window, first: CsvPage) -> Response:
    """An answer that begins with the page already read; the rest is read as it is taken."""
    response = Response(
        _pages(deps, account_id, window, first),
        content_type=CSV_CONTENT_TYPE,
        headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
    )
    response.timeout = SEND_TIMEOUT_S
    return response


async def _pages(deps: Dependencies, account_id: str, window: Window, first: CsvPage) -> AsyncIterator[bytes]:
    yield written([COLUMNS]) + first.lines
    page, wanted, sent = first, rows_wanted(window, 0), first.lines_count
    while page.lines_count == wanted and (wanted := rows_wanted(window, sent)):
        after = page.last

        def read(rows: Connection, after: Position | None = after, wanted: int = wanted) -> CsvPage:
            return read_csv_page(rows, account_id, window, after, wanted)

        page = await deps.database.read(read)
        sent += page.lines_count
        yield page.lines


def written(table: Iterable[Iterable[str | int | None]]) -> bytes:
    """Rows as lines of a file, no cell of which is taken for a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in table])
    return text.getvalue().encode()


def _cell(value: str | int | None) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
