"""Callbacks about the jobs of provider checks, which any process may receive."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, literal, select

from holdfast.persistence.records.operator_tables import CheckCallbackRow
from holdfast.persistence.records.operator_tables import check_callbacks as table

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
