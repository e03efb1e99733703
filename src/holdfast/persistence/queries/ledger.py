"""An account's statement: its operations with their postings, newest first; or oldest first with what is hashed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, text

from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.credit.operations import CHAIN_START, NewLot, Operation
from holdfast.ledger.credit.signed_statement import ChainPoint, StatementRange
from holdfast.persistence.records.reading import OPERATION, operation_of
from holdfast.persistence.records.tables import credit_lots, operations, postings

# An account's operations by time, found by their numbers: there is no index of an account's times. Operations are
# numbered in the order of their times, but for :data:`CLOCKS_APART_S`: processes take turns in serving an account,
# and each has its own view of service time.

CLOCKS_APART_S: Final = 10.0
NUMBER_MAX: Final = 2**63 - 1

_NUMBER_AT = text(
    "with recursive search (low, high) as ("
    "  select cast(0 as bigint), max(number) from operations where account_id = :account_id"
    "  union all"
    "  select case when o.at <= s.time then s.middle else s.low end,"
    "    case when o.at <= s.time then s.high else s.middle - 1 end"
    "  from (select low, high, (low + high + 1) / 2 as middle,"
    "      cast(:at as timestamptz) + make_interval(secs => :ahead_s) as time from search where low < high) s"
    "  join operations o on o.account_id = :account_id and o.number = s.middle"
    ") select low from search where low = high"
)
_EDGE = text(
    "select at from operations where account_id = :account_id and number > :number_min and number <= :number_max "
    "and at >= :since and at < :until and (at, operation_id) < (:before_at, :before_id) "
    "order by number desc offset :limit - 1 limit 1"
)

_CREATED = text("select id from accounts where id = :account_id and created_at <= :at")
_TOTALS_AT = text(
    "select balance_after_micro, held_after_micro from operations "
    "where account_id = :account_id and number <= :number_max and at <= :at order by number desc limit 1"
)


class Numbers(NamedTuple):
    """Operations above ``number_min``, up to ``number_max``."""

    number_min: int
    number_max: int


def numbers_between(rows: Connection, account_id: str, since: datetime | None, until: datetime | None) -> Numbers:
    """Return numbers that include all operations from ``since`` on and before ``until``, and few others."""
    above = None if since is None else _number_at(rows, account_id, since, -CLOCKS_APART_S)
    up_to = None if until is None else _number_at(rows, account_id, until, CLOCKS_APART_S)
    return Numbers(above or 0, NUMBER_MAX if up_to is None else up_to)


def numbers_of_newest(rows: Connection, within: Numbers, page: Mapping[str, object]) -> Numbers:
    """Return numbers that include the newest operations of a page by (time, id), and few others.

    ``page`` has account_id, since, until, before_at, before_id, and limit: how many they are.
    """
    edge: datetime | None = rows.scalar(_EDGE, {**page, **within._asdict()})
    if edge is None:
        return within
    above = _number_at(rows, str(page["account_id"]), edge, -CLOCKS_APART_S)
    return within if above is None else within._replace(number_min=above)


def _number_at(rows: Connection, account_id: str, at: datetime, ahead_s: float) -> int | None:
    """Return the number of the last operation until ``ahead_s`` after a time, by halving: a read for each bit.

    None if a number is missing, as in an account that was tampered with.
    """
    found: int | None = rows.scalar(_NUMBER_AT, {"account_id": account_id, "at": at, "ahead_s": ahead_s})
    return found


def statement_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    before_number: int | None = None,
    kind: str | None = None,
) -> list[Operation]:
    """Return up to ``limit`` operations numbered below ``before_number``, newest first.

    ``since`` is inclusive, ``until`` exclusive.
    """
    query = OPERATION.where(operations.c.account_id == account_id)
    if since is not None or until is not None:
        above, up_to = numbers_between(rows, account_id, since, until)
        query = query.where(operations.c.number > above, operations.c.number <= up_to)
    if since is not None:
        query = query.where(operations.c.at >= since)
    if until is not None:
        query = query.where(operations.c.at < until)
    if before_number is not None:
        query = query.where(operations.c.number < before_number)
    if kind is not None:
        query = query.where(operations.c.kind == kind)
    found = rows.execute(query.order_by(operations.c.number.desc()).limit(limit)).all()
    within = postings.c.number.in_([row.number for row in found])
    found_postings = _postings(rows, account_id, within) if found else {}
    return [operation_of(row, found_postings.get(row.number, ())) for row in found]


def totals_at(rows: Connection, account_id: str, at: datetime) -> AccountTotals | None:
    """Return an account's totals as the last operation up to and at a time left them.

    None before the account was created. It reads an operation for each bit of their number, and those of
    :data:`CLOCKS_APART_S`.
    """
    found = rows.execute(_CREATED, {"account_id": account_id, "at": at}).one_or_none()
    if found is None:
        return None
    up_to = _number_at(rows, account_id, at, CLOCKS_APART_S)
    number_max = NUMBER_MAX if up_to is None else up_to
    totals = rows.execute(_TOTALS_AT, {"account_id": account_id, "number_max": number_max, "at": at}).one_or_none()
    return AccountTotals(account_id, *(totals or (0, 0)))


def chained_range(
    rows: Connection, account_id: str, since: datetime | None, until: datetime | None
) -> StatementRange:
    """Return the account's operations from the first one since ``since`` to the last one before ``until``.

    Without gaps: one whose process had another view of the time may be up to :data:`CLOCKS_APART_S` outside.
    """
    own, number = operations.c.account_id == account_id, operations.c.number
    above, up_to = numbers_between(rows, account_id, since, until)
    ends = select(number).where(own, number <= up_to).order_by(number.desc()).limit(1)
    last = rows.scalar(ends if until is None else ends.where(operations.c.at < until)) or 0
    first = 1
    if since is not None:
        starts = select(number).where(own, number > above, number <= last, operations.c.at >= since)
        first = rows.scalar(starts.order_by(number).limit(1)) or last + 1
    totals = select(
        number, operations.c.balance_after_micro, operations.c.held_after_micro, operations.c.chain_hash
    )
    found = {row.number: ChainPoint(*row) for row in rows.execute(totals.where(own, number.in_((first - 1, last))))}
    start = ChainPoint(0, 0, 0, CHAIN_START)
    return StatementRange(found.get(first - 1, start), found.get(last, start))


def chained_operations(rows: Connection, account_id: str, numbers: Numbers) -> list[Operation]:
    """Return operations with all that their hashes cover, oldest first."""

    def within(column: ColumnElement[int]) -> ColumnElement[bool]:
        return column.between(numbers.number_min + 1, numbers.number_max)

    number = operations.c.number
    query = OPERATION.where(operations.c.account_id == account_id, within(number)).order_by(number)
    found_postings = _postings(rows, account_id, within(postings.c.number))
    lots = rows.execute(
        select(credit_lots.c.number, credit_lots.c.kind, credit_lots.c.source, credit_lots.c.expires_at)
        .where(credit_lots.c.account_id == account_id, within(credit_lots.c.number))
    )  # fmt: skip
    found_lots = {lot: NewLot(*facts) for lot, *facts in lots}
    return [
        operation_of(row, found_postings.get(row.number, ()), found_lots.get(row.number))
        for row in rows.execute(query)
    ]


def _postings(
    rows: Connection, account_id: str, within: ColumnElement[bool]
) -> dict[int, list[tuple[str, int, int | None]]]:
    """Return the postings of the operations that ``within`` selects, by number and in posting order."""
    found = rows.execute(
        select(postings.c.number, postings.c.ledger_account, postings.c.amount_micro, postings.c.lot)
        .where(postings.c.account_id == account_id, within)
        .order_by(postings.c.number, postings.c.line)
    )
    return {
        number: [(ledger_account, amount_micro, lot) for _, ledger_account, amount_micro, lot in group]
        for number, group in groupby(found, key=itemgetter(0))
    }
