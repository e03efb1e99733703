"""Tasks: one by its id, or a page of an account's, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from sqlalchemy import Connection, Row, bindparam

from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.paging import AccountPageOptions, page_of_account
from holdfast.persistence.records.tables import tasks
from holdfast.persistence.records.tasks import TASK, task_of
from holdfast.persistence.records.unreadable import UnreadableEntry, read_row, read_rows

_BY_ID = TASK.where(tasks.c.request_id == bindparam("request_id"))


def task_by_id(rows: Connection, request_id: str) -> Task | None:
    """Return the task with this id, of any account; for signed webhooks, which name no account.

    Raises :class:`~holdfast.persistence.records.unreadable.UnreadableRow`.
    """
    found = rows.execute(_BY_ID, {"request_id": request_id}).one_or_none()
    return None if found is None else read_row(task_of, found, "tasks", request_id)


def task_of_account(rows: Connection, account_id: str, request_id: str) -> Task | None:
    """Return the account's task with this id; None for another account's task and for an unknown id.

    Queried by the id alone: with the account, the plan might read all of its tasks.
    """
    found = task_by_id(rows, request_id)
    return found if found is not None and found.account_id == account_id else None


def tasks_of_account(
    rows: Connection, account_id: str, **page: Unpack[AccountPageOptions]
) -> list[Task | UnreadableEntry]:
    """Return a page of the account's tasks, newest first by (created_at, request_id)."""
    return read_tasks(page_of_account(rows, TASK, (tasks.c.created_at, tasks.c.request_id), account_id, **page))


def read_tasks(page: Iterable[Row[*tuple[Any, ...]]]) -> list[Task | UnreadableEntry]:
    """Return the tasks of a list's rows."""
    return read_rows(task_of, page, "tasks", lambda row: (row.created_at, row.request_id))
