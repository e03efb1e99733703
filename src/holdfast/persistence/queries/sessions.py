"""Sessions, by the hash of their token."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.records.tables import accounts, sessions


class SessionRecord(NamedTuple):
    """A session and its account; it may be revoked or expired, and the account disabled."""

    account_id: str
    session_id: str
    email: str
    role: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    disabled_at: datetime | None


_BY_TOKEN = (
    select(
        sessions.c.account_id,
        sessions.c.session_id,
        accounts.c.email,
        accounts.c.role,
        sessions.c.created_at,
        sessions.c.expires_at,
        sessions.c.revoked_at,
        accounts.c.disabled_at,
    )
    .join_from(sessions, accounts, sessions.c.account_id == accounts.c.id)
    .where(sessions.c.token_sha256 == bindparam("sha256"))
)


def session_by_token(rows: Connection, sha256: bytes) -> SessionRecord | None:
    """Return the session whose token has this SHA-256, or None."""
    found = rows.execute(_BY_TOKEN, {"sha256": sha256}).one_or_none()
    return None if found is None else SessionRecord._make(found)
