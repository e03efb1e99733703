"""Lists: their query parameters, their pages with cursors, and a list as a CSV file.

A list's route says what it takes and what it returns: its query parameters besides those of :data:`PAGE` and
:data:`FORMAT` are the list's filters, and its ``reply`` is a :class:`ListBody`.

A cursor is base64url of ``[version, created_at in microseconds, id, hash of list, owner and filters]``. It is
opaque and not secret: it holds only what its own list has shown. The hash makes a cursor of another list, of other
filters, or of another account an error instead of a wrong page.

A CSV file (RFC 4180) has any length and is read in pages while it is sent, each by one short read that starts after
the last line of the previous page. What is added meanwhile is newer than all lines still to come, so no line is
missing or repeated. A read that fails closes the connection, so that an incomplete file does not look complete.
Spreadsheets take a cell that starts with one of :data:`FORMULA_STARTS` for a formula, and some texts come from
callers: such a cell gets a leading quote, which marks it as text, unless it is a number below zero.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, get_args

import msgspec
from quart import Response
from sqlalchemy import Connection

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Declaration, Media, Outcome, Parameter
from holdfast.http.kit.values import SHOWN_CHARS_MAX, invalid_parameter, missing_parameter, read_time
from holdfast.ledger.public_types import Amount
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TaskStatus
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.queries.ledger import NUMBER_MAX
from holdfast.persistence.queries.newest import Listed, totals_of
from holdfast.persistence.queries.paging import EARLIEST, LATEST, ScanEnd
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.lookups import Find

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

LIMIT_MAX: Final = 100
LIMIT_DEFAULT: Final = 20
FILTER_MAX_CHARS: Final = 512
"""As long as a text of the metadata may be, which the end user is."""
METADATA_NAMES_MAX: Final = 16
CURSOR_MAX_CHARS: Final = 512
OPERATORS: Final = "operators"
"""The owner of the operators' lists in a cursor; an account's lists are owned by the account's id."""

CSV_CONTENT_TYPE: Final = "text/csv; charset=utf-8"
CSV_PAGE_ROWS: Final = 250
"""So few that reading and writing them keeps no other request waiting."""
SEND_TIMEOUT_S: Final = 3600.0
"""How long a client may take to fetch one file."""
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")
"""The signs also in full width, which spreadsheets for East Asian languages take for the same."""

