"""Lists of all accounts, orders, tasks and coupons for operators, newest first by their ids, and their totals.

An id begins with the time at which it was made, so a page is read by the index that finds a row by its id, and
needs none of its own. With a filter it reads a bounded number of rows, and ends where they end. No index has the
largest balances, which every charge changes, or what was spent: these are read of all accounts at once, so their
reads, and those of totals, are for :meth:`Database.scan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, Unpack

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Row, Select, Text, case, cast, func, select

from holdfast.ledger.tasks.task import Task
from holdfast.ledger.values import CURRENCY
from holdfast.persistence.queries.finding import CLOCKS_APART_MS
from holdfast.persistence.queries.orders import ORDER_WITH_EMAIL, TroubledOrder
from holdfast.persistence.queries.paging import PageOptions, ScanEnd, held, readable_rows
from holdfast.persistence.records.credit_tables import CouponRow, coupons
from holdfast.persistence.records.reading import TASK, order_of, task_of
from holdfast.persistence.records.tables import accounts, operations, orders, tasks
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

SCANNED_MAX: Final = 20_000
"""How many rows a page with a filter reads at most, and totals too."""
ACCOUNTS_SCANNED_MAX: Final = 1_000_000
"""How many accounts: a part of an address is sought in all of them."""
TOTALLED_MAX: Final = 100_000
"""How many rows are counted without a filter."""

AccountState = Literal["open", "disabled", "closed"]
CouponState = Literal["open", "used_up", "ended"]
AccountOrder = Literal["newest", "balance", "spent"]
Listed = Literal["accounts", "orders", "tasks", "coupons"]
Filters: TypeAlias = Mapping[str, str]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _List(NamedTuple):
    """What one list selects, how its ids begin, and by what its totals are: a name, and sums by a currency."""

    entries: Select[*tuple[Any, ...]]
    row_id: Column[Any]
    prefix: str
    name: ColumnElement[str]
    amount: ColumnElement[Any]
    currency: ColumnElement[Any]
    scanned_max: int = SCANNED_MAX


class Total(NamedTuple):
    """How many entries of a list have this status, and the sum of their amounts in this currency."""

    name: str
    entries: int
    amount_micro: int | None
    currency: str | None


class ListedAccount(NamedTuple):
    """An account in a list. ``spent_micro`` is known in the order by it only."""

    account_id: str
    email: str
    created_at: datetime
    state: AccountState
    balance_micro: int
    held_micro: int
    operation_count: int
    spent_micro: int | None = None


_ACCOUNT_STATE: Final = case(
    (accounts.c.closed_at.is_not(None), "closed"), (accounts.c.disabled_at.is_not(None), "disabled"), else_="open"
)
_COUPON_STATE: Final = case(
    (coupons.c.disabled_at.is_not(None) | (coupons.c.redeem_until <= func.now()), "ended"),
    (coupons.c.uses >= coupons.c.uses_max, "used_up"),
    else_="open",
)
_LISTS: Final[dict[Listed, _List]] = {
    "accounts": _List(
        select(
            accounts.c.id.label("account_id"),
            *(accounts.c[name] for name in ("email", "created_at")),
            _ACCOUNT_STATE.label("state"),
            *(accounts.c[name] for name in ("balance_micro", "held_micro", "operation_count")),
        ),
        accounts.c.id,
        "acct_",
        _ACCOUNT_STATE,
        accounts.c.balance_micro,
        cast(CURRENCY, Text),
        ACCOUNTS_SCANNED_MAX,
    ),
    "orders": _List(
        ORDER_WITH_EMAIL,
        orders.c.order_id,
        "ord_",
        orders.c.status,
        cast(func.json_extract_path_text(orders.c.request, "amount_micro"), BigInteger),
        func.json_extract_path_text(orders.c.request, "currency"),
    ),
    "tasks": _List(TASK, tasks.c.request_id, "task_", tasks.c.status, cast(None, BigInteger), cast(None, Text)),
    "coupons": _List(
        select(coupons),
        coupons.c.coupon_id,
        "cpn_",
        _COUPON_STATE,
        coupons.c.amount_micro * coupons.c.uses,
        cast(CURRENCY, Text),
    ),
}


def _matches(of: _List, filters: Filters) -> list[ColumnElement[bool]]:
    """Return the conditions of filters: a part of an e-mail address, a state, or a column's value."""
    columns = of.row_id.table.c
    found = []
    for name, value in filters.items():
        if name == "email":
            found.append(accounts.c.email.contains(value.strip().lower(), autoescape=True))
        elif name == "state":
            found.append(of.name == value)
        elif name in columns:
            found.append(columns[name] == value)
    return found


def _id_at(of: _List, at: datetime, apart_ms: int) -> str:
    """Return the beginning of the ids that are made so many milliseconds after a time."""
    at_ms = (at - _EPOCH) // timedelta(milliseconds=1) + apart_ms
    return f"{of.prefix}{max(0, at_ms):012x}"


def _bounds(of: _List, options: PageOptions) -> list[ColumnElement[bool]]:
    """Return the conditions of a page: by the ids, and by the times exactly, since clocks differ a little."""
    created_at, found = of.row_id.table.c.created_at, list[ColumnElement[bool]]()
    since, until, after = options.get("since"), options.get("until"), options.get("after")
    if since is not None:
        found += [of.row_id >= _id_at(of, since, -CLOCKS_APART_MS), created_at >= since]
    if until is not None:
        found += [of.row_id < _id_at(of, until, CLOCKS_APART_MS), created_at < until]
    if after is not None:
        found.append(of.row_id < after[1])
    return found


