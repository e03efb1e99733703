"""Where an account is that is not in this cell. It is asked only when something was not found."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from sqlalchemy import Connection, select

from holdfast.ledger.refusals import ACCOUNT_MOVING, Refusal, account_moved
from holdfast.persistence.records.tables import account_moves


class Away(NamedTuple):
    """The cell that accounts of a place were moved to. While ``is_closed``, one of them is in neither cell."""

    cell: int
    is_closed: bool


_AWAY = account_moves.c.state.in_(("closed", "moved"))


def find_away(rows: Connection, place: int) -> Away | None:
    """Return where the accounts of a place are that were moved away; None if all are here.

    They are all in one cell.
    """
    found = rows.execute(
        select(account_moves.c.cell, account_moves.c.state).where(account_moves.c.place == place, _AWAY)
    ).all()
    return Away(found[0].cell, any(row.state == "closed" for row in found)) if found else None


def refusal_of_missing(rows: Connection, *, refusal: Refusal, place: int | None) -> Refusal:
    """Return the refusal of what was not found, or where the accounts of its place are that were moved away."""
    away = None if place is None else find_away(rows, place)
    if away is None:
        return refusal
    return ACCOUNT_MOVING if away.is_closed else account_moved(away.cell)


def is_email_away(rows: Connection, email: str) -> bool:
    """Whether the account of an e-mail address was moved away, or is closed for that."""
    found = rows.scalar(
        select(account_moves.c.account_id).where(account_moves.c.email_sha256 == sha256_of_email(email), _AWAY)
    )
    return found is not None


def sha256_of_email(email: str) -> bytes:
    """Return what is stored of an address."""
    return hashlib.sha256(email.encode()).digest()
