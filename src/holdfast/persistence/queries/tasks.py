"""Tasks: one by its id, or a page of an account's, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Text, bindparam, cast, select

from holdfast.ledger.tasks.task import Task, TaskRequest, TaskState
from holdfast.persistence.queries.paging import page_of_account
from holdfast.persistence.records.tables import tasks
from holdfast.persistence.records.unreadable import LeftOut, read_rows

_REQUEST = msgspec.json.Decoder(TaskRequest)
_STATE = msgspec.json.Decoder(TaskState)

# The JSON columns are read as text and decoded once, directly into their types.
TASK_COLUMNS = select(
    tasks.c.account_id,
    tasks.c.request_id,
    tasks.c.version,
    tasks.c.status,
    tasks.c.model,
    tasks.c.provider,
    tasks.c.created_at,
    tasks.c.updated_at,
    tasks.c.wake_at,
    tasks.c.dispatched,
    cast(tasks.c.request, Text).label("request"),
    cast(tasks.c.state, Text).label("state"),
)
_BY_ID = TASK_COLUMNS.where(tasks.c.request_id == bindparam("request_id"))


def task_by_id(rows: Connection, request_id: str) -> Task | None:
    """Return the task with this id, of any account; for signed webhooks, which name no account."""
    found = rows.execute(_BY_ID, {"request_id": request_id}).one_or_none()
    return None if found is None else task_of_row(found)


def task_of_account(rows: Connection, account_id: str, request_id: str) -> Task | None:
    """Return the account's task with this id; None for another account's task and for an unknown id.

    Queried by the id alone: with the account, the plan might read all of its tasks.
    """
    found = task_by_id(rows, request_id)
    return found if found is not None and found.account_id == account_id else None


def tasks_of_account(
    rows: Connection,
    account_id: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    filters: Mapping[str, str] | None = None,
) -> list[Task | LeftOut]:
    """Return up to ``limit`` tasks, newest first by (created_at, request_id), after the position ``after``.

    ``since`` is inclusive, ``until`` exclusive. ``filters`` are exact matches of ``status`` and ``model``.
    """
    order = (tasks.c.created_at, tasks.c.request_id)
    page = page_of_account(
        rows, TASK_COLUMNS, order, account_id, limit=limit, since=since, until=until, after=after, filters=filters
    )
    return read_tasks(page)


def read_tasks(page: Iterable[Row[*tuple[Any, ...]]]) -> list[Task | LeftOut]:
    """Rows of :data:`TASK_COLUMNS` as the tasks of a list."""
    return read_rows(task_of_row, page, "tasks", lambda row: (row.created_at, row.request_id))


def task_of_row(row: Row[*tuple[Any, ...]]) -> Task:
    """Return the task of a row of :data:`TASK_COLUMNS`."""
    columns = row._asdict()
    columns["request"] = _REQUEST.decode(columns["request"])
    columns["state"] = _STATE.decode(columns["state"])
    return Task(**columns)