def _conditions(
    rows: Connection, of: _List, filters: Filters, options: PageOptions, unfiltered_max: int | None
) -> tuple[list[ColumnElement[bool]], ScanEnd | None]:
    """Return what entries fulfil, and the last of the rows that may be read for them, None if there are fewer."""
    bounds, matches = _bounds(of, options), _matches(of, filters)
    most = of.scanned_max if matches else unfiltered_max
    if most is None:
        return bounds, None
    last = select(of.row_id).where(*bounds).order_by(of.row_id.desc()).offset(most - 1).limit(1).scalar_subquery()
    found = rows.execute(
        select(held(of.row_id.table.c.created_at), of.row_id).where(of.row_id == last)
    ).one_or_none()
    end = None if found is None else ScanEnd(*found)
    return [*bounds, *([] if end is None else [of.row_id >= end.id]), *matches], end


def _page(
    rows: Connection, of: _List, filters: Filters, options: PageOptions
) -> tuple[Sequence[Row[*tuple[Any, ...]] | UnreadableEntry], list[ScanEnd]]:
    """Return the rows of a page, and where its scan ends if that is before it is full."""
    conditions, end = _conditions(rows, of, filters, options, None)
    query = of.entries.where(*conditions).order_by(of.row_id.desc()).limit(options["limit"])
    found = readable_rows(rows, query, (of.row_id.table.c.created_at, of.row_id), {})
    return found, [] if end is None or len(found) == options["limit"] else [end]


def totals_of(
    rows: Connection, listed: Listed, *, filters: Filters, **options: Unpack[PageOptions]
) -> tuple[list[Total], bool]:
    """Return the totals of all pages of a list, and whether they are of so many of the newest rows only."""
    of = _LISTS[listed]
    unfiltered_max = min(of.scanned_max, TOTALLED_MAX)
    conditions, end = _conditions(rows, of, filters, {**options, "after": None}, unfiltered_max)
    query = (
        select(of.name, func.count(), cast(func.sum(of.amount), BigInteger), of.currency)
        .where(*conditions)
        .group_by(of.name, of.currency)
        .order_by(of.name, of.currency)
    )
    return [Total._make(row) for row in rows.execute(query)], end is not None


def list_accounts(
    rows: Connection, *, filters: Filters, now: datetime, **options: Unpack[PageOptions]
) -> list[ListedAccount | UnreadableEntry | ScanEnd]:
    """Return a page of the accounts, or in another ``order`` than the newest the first of all, without others.

    ``filters`` may have a part of the ``email``, a ``state``, and the ``days`` up to ``now`` of what was spent.
    """
    order, of = filters.get("order", "newest"), _LISTS["accounts"]
    if order == "newest":
        found, end = _page(rows, of, filters, options)
        return [*_listed_accounts(found), *end]
    query, matches = of.entries, [*_bounds(of, options), *_matches(of, filters)]
    if order == "balance":
        query = query.order_by(accounts.c.balance_micro.desc(), accounts.c.id)
    else:
        since = now - timedelta(days=int(filters.get("days", "1")))
        spent = (
            select(operations.c.account_id, cast(func.sum(operations.c.amount_micro), BigInteger).label("micro"))
            .where(operations.c.kind == "capture", operations.c.at >= since)
            .group_by(operations.c.account_id)
            .subquery()
        )
        query = query.add_columns(spent.c.micro).join(spent, spent.c.account_id == accounts.c.id)
        query = query.order_by(spent.c.micro.desc(), accounts.c.id)
    # There is no next page: what they are ordered by changes with every charge.
    query = query.where(*matches).limit(options["limit"] - 1)
    found = readable_rows(rows, query, (accounts.c.created_at, accounts.c.id), {})
    return [*_listed_accounts(found)]


def _listed_accounts(
    found: Sequence[Row[*tuple[Any, ...]] | UnreadableEntry],
) -> list[ListedAccount | UnreadableEntry]:
    position = attrgetter("created_at", "account_id")
    return read_rows(lambda row: ListedAccount(*row), found, "accounts", position)


def list_orders(
    rows: Connection, *, filters: Filters, **options: Unpack[PageOptions]
) -> list[TroubledOrder | UnreadableEntry | ScanEnd]:
    """Return a page of the orders. ``filters`` are exact matches by column name."""
    found, end = _page(rows, _LISTS["orders"], filters, options)
    listed = read_rows(
        lambda row: TroubledOrder(order_of(row), row.email),
        found,
        "orders",
        lambda row: (row.created_at, row.order_id),
    )
    return [*listed, *end]


def list_tasks(
    rows: Connection, *, filters: Filters, **options: Unpack[PageOptions]
) -> list[Task | UnreadableEntry | ScanEnd]:
    """Return a page of the tasks. ``filters`` are exact matches by column name."""
    found, end = _page(rows, _LISTS["tasks"], filters, options)
    return [*read_rows(task_of, found, "tasks", lambda row: (row.created_at, row.request_id)), *end]


def list_coupons(
    rows: Connection, *, filters: Filters, **options: Unpack[PageOptions]
) -> list[CouponRow | UnreadableEntry | ScanEnd]:
    """Return a page of the coupons. ``filters`` may have a ``state``."""
    found, end = _page(rows, _LISTS["coupons"], filters, options)
    position = attrgetter("created_at", "coupon_id")
    return [*read_rows(lambda row: CouponRow(**row._asdict()), found, "coupons", position), *end]
