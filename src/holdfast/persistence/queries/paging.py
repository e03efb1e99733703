"""Pages of rows by (time, id): one keyset query for every list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Required, TypeAlias, TypedDict, Unpack

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, bindparam, func, tuple_

from holdfast.persistence.records.unreadable import UnreadableEntry, UnreadableRow
from holdfast.persistence.server.repeated_queries import RepeatedQuery

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
) -> list[Any]:
    """Return a page of the account's ``entries``, newest first by ``order`` (time, id)."""
    given = {"account_id": account_id, **(filters or {}), **given_of(options)}
    return _page_of_account(entries, order, tuple(given)).rows(rows, given)


def readable_page_of_account(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: Order,
    account_id: str,
    *,
    filters: Mapping[str, str] | None = None,
    **options: Unpack[PageOptions],
) -> Sequence[Any]:
    """Return a page as :func:`page_of_account` does, and unreadable rows as :func:`readable_page` does."""
    with suppress(UnreadableRow):
        return page_of_account(rows, entries, order, account_id, filters=filters, **options)
    columns = order[0].table.c
    matches = [columns[name] == value for name, value in {"account_id": account_id, **(filters or {})}.items()]
    return readable_page(rows, entries.where(*matches), order, **options)


@lru_cache(maxsize=PAGE_SHAPES_MAX)
def _page_of_account(entries: Select[*tuple[Any, ...]], order: Order, names: tuple[str, ...]) -> RepeatedQuery:
    columns = order[0].table.c
    matches = [columns[name] == bindparam(name) for name in names if name not in _BOUNDS]
    return RepeatedQuery(_page(entries.where(*matches), order, names))


def page(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: Order,
    *,
    oldest_first: bool = False,
    **options: Unpack[PageOptions],
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return a page of ``entries`` in the order of (time, id)."""
    given = given_of(options)
    return rows.execute(_page(entries, order, tuple(given), oldest_first=oldest_first), given).all()


def readable_page(
    rows: Connection,
    entries: Select[*tuple[Any, ...]],
    order: Order,
    *,
    oldest_first: bool = False,
    **options: Unpack[PageOptions],
) -> Sequence[Row[*tuple[Any, ...]] | UnreadableEntry]:
    """Return a page as :func:`page` does, with the positions of rows that have a value which Python cannot hold."""
    given = given_of(options)
    return readable_rows(rows, _page(entries, order, tuple(given), oldest_first=oldest_first), order, given)


def readable_rows(
    rows: Connection, query: Select[*tuple[Any, ...]], order: Order, given: Mapping[str, Any]
) -> Sequence[Row[*tuple[Any, ...]] | UnreadableEntry]:
    """Return the rows of a query. If Python cannot hold a value, each is read by itself, or else its position."""
    with suppress(UnreadableRow):
        return rows.execute(query, given).all()
    time, row_id = order
    at = func.least(func.greatest(time, EARLIEST), LATEST)
    found: list[Row[*tuple[Any, ...]] | UnreadableEntry] = []
    for position in rows.execute(query.with_only_columns(at, row_id, maintain_column_froms=True), given).all():
        try:
            found += rows.execute(query.where(row_id == position[1]), given).all()
        except UnreadableRow:
            found.append(UnreadableEntry(*position))
    return found


_BOUNDS: Final = frozenset({"since", "until", "after_at", "after_id", "limit"})


def given_of(options: PageOptions) -> dict[str, Any]:
    """Return the bounds of a page by the names of their parameters."""
    given: dict[str, Any] = {name: options[name] for name in ("since", "until") if options.get(name) is not None}
    after = options.get("after")
    if after is not None:
        given["after_at"], given["after_id"] = after
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
    if "after_at" in names:
        at, after_id = bindparam("after_at", type_=time.type), bindparam("after_id", type_=row_id.type)
        row, cursor = tuple_(time, row_id), tuple_(at, after_id)
        entries = entries.where(row > cursor if oldest_first else row < cursor)
    ordered: tuple[ColumnElement[Any], ...] = (time, row_id) if oldest_first else (time.desc(), row_id.desc())
    return entries.order_by(*ordered).limit(bindparam("limit"))
