"""What operators did, their sessions in browsers, and the callbacks of their checks of providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Unpack

from sqlalchemy import Connection, bindparam, func, insert, literal, select
from sqlalchemy.dialects import postgresql

from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.operator_tables import CheckCallbackRow, OperatorAction, OperatorSession
from holdfast.persistence.records.operator_tables import check_callbacks as table
from holdfast.persistence.records.operator_tables import operator_actions as actions
from holdfast.persistence.records.operator_tables import operator_sessions as sessions
from holdfast.persistence.records.tables import accounts
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

_ALL = select(*(actions.c[name] for name in OperatorAction._fields))


def write_action(rows: Connection, action: OperatorAction) -> None:
    """Write an action before its effect, and complete it afterwards. A result that is written never changes.

    One whose row has an effect already goes on, and is completed only with an effect.
    """
    values = action._asdict()
    ends = literal(action.effect is not None) | actions.c.effect.is_(None)
    rows.execute(
        postgresql.insert(actions)
        .values(values)
        .on_conflict_do_update(
            index_elements=[actions.c.action_id],
            set_={name: values[name] for name in ("account_id", "task_id", "ended_at", "result", "code", "effect")},
            where=actions.c.result.is_(None) & ends,
        )
    )


def list_actions(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[OperatorAction | UnreadableEntry]:
    """Return a page of actions, newest first. ``filters`` are exact matches by column name."""
    matches = [actions.c[name] == value for name, value in filters.items()]
    found = page(rows, _ALL.where(*matches), (actions.c.at, actions.c.action_id), **options)
    return read_rows(OperatorAction._make, found, "operator_actions", attrgetter("at", "action_id"))


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


CALLBACKS_MAX = 100
"""How many callbacks of one check are stored."""


def add_check_callback(rows: Connection, callback: CheckCallbackRow) -> None:
    """Store a callback, unless its check has many already."""
    stored = select(func.count()).where(table.c.check_id == callback.check_id).scalar_subquery()
    values = (literal(value, table.c[name].type) for name, value in callback._asdict().items())
    rows.execute(insert(table).from_select(callback._fields, select(*values).where(stored < CALLBACKS_MAX)))


def check_callbacks(rows: Connection, check_id: str) -> Sequence[CheckCallbackRow]:
    """Return the callbacks of a check, the oldest first."""
    columns = (table.c[name] for name in CheckCallbackRow._fields)
    found = rows.execute(select(*columns).where(table.c.check_id == check_id).order_by(table.c.at))
    return [CheckCallbackRow._make(row) for row in found]
