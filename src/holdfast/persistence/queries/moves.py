"""Where an account is that is not in this cell. It is asked only when something was not found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Boolean, ColumnElement, Connection, and_, exists, func, literal_column, or_, select

from holdfast.ledger.cells import CELLS_MAX, Cells
from holdfast.ledger.values import place_of
from holdfast.persistence.records.tables import account_moves, accounts, given_emails


class Away(NamedTuple):
    """The cell that accounts of a place were moved to. While ``is_closed``, one of them is in neither cell."""

    cell: int
    is_closed: bool


class FoundMoves(NamedTuple):
    """Where the accounts of a place, or of an e-mail address, are that were moved away, and if one ever came here.

    All that are away are in one cell.
    """

    away: Away | None = None
    has_arrived: bool = False


class FoundEmail(NamedTuple):
    """Whether an e-mail address has an account here, or its moves, or the cell that would open one."""

    is_here: bool
    moves: FoundMoves = FoundMoves()
    given_to: int | None = None


# Literals, as in the predicates of the indexes: a generic plan for parameters would use none of them.
_IS_AWAY = literal_column("account_moves.state in ('closed', 'moved')", Boolean())
_IS_KNOWN = literal_column("account_moves.state in ('closed', 'moved', 'arrived')", Boolean())


def find_moves_of_place(rows: Connection, place: int) -> FoundMoves:
    """Return what is known of the moves of a place's accounts."""
    # One row, however many moves there were: each one of an account that comes and goes is kept.
    moves = account_moves.c
    cell = func.max(moves.cell).filter(_IS_AWAY)
    query = select(cell, func.bool_or(moves.state == "closed"), func.bool_or(moves.state == "arrived"))
    number, is_closed, has_arrived = rows.execute(query.where(moves.place == place, _IS_KNOWN)).one()
    return FoundMoves(None if number is None else Away(number, is_closed), bool(has_arrived))


def find_moves_of_email(rows: Connection, email: str) -> FoundMoves:
    """Return what is known of the moves of an e-mail address's accounts.

    It has one after the other, each with a greater id. So only the newest can be away, and others were closed.
    """
    query = select(account_moves.c.account_id, account_moves.c.cell, account_moves.c.state)
    of_email = (account_moves.c.email_sha256 == sha256_of_email(email), _IS_KNOWN)
    found = rows.execute(query.where(*of_email).order_by(account_moves.c.account_id.desc())).all()
    away = [
        Away(row.cell, row.state == "closed")
        for row in found
        if row.account_id == found[0].account_id and row.state != "arrived"
    ]
    return FoundMoves(away[0] if away else None, any(row.state == "arrived" for row in found))


def find_departed(rows: Connection, account_ids: Sequence[str]) -> dict[str, Away]:
    """Return where accounts are that were moved away from here."""
    query = select(account_moves.c.account_id, account_moves.c.cell, account_moves.c.state)
    found = rows.execute(query.where(account_moves.c.account_id.in_(account_ids), _IS_AWAY))
    return {row.account_id: Away(row.cell, row.state == "closed") for row in found}


def is_email_elsewhere(email: str) -> ColumnElement[bool]:
    """SQL: whether the account of an e-mail address was moved away, or the address was given to another cell."""
    sha256, others = sha256_of_email(email), account_moves.alias("others")
    of_newer = exists().where(
        others.c.email_sha256 == sha256,
        literal_column("others.state in ('closed', 'moved', 'arrived')", Boolean()),
        others.c.account_id > account_moves.c.account_id,
    )
    return or_(
        exists().where(account_moves.c.email_sha256 == sha256, _IS_AWAY, ~of_newer),
        exists().where(given_emails.c.email_sha256 == sha256),
    )


def cell_given_email(rows: Connection, email: str) -> int | None:
    """Return the cell that an e-mail address of this one was given to."""
    of_email = given_emails.c.email_sha256 == sha256_of_email(email)
    return rows.scalar(select(given_emails.c.cell).where(of_email))


def find_unlisted(rows: Connection, cells: Cells) -> list[int]:
    """Return the cells to which addresses of this one were given, and that are not in the list.

    A process with a newer list has done that, and what this one does not find may be there.
    """
    numbers = func.generate_series(1, CELLS_MAX).column_valued("number")
    is_given = exists().where(given_emails.c.cell == numbers)
    listed = [cell.number for cell in cells.all]
    return [*rows.execute(select(numbers).where(numbers.not_in(listed), is_given)).scalars()]


def find_email(rows: Connection, email: str) -> FoundEmail:
    """Return what this cell knows of an e-mail address."""
    is_here = rows.scalar(select(accounts.c.id).where(accounts.c.email == email)) is not None
    if is_here:
        return FoundEmail(is_here)
    return FoundEmail(is_here, find_moves_of_email(rows, email), cell_given_email(rows, email))


def has_departed_since(rows: Connection, since: timedelta, cells: Cells) -> bool:
    """Whether an account is closed for a move, or was moved away from here within the time.

    One that was moved to a cell that is not in the list counts for good: who has the list cannot ask that cell.
    """
    is_recent = account_moves.c.at > func.now() - since
    listed = [cell.number for cell in cells.all]
    is_unlisted = and_(account_moves.c.state == "moved", account_moves.c.cell.not_in(listed))
    departed = select(account_moves.c.account_id).where(
        account_moves.c.direction == "out", or_(account_moves.c.state == "closed", is_recent, is_unlisted)
    )
    return rows.scalar(select(departed.exists())) is True


def find_unreachable(rows: Connection, cells: Cells) -> list[str]:
    """Return the accounts here for which no cell would ask this one, by their ids or by their addresses."""
    own, moves = cells.own, account_moves.c
    has_arrived = (moves.direction == "in", moves.state == "arrived")
    arrived = select(moves.account_id).where(*has_arrived)
    # Who signs in again after the account was closed gets a new one in the cell that the address was moved to.
    arrived_emails = {*rows.execute(select(moves.email_sha256).where(*has_arrived)).scalars()}
    query = select(accounts.c.id, accounts.c.email, accounts.c.closed_at).where(accounts.c.id.not_in(arrived))
    return [
        row.id
        for row in rows.execute(query, execution_options={"yield_per": 1000})
        if own not in cells.of_place(place_of(row.id))
        or (
            row.closed_at is None
            and own not in cells.of_email(row.email)
            and sha256_of_email(row.email) not in arrived_emails
        )
    ]


def sha256_of_email(email: str) -> bytes:
    """Return what is stored of an address."""
    return hashlib.sha256(email.encode()).digest()
