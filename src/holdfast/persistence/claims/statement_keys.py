"""The public keys that have signed statements: one that was replaced stays, with the time of its last use.

A statement that states a later time is not valid, should the secret of a replaced key become known.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, select, text

from holdfast.persistence.records.credit_tables import StatementKeyRow
from holdfast.persistence.records.tables import statement_keys

NOTED_EVERY: Final = timedelta(hours=1)
"""How much later than noted a key may have been used: so its row is seldom written."""

_NOTE = text(
    # Processes have clocks of their own, so that the first use may be noted second.
    """
    insert into statement_keys as k (key_id, public_key, first_used_at, last_used_at)
    values (:key_id, :public_key, :at, :at)
    on conflict (key_id) do update set
        first_used_at = least(k.first_used_at, excluded.first_used_at),
        last_used_at = greatest(k.last_used_at, excluded.last_used_at)
    where excluded.first_used_at < k.first_used_at or excluded.last_used_at > k.last_used_at + :every
    """
)


def note_use(rows: Connection, *, key_id: str, public_key: bytes, at: datetime) -> None:
    """Note that a key signs a statement, which must be noted before the statement is sent."""
    rows.execute(_NOTE, {"key_id": key_id, "public_key": public_key, "at": at, "every": NOTED_EVERY})


def used_keys(rows: Connection) -> list[StatementKeyRow]:
    """Return all keys that have signed statements, the newest first."""
    found = rows.execute(select(statement_keys).order_by(statement_keys.c.first_used_at.desc()))
    return [StatementKeyRow(**row._asdict()) for row in found]