_LIMIT = re.compile(r"[0-9]{1,3}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_NUMBER = re.compile(r"-[0-9]+(?:\.[0-9]+)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = 1
_EARLIEST_US: Final = (EARLIEST - _EPOCH) // timedelta(microseconds=1)
_LATEST_US: Final = (LATEST - _EPOCH) // timedelta(microseconds=1)

# ------------------------------------------------------------------------------------------ what a list declares


def filter_by(name: str, description: str, values: Sequence[str] = ()) -> Parameter:
    """Return the parameter that selects entries by a text, or by one of ``values``."""
    limit = {"enum": list(values)} if values else {"maxLength": FILTER_MAX_CHARS}
    return Parameter(name, "query", description, schema={"type": "string", **limit})


STATUS: Final = filter_by("status", "Only entries with this status.", get_args(TaskStatus))
MODEL: Final = filter_by("model", "Only entries of this model.")
METADATA: Final = Parameter(
    "metadata",
    "query",
    "Only entries of tasks whose `metadata` has this text by this name: `metadata[name]=text`, once for each name.",
    schema={"type": "object", "additionalProperties": {"type": "string"}, "examples": [{"project": "poster"}]},
)
API_KEY_ID: Final = filter_by("api_key_id", "Only entries of tasks that this API key created.")
END_USER: Final = filter_by(
    "end_user", "Only entries of this end user, the text `end_user` of a task's `metadata`."
)
FROM: Final = Parameter(
    "from", "query", "Only entries created at or after this RFC 3339 time with an offset; a date is midnight UTC."
)
TO: Final = Parameter(
    "to", "query", "Only entries created before this RFC 3339 time with an offset; a date is midnight UTC."
)
CURSOR: Final = Parameter(
    "cursor",
    "query",
    "`next_cursor` of the previous page, requested with the same filters.",
    schema={"type": "string", "maxLength": CURSOR_MAX_CHARS},
)
LIMIT: Final = Parameter(
    "limit",
    "query",
    "The maximum number of entries on a page.",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
)
PAGE: Final = (FROM, TO, CURSOR, LIMIT)
"""The parameters of every list with pages."""
FORMAT: Final = Parameter(
    "format",
    "query",
    "`csv` returns a file of all matching entries, or of `limit` entries.",
    schema={"type": "string", "enum": ["json", "csv"], "default": "json"},
)

_NO_FILTERS: Final = frozenset(each.name for each in (*PAGE, FORMAT))


class ListBody(msgspec.Struct, Generic[E], frozen=True):
    """A page of a list."""

    data: list[E]
    """The entries of this page."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class StoredListBody(ListBody[E], Generic[E], frozen=True):
    """A page of a list of rows that hold whole values."""

    unreadable: list[str] = msgspec.field(default_factory=list)
    """The ids of entries that cannot be read now; usually empty."""


class ListTotal(msgspec.Struct, frozen=True):
    """How many entries of a list have a status."""

    name: str
    """The status."""
    count: int
    """How many entries have it."""
    amount: Amount | None
    """The sum of their amounts in this currency; null for tasks."""
    currency: str | None
    """The currency of the amounts, ISO 4217 or credits; null for tasks."""


class TotalledListBody(StoredListBody[E], Generic[E], frozen=True):
    """A page of a list with its totals."""

    totals: list[ListTotal] = msgspec.field(default_factory=list)
    """The totals of all pages; on the first page only."""
    are_totals_cut: bool = False
    """Whether they are of the newest entries only, since there are more than are counted."""


class CsvFile(NamedTuple, Generic[E]):
    """A list's file: its name, and its columns by their names, with what each shows of an entry."""

    name: str
    columns: Mapping[str, Callable[[E], str | int | None]]


def columns_of(*paths: str) -> dict[str, Callable[[Any], str | int | None]]:
    """Return columns that show attributes, each by its last name; ``request.amount_micro`` as ``amount``."""

    def cell(read: Callable[[Any], Any], is_micro: bool, entry: object) -> str | int | None:
        value = read(entry)
        if is_micro and value is not None:
            return format_amount(value)
        return format_time(value) if isinstance(value, datetime) else value

    return {
        path.rpartition(".")[2].removesuffix("_micro"): partial(cell, attrgetter(path), path.endswith("_micro"))
        for path in paths
    }


# ------------------------------------------------------------------------------------------ what a request asks for


class Position(NamedTuple):
    """The last entry of the previous page; a list is ordered by (created_at, id), in either direction."""

    created_at: datetime
    id: str


class ListOptions(TypedDict):
    """Which entries of a list to read: up to ``limit``, in the list's order, starting after ``after``."""

    limit: int
    since: datetime | None
    until: datetime | None
    after: Position | None
    filters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The parameters of a list request. ``since`` is inclusive, ``until`` exclusive; ``filters`` are exact matches.

    ``path`` names the list. ``limit`` is the default unless ``limit_given``.
    """

    path: str
    limit: int
    limit_given: bool
    since: datetime | None
    until: datetime | None
    filters: Mapping[str, str]
    cursor: str | None
    is_file: bool

    @property
    def is_beginning(self) -> bool:
        """Whether it is the first page of the whole list."""
        return self.cursor is None and not (self.since or self.until or self.filters or self.is_file)

    def options(self, after: Position | None, limit: int) -> ListOptions:
        """Return which entries to read, after a position: one more than ``limit`` shows whether others follow."""
        return ListOptions(limit=limit + 1, since=self.since, until=self.until, after=after, filters=self.filters)


def is_asked_for(position: Position, options: ListOptions) -> bool:
    """Whether an entry of a list that is ordered newest first is of the time asked for, and follows ``after``."""
    since, until, after = options["since"], options["until"], options["after"]
    return (
        (since is None or position.created_at >= since)
        and (until is None or position.created_at < until)
        and (after is None or position < after)
    )


def read_window(call: Call, *, zone: tzinfo = UTC) -> Window | Refusal:
    """Parse the query string of a list by the parameters of its route; repeated keys are refused.

    A date is midnight in ``zone``. A filter whose schema has an ``enum`` accepts its values only. Refuses with
    ``invalid_parameter`` or ``missing_parameter``, naming the key.
    """
    route, query = call.route, call.query()
    assert isinstance(route, Declaration)
    for name, sent in query.items():
        if len(sent) > 1:
            return invalid_parameter(name, f"was sent {len(sent)} times")
    values = {name: sent[0] for name, sent in query.items()}
    filters = [
        (name, each)
        for each in route.parameters
        if each.location == "query" and each.name not in _NO_FILTERS
        for name in (filter(each.is_sent_as, query) if each.has_keys else [each.name])
    ]
    limit_text = values.get("limit", str(LIMIT_DEFAULT))
    if not _LIMIT.fullmatch(limit_text) or not 1 <= int(limit_text) <= LIMIT_MAX:
        return invalid_parameter("limit", f"must be a whole number from 1 to {LIMIT_MAX}", limit_text)
    times: dict[str, datetime] = {}
    for name in ("from", "to"):
        if name in values:
            at = read_time(name, values[name], zone)
            if isinstance(at, Refusal):
                return at
            times[name] = at
    if "from" in times and "to" in times and times["from"] >= times["to"]:
        return invalid_parameter("from", "must be earlier than to", values["from"])
    refusal = refuse_filters([(FORMAT.name, FORMAT), *filters], values)
    if refusal is not None:
        return refusal
    return Window(
        path=route.path,
        limit=int(limit_text),
        limit_given="limit" in values,
        since=times.get("from"),
        until=times.get("to"),
        filters={name: values[name] for name, _ in filters if name in values},
        cursor=values.get("cursor"),
        is_file=values.get(FORMAT.name) == "csv",
    )


def refuse_filters(filters: Sequence[tuple[str, Parameter]], values: Mapping[str, str]) -> Refusal | None:
    """Refuse the first of ``filters`` that ``values`` lacks or has not as it is declared."""
    if sum(each.has_keys for _, each in filters) > METADATA_NAMES_MAX:
        return invalid_parameter(METADATA.name, f"may be sent for at most {METADATA_NAMES_MAX} names")
    refusals = (_refuse_filter(each, name, values.get(name)) for name, each in filters)
    return next((each for each in refusals if each is not None), None)


def _refuse_filter(parameter: Parameter, name: str, value: str | None) -> Refusal | None:
    known = parameter.schema.get("enum")
    if value is None:
        return missing_parameter(name) if parameter.required else None
    if isinstance(known, list) and value not in known:
        return invalid_parameter(name, "must be one of " + ", ".join(known), value)
    if max(len(name), len(value)) > FILTER_MAX_CHARS or "\0" in name + value:
        rule = f"must have at most {FILTER_MAX_CHARS} characters and no NUL"
        return invalid_parameter(name[:SHOWN_CHARS_MAX], rule, value)
    return None


# ------------------------------------------------------------------------------------------ cursors


def write_cursor(position: Position | None, owner: str, window: Window) -> str | None:
    """Return the cursor of the page after ``position`` in the list of ``owner``, usually an account's id."""
    if position is None:
        return None
    at_us = (position.created_at - _EPOCH) // timedelta(microseconds=1)
    raw = msgspec.json.encode([_VERSION, at_us, position.id, _binding(owner, window)])
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def read_cursor(owner: str, window: Window) -> Position | Refusal | None:
    """Return the position of the window's cursor, None without one. Refuses with ``invalid_cursor``."""
    if window.cursor is None:
        return None
    if len(window.cursor) > CURSOR_MAX_CHARS or not window.cursor.isascii():
        return INVALID_CURSOR
    try:
        padded = window.cursor.encode("ascii") + b"=" * (-len(window.cursor) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        version, at_us, last_id, binding = msgspec.json.decode(raw, type=tuple[int, int, str, str])
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        return INVALID_CURSOR
    if version != _VERSION or binding != _binding(owner, window):
        return INVALID_CURSOR
    if not _ID.fullmatch(last_id) or not _EARLIEST_US <= at_us <= _LATEST_US:
        return INVALID_CURSOR
    return Position(_EPOCH + timedelta(microseconds=at_us), last_id)


INVALID_CURSOR: Final = Refusal(
    code="invalid_cursor", message="The cursor does not belong to this list and its filters.", param="cursor"
)


def number_of(position: Position | None) -> int | Refusal | None:
    """Return the id of a position in a list of numbered entries. Refuses with ``invalid_cursor``."""
    if position is None:
        return None
    is_number = position.id.isdigit() and int(position.id) <= NUMBER_MAX
    return int(position.id) if is_number else INVALID_CURSOR


def _binding(owner: str, window: Window) -> str:
    """Return a hash of everything that determines the list's entries; the page size may change."""
    facts = [
        window.path,
        owner,
        window.since and window.since.isoformat(),
        window.until and window.until.isoformat(),
        sorted(window.filters.items()),
    ]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


# ------------------------------------------------------------------------------------------ pages


class Entries(Protocol[E_co]):
    """Reads entries of a list."""

    def __call__(
        self, rows: Connection, /, **options: Unpack[ListOptions]
    ) -> Sequence[E_co | UnreadableEntry | ScanEnd] | Refusal:
        """Read them; may refuse a position that no entry of this list can have, or a list that does not exist."""
        ...


class AccountEntries(Protocol[E_co]):
    """Reads entries of a list of one account."""

    def __call__(
        self, rows: Connection, account_id: str, /, **options: Unpack[ListOptions]
    ) -> Sequence[E_co | UnreadableEntry | ScanEnd] | Refusal:
        """Read them, as :class:`Entries` does."""
        ...


class Page(NamedTuple, Generic[E]):
    """A page of a list. ``unreadable`` are the ids of the entries that it should have, too.

    Their rows cannot be decoded. ``after`` is where the next page starts, None on the last page.
    """

    entries: list[E]
    unreadable: list[str]
    after: Position | None

    @property
    def read_count(self) -> int:
        """How many entries the page takes, with those that cannot be decoded."""
        return len(self.entries) + len(self.unreadable)


def cut_page(
    found: Sequence[E | UnreadableEntry | ScanEnd], limit: int, position: Callable[[E], Position]
) -> Page[E]:
    """Return the page of up to ``limit`` entries; if more were found, or the scan has an end, others follow.

    ``position`` returns an entry's position. A row that cannot be decoded counts towards the page, which names it.
    """
    page, after = found[:limit], None
    if found and isinstance(found[-1], ScanEnd):
        after = Position(*found[-1])
    elif len(found) > limit:
        last = page[-1]
        after = Position(last.at, last.id) if isinstance(last, UnreadableEntry | ScanEnd) else position(last)
    return Page(
        [entry for entry in page if not isinstance(entry, UnreadableEntry | ScanEnd)],
        [entry.id for entry in page if isinstance(entry, UnreadableEntry)],
        after,
    )


async def list_for_operators(
    call: Call,
    entries: Entries[E],
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    *,
    owner: str = OPERATORS,
    file: CsvFile[E] | None = None,
    totals: Listed | None = None,
    is_slow: bool = False,
) -> Outcome:
    """Return a page of an operators' list, or a file, as :func:`list_of_account` does of an account's.

    The body of a list with ``totals`` is a :class:`TotalledListBody`. One that ``is_slow`` may read a whole table.
    """
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    database = call.deps.database

    async def read(options: ListOptions) -> Sequence[E | UnreadableEntry | ScanEnd] | Refusal:
        return await (database.scan if is_slow else database.read)(lambda rows: entries(rows, **options))

    outcome = await _page_or_file(call, window, owner, read, body=body, position=position, file=file)
    if totals is None or window.cursor is not None or not isinstance(outcome, TotalledListBody):
        return outcome
    found, is_cut = await database.scan(lambda rows: totals_of(rows, totals, **window.options(None, 0)))
    shown = [
        ListTotal(name, count, None if micro is None else format_amount(micro), currency)
        for name, count, micro, currency in found
    ]
    return msgspec.structs.replace(outcome, totals=shown, are_totals_cut=is_cut)


async def list_of_account(
    call: Call,
    entries: AccountEntries[E],
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    *,
    file: CsvFile[E] | None = None,
    newest: Callable[[int], Find[str, Callable[[], Sequence[E | UnreadableEntry]]]] | None = None,
) -> Outcome:
    """Return a page of a list of the caller's account, or with ``format=csv`` the ``file``, if the list has one.

    ``entries`` reads, ``body`` renders an entry, ``position`` returns its position. ``newest`` finds the first so
    many entries of an account and returns what decodes them, for first pages of the usual size: they are looked up
    together with the credential.

    Refuses, before a file starts: 1. ``invalid_parameter``; 2. as the credential is refused; 3. ``invalid_cursor``.
    """
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    if newest is not None and window.is_beginning and window.limit <= LIMIT_DEFAULT:
        found = await call.look_up_as_caller(newest(window.limit + 1))
        if isinstance(found, Refusal):
            return found
        assert call.request.caller is not None
        page = cut_page(found() if found else [], window.limit, position)
        return _list_body(call, window, call.request.caller, page, body)
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id

    async def read(options: ListOptions) -> Sequence[E | UnreadableEntry | ScanEnd] | Refusal:
        return await call.read(lambda rows: entries(rows, account_id, **options))

    return await _page_or_file(call, window, account_id, read, body=body, position=position, file=file)


async def _page_or_file(
    call: Call,
    window: Window,
    owner: str,
    read: Callable[[ListOptions], Awaitable[Sequence[E | UnreadableEntry | ScanEnd] | Refusal]],
    *,
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    file: CsvFile[E] | None,
) -> Outcome:
    after = read_cursor(owner, window)
    if isinstance(after, Refusal):
        return after
    limit = _file_page_rows(window, 0) if window.is_file else window.limit
    found = await read(window.options(after, limit))
    if isinstance(found, Refusal):
        return found
    page = cut_page(found, limit, position)
    if file is None or not window.is_file:
        return _list_body(call, window, owner, page, body)

    async def read_on(after: Position, limit: int) -> Page[E]:
        found = await read(window.options(after, limit))
        assert not isinstance(found, Refusal), "the position is that of an entry of this list"
        return cut_page(found, limit, position)

    response = Response(
        _file_parts(window, file, page, read_on),
        content_type=CSV_CONTENT_TYPE,
        headers={"Content-Disposition": f'attachment; filename="{file.name}"'},
    )
    response.timeout = SEND_TIMEOUT_S
    return response


def _list_body(
    call: Call, window: Window, owner: str, page: Page[E], body: Callable[[E], msgspec.Struct]
) -> msgspec.Struct:
    assert isinstance(call.route, Declaration)
    assert call.route.reply is not None
    unreadable = {"unreadable": page.unreadable} if page.unreadable else {}
    cursor = write_cursor(page.after, owner, window)
    return call.route.reply(data=[body(entry) for entry in page.entries], next_cursor=cursor, **unreadable)


# ------------------------------------------------------------------------------------------ CSV files


def _file_page_rows(window: Window, sent: int) -> int:
    """Return the size of a file's next page, after ``sent`` rows; a given limit bounds the whole file."""
    return min(CSV_PAGE_ROWS, window.limit - sent) if window.limit_given else CSV_PAGE_ROWS


async def _file_parts(
    window: Window, file: CsvFile[E], page: Page[E], read_on: Callable[[Position, int], Awaitable[Page[E]]]
) -> AsyncIterator[bytes]:
    yield csv_lines([file.columns])
    sent = 0
    while True:
        yield csv_lines([[cell(entry) for cell in file.columns.values()] for entry in page.entries])
        sent += page.read_count
        after, limit = page.after, _file_page_rows(window, sent)
        if after is None or not limit:
            return
        page = await read_on(after, limit)


def csv_media(columns: Iterable[str]) -> Media:
    """Return the declaration of a file with these columns, which a list may be returned as."""
    head = csv_lines([columns]).decode()
    return Media(status=200, content_types=("text/csv",), description="A page, or a CSV file.", example=head)


def csv_lines(table: Iterable[Iterable[str | int | None]]) -> bytes:
    """Return rows as lines of a CSV file, with no cell that a spreadsheet takes for a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in table])
    return text.getvalue().encode()


def _cell(value: str | int | None) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
