"""Reviews: the open ones of all accounts, oldest task first, or the one of a task.

A review is part of its task's row. The open ones are found through the partial index of dispatched tasks that have
not ended, so ended tasks cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from sqlalchemy import Connection, func

from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import task_of_review_case
from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.queries.tasks import read_tasks, task_by_id
from holdfast.persistence.records.tables import tasks
from holdfast.persistence.records.tasks import TASK
from holdfast.persistence.records.unreadable import UnreadableEntry

_OPEN = TASK.where(tasks.c.wake_at.is_not(None), tasks.c.dispatched, tasks.c.status == "review")


def open_reviews(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[Task | UnreadableEntry]:
    """Return a page of the tasks in review, oldest first by (created_at, request_id).

    ``filters`` may have the ``reason`` of the review.
    """
    found = _OPEN
    if "reason" in filters:
        found = found.where(func.json_extract_path_text(tasks.c.state, "review", "reason") == filters["reason"])
    order = (tasks.c.created_at, tasks.c.request_id)
    return read_tasks(page(rows, found, order, oldest_first=True, **options))


def task_under_review(rows: Connection, case_id: str) -> Task | None:
    """Return the task of this review, decided or not."""
    task = task_by_id(rows, task_of_review_case(case_id))
    review = None if task is None else task.state.review
    return task if review is not None and review.case_id == case_id else None
