"""Pages of rows by (time, id): one keyset query for every list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, Required, TypeAlias, TypedDict, Unpack

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    true,
    tuple_,
)

from holdfast.persistence.records.unreadable import UnreadableEntry, UnreadableRow
from holdfast.persistence.server.repeated_queries import RepeatedQuery, each_of

PAGE_SHAPES_MAX: Final = 200
"""How many combinations of a list, its filters and limits are compiled at a time; there are fewer."""

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The bounds of times in positions: in any zone they are of a year that Python can hold."""

Order: TypeAlias = tuple[Column[Any], Column[Any]]


class ScanEnd(NamedTuple):
    """The last element of a page that is not full, though others may follow: the position (time, id) of its end."""

    at: datetime
    id: str


class PageOptions(TypedDict, total=False):
    """Up to ``limit`` entries from ``since`` on and before ``until``, after the position ``after`` (time, id)."""

    limit: Required[int]
    since: datetime | None
    until: datetime | None
    after: tuple[datetime, str] | None


class AccountPageOptions(PageOptions, total=False):
    """A page of an account's list. ``filters`` are exact matches by column name."""

    filters: Mapping[str, str]


def page_of_account(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: Order,
    account_id: str,
    *,
    filters: Mapping[str, str] | None = None,
    **options: Unpack[PageOptions],
) -> Sequence[Any]:
    """Return a page of the account's ``entries``, newest first by ``order`` (time, id), as :func:`page` does."""
    given = {"account_id": account_id, **(filters or {}), **given_of(options)}
    with suppress(UnreadableRow):
        return _page_of_account(entries, order, tuple(given)).rows(rows, given)
    columns = order[0].table.c
    matches = [columns[name] == value for name, value in {"account_id": account_id, **(filters or {})}.items()]
    return page(rows, entries.where(*matches), order, **options)


@lru_cache(maxsize=PAGE_SHAPES_MAX)
def _page_of_account(entries: Select[*tuple[Any, ...]], order: Order, names: tuple[str, ...]) -> RepeatedQuery:
    columns = order[0].table.c
    matches = [columns[name] == bindparam(name) for name in names if name not in _BOUNDS]
    return RepeatedQuery(_page(entries.where(*matches), order, names))


def newest_of_accounts(
    rows: Connection, entries: Select[*tuple[Any, ...]], order: Order, account_ids: Sequence[str], *, limit: int
) -> dict[str, Sequence[Any]]:
    """Return the first page of each account's ``entries``, as :func:`page_of_account` does, by one query.

    The server returns the rows in order, but it need not. To have it promise that, it would sort all of them again,
    which takes a third of the query's time for four accounts, and a tenth for one. Rows of the same time are left
    as they come: only the server knows the collation of their ids.
    """
    found: dict[str, list[Any]] = {account_id: [] for account_id in account_ids}
    try:
        for row in _newest_of_accounts(entries, order, limit).rows(rows, {"account_ids": account_ids}):
            found[row.account_id].append(row)
    except UnreadableRow:
        return {each: page_of_account(rows, entries, order, each, limit=limit) for each in account_ids}
    time = attrgetter(order[0].name)
    return {account_id: sorted(listed, key=time, reverse=True) for account_id, listed in found.items()}


@lru_cache(maxsize=PAGE_SHAPES_MAX)
def _newest_of_accounts(entries: Select[*tuple[Any, ...]], order: Order, limit: int) -> RepeatedQuery:
    columns = order[0].table.c
    asked = each_of("account_ids", Text())
    of_account = entries.where(columns.account_id == asked.c.key).order_by(*(each.desc() for each in order))
    # With a limit that is a parameter the server would plan each execution.
    newest = of_account.limit(literal_column(str(limit))).lateral("newest")
    return RepeatedQuery(select(newest).select_from(asked.join(newest, true())))


def page(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: Order,
    *,
    oldest_first: bool = False,
    **options: Unpack[PageOptions],
) -> Sequence[Row[*tuple[Any, ...]] | UnreadableEntry]:
    """Return a page of ``entries`` in the order of (time, id), as :func:`readable_rows` does."""
    given = given_of(options)
    return readable_rows(rows, _page(entries, order, tuple(given), oldest_first=oldest_first), order, given)


def readable_rows(
    rows: Connection, query: Select[*tuple[Any, ...]], order: Order, given: Mapping[str, Any]
) -> Sequence[Row[*tuple[Any, ...]] | UnreadableEntry]:
    """Return the rows of a query. If Python cannot hold a value, each is read by itself, or else its position."""
    with suppress(UnreadableRow):
        return rows.execute(query, given).all()
    time, row_id = order
    positions = rows.execute(query.with_only_columns(held(time), row_id, maintain_column_froms=True), given)
    return each_readable(
        positions.all(), lambda position: rows.execute(query.where(row_id == position[1]), given).all()
    )


def each_readable(
    positions: Iterable[Row[*tuple[Any, ...]]],
    read: Callable[[Row[*tuple[Any, ...]]], Iterable[Row[*tuple[Any, ...]]]],
) -> list[Row[*tuple[Any, ...]] | UnreadableEntry]:
    """Read the row of each position (time, id) by itself; an unreadable one is its position."""
    found: list[Row[*tuple[Any, ...]] | UnreadableEntry] = []
    for position in positions:
        try:
            found += read(position)
        except UnreadableRow:
            at, row_id = position
            found.append(UnreadableEntry(at, str(row_id)))
    return found


def held(time: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """Return a time that Python can hold: one beyond is the bound."""
    return func.least(func.greatest(time, EARLIEST), LATEST)


_BOUNDS: Final = frozenset({"since", "until", "after_at", "after_id", "beyond_at", "beyond_id", "limit"})


def given_of(options: PageOptions) -> dict[str, Any]:
    """Return the bounds of a page by the names of their parameters.

    A page that follows a row whose time Python cannot hold is ``beyond`` it: its time is that of its row.
    """
    given: dict[str, Any] = {name: options[name] for name in ("since", "until") if options.get(name) is not None}
    after = options.get("after")
    if after is not None:
        name = "beyond" if after[0] in (EARLIEST, LATEST) else "after"
        given[f"{name}_at"], given[f"{name}_id"] = after
    return given | {"limit": options["limit"]}


def _page(
    entries: Select[*tuple[Any, ...]], order: Order, names: Sequence[str], *, oldest_first: bool = False
) -> Select[*tuple[Any, ...]]:
    """Return the query of a page whose bounds are the parameters ``names``."""
    time, row_id = order
    if "since" in names:
        entries = entries.where(time >= bindparam("since"))
    if "until" in names:
        entries = entries.where(time < bindparam("until"))
    cursor = None
    if "after_at" in names:
        cursor = tuple_(bindparam("after_at", type_=time.type), bindparam("after_id", type_=row_id.type))
    elif "beyond_at" in names:
        last, last_id = time.table.alias(), bindparam("beyond_id", type_=row_id.type)
        at = select(func.max(last.c[time.name])).where(last.c[row_id.name] == last_id).scalar_subquery()
        cursor = tuple_(func.coalesce(at, bindparam("beyond_at", type_=time.type)), last_id)
    if cursor is not None:
        row = tuple_(time, row_id)
        entries = entries.where(row > cursor if oldest_first else row < cursor)
    ordered: tuple[ColumnElement[Any], ...] = (time, row_id) if oldest_first else (time.desc(), row_id.desc())
    return entries.order_by(*ordered).limit(bindparam("limit"))
