"""Operators' sessions in a browser, by the MAC of their cookie."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.records.operator_tables import OperatorSession
from holdfast.persistence.records.operator_tables import operator_sessions as sessions
from holdfast.persistence.records.tables import accounts

_STORED = OperatorSession._fields[:-1]
_BY_MAC = (
    select(*(sessions.c[name] for name in _STORED), accounts.c.disabled_at)
    .join_from(sessions, accounts, accounts.c.email == sessions.c.operator, isouter=True)
    .where(sessions.c.cookie_mac == bindparam("cookie_mac"))
)


def add_session(rows: Connection, session: OperatorSession) -> None:
    """Write a new session."""
    rows.execute(sessions.insert().values({name: getattr(session, name) for name in _STORED}))


def end_session(rows: Connection, cookie_mac: bytes, at: datetime) -> None:
    """End a session; one that has ended stays as it is."""
    rows.execute(
        sessions.update()
        .where(sessions.c.cookie_mac == cookie_mac, sessions.c.ended_at.is_(None))
        .values(ended_at=at)
    )


def session_by_mac(rows: Connection, cookie_mac: bytes) -> OperatorSession | None:
    """Return the session of a cookie, or None."""
    found = rows.execute(_BY_MAC, {"cookie_mac": cookie_mac}).one_or_none()
    return None if found is None else OperatorSession._make(found)
