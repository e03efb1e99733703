"""Pages of rows by (time, id): one keyset query for every list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Required, TypeAlias, TypedDict, Unpack

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, bindparam, tuple_

from holdfast.persistence.server.repeated_queries import RepeatedQuery

PAGE_SHAPES_MAX: Final = 200
"""How many combinations of a list, its filters and limits are compiled at a time; there are fewer."""

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
