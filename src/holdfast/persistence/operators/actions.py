"""What operators did: a row is written before the action, and completed with its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from sqlalchemy import Connection, select

from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.operator_tables import OperatorAction
from holdfast.persistence.records.operator_tables import operator_actions as actions

_ALL = select(*(actions.c[name] for name in OperatorAction._fields))


def write_action(rows: Connection, action: OperatorAction) -> None:
    """Write an action before its effect, or complete it afterwards. A result that is written never changes."""
    values = action._asdict()
    if action.result is None:
        rows.execute(actions.insert().values(values))
    else:
        rows.execute(
            actions.update()
            .where(actions.c.action_id == action.action_id, actions.c.result.is_(None))
            .values(
                {name: values[name] for name in ("account_id", "task_id", "ended_at", "result", "code", "effect")}
            )
        )


def list_actions(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[OperatorAction]:
    """Return a page of actions, newest first. ``filters`` are exact matches by column name."""
    matches = [actions.c[name] == value for name, value in filters.items()]
    found = page(rows, _ALL.where(*matches), (actions.c.at, actions.c.action_id), **options)
    return [OperatorAction._make(row) for row in found]
