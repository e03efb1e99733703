"""Operators' sessions in a browser, by the MAC of their cookie."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, select

from holdfast.persistence.records.tables import operator_sessions as sessions


class OperatorSession(NamedTuple):
    """A session; it may have expired or been ended."""

    cookie_mac: bytes
    operator: str
    origin: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None


_ALL = select(*(sessions.c[name] for name in OperatorSession._fields))


def add_session(rows: Connection, session: OperatorSession) -> None:
    """Write a new session."""
    rows.execute(sessions.insert().values(session._asdict()))


def end_session(rows: Connection, cookie_mac: bytes, at: datetime) -> None:
    """End a session; one that has ended stays as it is."""
    rows.execute(
        sessions.update()
        .where(sessions.c.cookie_mac == cookie_mac, sessions.c.ended_at.is_(None))
        .values(ended_at=at)
    )


def session_by_mac(rows: Connection, cookie_mac: bytes) -> OperatorSession | None:
    """Return the session of a cookie, or None."""
    found = rows.execute(_ALL.where(sessions.c.cookie_mac == cookie_mac)).one_or_none()
    return None if found is None else OperatorSession._make(found)
