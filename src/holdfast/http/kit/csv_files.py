"""An account's list as a CSV file (RFC 4180) of any length, read in pages while it is sent.

Each page is one short read that starts after the last line of the previous page. What is added meanwhile is newer
than all lines still to come, so no line is missing or repeated. A read that fails closes the connection, so that an
incomplete file does not look complete.

Spreadsheets take a cell that starts with one of :data:`FORMULA_STARTS` for a formula, and some texts come from
callers: such a cell gets a leading quote, which marks it as text, unless it is a number below zero.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from quart import Response
from sqlalchemy import Connection

from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import (
    AccountEntries,
    Position,
    Window,
    list_of_account,
    read_cursor,
    read_window,
)
from holdfast.http.kit.routes import Media, Outcome, Parameter
from holdfast.http.kit.shown import invalid_parameter
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableEntry

E = TypeVar("E")

Columns: TypeAlias = Mapping[str, Callable[[E], str | int | None]]
"""The columns of a file by their names: what each shows of an entry."""

CSV_CONTENT_TYPE: Final = "text/csv; charset=utf-8"
PAGE_ROWS: Final = 1000
SEND_TIMEOUT_S: Final = 3600.0
"""How long a client may take to fetch one file."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

FORMAT: Final = Parameter(
    "format",
    "query",
    "`csv` returns a file of all matching entries, or of `limit` entries.",
    schema={"type": "string", "enum": ["json", "csv"], "default": "json"},
)
FILE: Final = Media(status=200, content_types=("text/csv",), description="A page, or a CSV file.")

_NUMBER = re.compile(r"-[0-9]+(?:\.[0-9]+)?", re.ASCII)


class CsvPage(NamedTuple):
    """Lines of the file, the position of the last row, and the number of rows read."""

    lines: bytes
    last: Position | None
    lines_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFile(Generic[E]):
    """Which entries of whose list a file has, and its columns."""

    account_id: str
    window: Window
    entries: AccountEntries[E]
    position: Callable[[E], Position]
    columns: Columns[E]

    def page_rows(self, sent: int) -> int:
        """Return the size of the next page, after ``sent`` rows; a given limit bounds the whole file."""
        return min(PAGE_ROWS, self.window.limit - sent) if self.window.limit_given else PAGE_ROWS

    def read_page(self, rows: Connection, after: Position | None, rows_max: int) -> CsvPage | Refusal:
        """Read the next lines, after ``after``. May refuse a position that no entry can have."""
        options = self.window.options(after)
        options["limit"] = rows_max
        found = self.entries(rows, self.account_id, **options)
        if isinstance(found, Refusal):
            return found
        readable = [entry for entry in found if not isinstance(entry, UnreadableEntry)]
        lines = csv_lines([[cell(entry) for cell in self.columns.values()] for entry in readable])
        return CsvPage(lines, self._end(found), len(found))

    def _end(self, found: Sequence[E | UnreadableEntry]) -> Position | None:
        if not found:
            return None
        end = found[-1]
        return Position(end.at, end.id) if isinstance(end, UnreadableEntry) else self.position(end)


async def list_or_file(
    call: Call,
    shape: type[msgspec.Struct],
    entries: AccountEntries[E],
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    *,
    kind: str,
    columns: Columns[E],
    filters: Sequence[Parameter] = (),
) -> Outcome:
    """Return a page of a list of the caller's account, or with ``format=csv`` a file named after its ``kind``.

    Refuses as :func:`~holdfast.http.kit.listing.list_of_account` does, before a file starts.
    """
    formats = call.query().get(FORMAT.name, ["json"])
    if formats == ["json"]:
        return await list_of_account(call, shape, entries, body, position, kind=kind, filters=filters)
    if formats != ["csv"]:
        return invalid_parameter(FORMAT.name, "must be json or csv", formats[-1])
    window = read_window(call.query(), kind=kind, filters=filters)
    if isinstance(window, Refusal):
        return window

    def read(rows: Connection, account_id: str) -> tuple[CsvFile[E], CsvPage] | Refusal:
        after = read_cursor(account_id, window)
        if isinstance(after, Refusal):
            return after
        file = CsvFile(account_id=account_id, window=window, entries=entries, position=position, columns=columns)
        first = file.read_page(rows, after, file.page_rows(0))
        return first if isinstance(first, Refusal) else (file, first)

    found = await call.read_as_caller(read)
    if isinstance(found, Refusal):
        return found
    file, first = found
    response = Response(
        _pages(call.deps, file, first),
        content_type=CSV_CONTENT_TYPE,
        headers={"Content-Disposition": f'attachment; filename="{kind}.csv"'},
    )
    response.timeout = SEND_TIMEOUT_S
    return response


async def _pages(deps: Dependencies, file: CsvFile[E], first: CsvPage) -> AsyncIterator[bytes]:
    yield csv_lines([file.columns]) + first.lines
    page, rows_max, sent = first, file.page_rows(0), first.lines_count
    while page.lines_count == rows_max and (rows_max := file.page_rows(sent)):
        after = page.last

        def read(rows: Connection, after: Position | None = after, rows_max: int = rows_max) -> CsvPage | Refusal:
            return file.read_page(rows, after, rows_max)

        found = await deps.database.read(read)
        assert not isinstance(found, Refusal), "the position is that of an entry of this list"
        page = found
        sent += page.lines_count
        yield page.lines


def csv_lines(table: Iterable[Iterable[str | int | None]]) -> bytes:
    """Return rows as lines of a CSV file, with no cell that a spreadsheet takes for a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in table])
    return text.getvalue().encode()


def _cell(value: str | int | None) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
