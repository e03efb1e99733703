"""The query strings of lists (limit, from, to and cursors) and the pages they select.

A cursor is base64url of ``[version, created_at in microseconds, id, hash of list, owner and filters]``. It is
opaque and not secret: it holds only what its own list has shown. The hash makes a cursor of another list, of other
filters, or of another account an error instead of a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Parameter
from holdfast.http.kit.shown import invalid_parameter, missing_parameter
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableEntry

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

LIMIT_MAX: Final = 100
LIMIT_DEFAULT: Final = 20
FILTER_MAX_CHARS: Final = 200
CURSOR_MAX_CHARS: Final = 512
OPERATORS: Final = "operators"
"""The owner of the operators' lists in a cursor; an account's lists are owned by the account's id."""

_LIMIT = re.compile(r"[0-9]{1,3}", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_DATE_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = 1
_EARLIEST_US: Final = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST_US: Final = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Position(NamedTuple):
    """The last entry of the previous page; a list is ordered by (created_at, id), in either direction."""

    created_at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class Window:
    """The parameters of a list request. ``since`` is inclusive, ``until`` exclusive; ``filters`` are exact matches.

    ``kind`` names the list. ``limit`` is the default unless ``limit_given``.
    """

    kind: str
    limit: int
    limit_given: bool
    since: datetime | None
    until: datetime | None
    filters: Mapping[str, str]
    cursor: str | None

    @property
    def read_max(self) -> int:
        """How many entries to read: one more than a page shows whether another page follows."""
        return self.limit + 1

    def options(self, after: Position | None) -> ListOptions:
        """Return which entries to read, after a position."""
        return ListOptions(
            limit=self.read_max, since=self.since, until=self.until, after=after, filters=self.filters
        )


class ListOptions(TypedDict):
    """Which entries of a list to read: up to ``limit``, in the list's order, starting after ``after``."""

    limit: int
    since: datetime | None
    until: datetime | None
    after: Position | None
    filters: Mapping[str, str]


class Page(NamedTuple, Generic[E]):
    """A page of a list, and the cursor of the next page; None on the last page.

    ``unreadable`` are the ids of the entries that it should have, too, and whose rows cannot be decoded.
    """

    entries: list[E]
    next_cursor: str | None
    unreadable: list[str]


class Entries(Protocol[E_co]):
    """Reads entries of all accounts."""

    def __call__(self, rows: Connection, /, **options: Unpack[ListOptions]) -> Sequence[E_co | UnreadableEntry]:
        """Read them."""
        ...


class AccountEntries(Protocol[E_co]):
    """Reads entries of one account."""

    def __call__(
        self, rows: Connection, account_id: str, /, **options: Unpack[ListOptions]
    ) -> Sequence[E_co | UnreadableEntry] | Refusal:
        """Read them; may refuse a position that no entry of this list can have."""
        ...


async def list_of_account(
    call: Call,
    shape: type[msgspec.Struct],
    entries: AccountEntries[E],
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    *,
    kind: str,
    filters: Sequence[Parameter] = (),
) -> msgspec.Struct | Refusal:
    """Return a page of a list of the caller's account as a ``shape``; credential and page are one read.

    ``entries`` reads, ``body`` renders an entry, ``position`` returns its position; ``kind`` names the list.
    Refuses: 1. ``invalid_parameter``; 2. as the credential is refused; 3. ``invalid_cursor``.
    """
    window = read_window(call.query(), kind=kind, filters=filters)
    if isinstance(window, Refusal):
        return window

    def read(rows: Connection, account_id: str) -> Page[E] | Refusal:
        after = read_cursor(account_id, window)
        if isinstance(after, Refusal):
            return after
        found = entries(rows, account_id, **window.options(after))
        return found if isinstance(found, Refusal) else cut_page(found, account_id, window, position)

    page = await call.read_as_caller(read)
    return page if isinstance(page, Refusal) else _list_body(shape, page, body)


async def list_of_all_accounts(
    call: Call,
    shape: type[msgspec.Struct],
    entries: Entries[E],
    body: Callable[[E], msgspec.Struct],
    position: Callable[[E], Position],
    *,
    kind: str,
    filters: Sequence[Parameter] = (),
) -> msgspec.Struct | Refusal:
    """Return a page of a list over all accounts, as :func:`list_of_account` does for one."""
    asked = read_asked(call, OPERATORS, kind=kind, filters=filters)
    if isinstance(asked, Refusal):
        return asked
    window, after = asked
    found = await call.deps.database.read(lambda rows: entries(rows, **window.options(after)))
    return _list_body(shape, cut_page(found, OPERATORS, window, position), body)


def _list_body(shape: type[msgspec.Struct], page: Page[E], body: Callable[[E], msgspec.Struct]) -> msgspec.Struct:
    unreadable = {"unreadable": page.unreadable} if page.unreadable else {}
    return shape(data=[body(entry) for entry in page.entries], next_cursor=page.next_cursor, **unreadable)


def read_asked(
    call: Call, owner: str, *, kind: str, filters: Sequence[Parameter] = ()
) -> tuple[Window, Position | None] | Refusal:
    """Return a list's window, and the position of its cursor in the list of ``owner``.

    Refuses as :func:`read_window` and :func:`read_cursor` do.
    """
    window = read_window(call.query(), kind=kind, filters=filters)
    if isinstance(window, Refusal):
        return window
    after = read_cursor(owner, window)
    return after if isinstance(after, Refusal) else (window, after)


def read_window(
    query: Mapping[str, Sequence[str]], *, kind: str, filters: Sequence[Parameter] = ()
) -> Window | Refusal:
    """Parse a list's query string; repeated keys are refused.

    ``filters`` whose schema has an ``enum`` accept its values only. Refuses with ``invalid_parameter`` or
    ``missing_parameter``, naming the key.
    """
    values: dict[str, str] = {}
    names = [each.name for each in filters]
    for name in ("limit", "from", "to", "cursor", *names):
        sent = query.get(name, ())
        if len(sent) > 1:
            return invalid_parameter(name, f"was sent {len(sent)} times")
        if sent:
            values[name] = sent[0]
    limit_text = values.get("limit", str(LIMIT_DEFAULT))
    if not _LIMIT.fullmatch(limit_text) or not 1 <= int(limit_text) <= LIMIT_MAX:
        return invalid_parameter("limit", f"must be a whole number from 1 to {LIMIT_MAX}", limit_text)
    times: dict[str, datetime] = {}
    for name in ("from", "to"):
        if name in values:
            at = read_time(values[name])
            if at is None:
                return invalid_parameter(name, "must be an RFC 3339 time with an offset, or a date", values[name])
            times[name] = at
    if "from" in times and "to" in times and times["from"] >= times["to"]:
        return invalid_parameter("from", "must be earlier than to", values["from"])
    for each in filters:
        refusal = _refuse_filter(each, values.get(each.name))
        if refusal is not None:
            return refusal
    return Window(
        kind=kind,
        limit=int(limit_text),
        limit_given="limit" in values,
        since=times.get("from"),
        until=times.get("to"),
        filters={name: values[name] for name in names if name in values},
        cursor=values.get("cursor"),
    )


def _refuse_filter(parameter: Parameter, value: str | None) -> Refusal | None:
    name, known = parameter.name, parameter.schema.get("enum")
    if value is None:
        return missing_parameter(name) if parameter.required else None
    if isinstance(known, list) and value not in known:
        return invalid_parameter(name, "must be one of " + ", ".join(known), value)
    if len(value) > FILTER_MAX_CHARS or "\0" in value:
        return invalid_parameter(name, f"must have at most {FILTER_MAX_CHARS} characters and no NUL", value)
    return None


def read_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time with an offset, or a date as its midnight in UTC; None for anything else."""
    text = text.replace(" ", "+")  # an offset's plus sign, sent unencoded in a query string
    try:
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        if _DATE_TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return None


def cut_page(
    found: Sequence[E | UnreadableEntry], owner: str, window: Window, position: Callable[[E], Position]
) -> Page[E]:
    """Return a page of up to ``window.read_max`` entries. ``position`` returns an entry's position.

    A row that cannot be decoded counts towards the page, which names it.
    """
    page = found[: window.limit]
    entries = [entry for entry in page if not isinstance(entry, UnreadableEntry)]
    unreadable = [entry.id for entry in page if isinstance(entry, UnreadableEntry)]
    if len(found) <= window.limit:
        return Page(entries, None, unreadable)
    last = page[-1]
    at = Position(last.at, last.id) if isinstance(last, UnreadableEntry) else position(last)
    return Page(entries, write_cursor(at, owner, window), unreadable)


def write_cursor(position: Position, owner: str, window: Window) -> str:
    """Return the cursor of the page after ``position`` in the list of ``owner``, usually an account's id."""
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


def _binding(owner: str, window: Window) -> str:
    """Return a hash of everything that determines the list's entries; the page size may change."""
    facts = [
        window.kind,
        owner,
        window.since and window.since.isoformat(),
        window.until and window.until.isoformat(),
        sorted(window.filters.items()),
    ]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]
