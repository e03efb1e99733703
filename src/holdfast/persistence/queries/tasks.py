"""Tasks: one by its id, a page of an account's, those in review; their usage log and stored outputs.

A review is part of its task's row. The open ones are found through the partial index of dispatched tasks that have
not ended, so ended tasks cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, Select, Text, bindparam, cast, func, literal_column, not_, select, text

from holdfast.ledger.public_types import AccountId, Amount, TaskId
from holdfast.ledger.tasks.task import Task, TaskStatus
from holdfast.ledger.tasks.transitions import task_of_review_case
from holdfast.ledger.values import format_amount
from holdfast.persistence.queries.filtered_usage import scan_usage
from holdfast.persistence.queries.paging import PageOptions, ScanEnd, newest_of_accounts, page, page_of_account
from holdfast.persistence.records.reading import ASSET, TASK, TASK_WITH_INPUT, USAGE_ENTRY, task_of, usage_entry_of
from holdfast.persistence.records.rows import AssetRow, UsageEntry
from holdfast.persistence.records.tables import assets, holds, tasks
from holdfast.persistence.records.tables import usage_entries as usage
from holdfast.persistence.records.unreadable import UnreadableEntry, UnreadableRow, read_row, read_rows
from holdfast.persistence.server.lookups import Find
from holdfast.persistence.server.repeated_queries import RepeatedQuery, one_of
from holdfast.telemetry.scrubbing import scrub

TASK_ORDER = (tasks.c.created_at, tasks.c.request_id)
_BY_IDS = RepeatedQuery(TASK.where(tasks.c.request_id == one_of("request_ids", Text())))
_BY_ID = TASK_WITH_INPUT.where(tasks.c.request_id == bindparam("request_id"))
_IN_REVIEW = TASK.where(tasks.c.status == literal_column("'review'"))
# Named like this, the two partial indexes of tasks that have not ended are read, and no ended task.
_UNFINISHED = TASK.where(tasks.c.wake_at.is_not(None), tasks.c.dispatched | not_(tasks.c.dispatched))
_FAILED = TASK.where(tasks.c.status == literal_column("'failed'"), tasks.c.wake_at.is_(None))
_STORED = select(
    *(cast(column, Text).label(column.name) for column in tasks.c),
    func.json_extract_path_text(tasks.c.request, "hold_id").label("hold_id"),
).where(tasks.c.request_id == bindparam("request_id"))
_HOLD = select(holds.c.amount_micro, holds.c.settled_number.is_(None).label("is_open")).where(
    holds.c.account_id == bindparam("account_id"), holds.c.hold_id == bindparam("hold_id")
)
# Each task is found by its id alone, as for limits.
_HELD = RepeatedQuery(
    text(
        """
        select request_id, model, status, created_at, amount_micro
        from (
            select t.request_id, t.model, t.status, t.created_at, h.amount_micro,
                   row_number() over (partition by t.status order by t.created_at desc, t.request_id desc) as number
            from holds h join tasks t on t.request_id = h.reference
            where h.account_id = :account_id and h.settled_number is null
        ) held
        where number <= :per_status order by created_at, request_id
        """
    )
)
_STORED_INPUTS = select(func.coalesce(func.sum(func.pg_column_size(tasks.c.input)), 0)).where(
    tasks.c.account_id == bindparam("account_id"),
    tasks.c.input_until.is_not(None),
    tasks.c.status != literal_column("'succeeded'"),
)
_TEXTS_OF_INPUTS = select(
    tasks.c.request_id,
    func.json_extract_path_text(tasks.c.input, bindparam("field", type_=Text())).label("text"),
).where(tasks.c.request_id.in_(bindparam("request_ids", expanding=True)))
_ASSET_BY_ID = ASSET.where(assets.c.asset_id == bindparam("asset_id"))


class HeldTask(NamedTuple):
    """A task, and the credit that it holds."""

    request_id: str
    model: str
    status: TaskStatus
    created_at: datetime
    amount_micro: int


class HoldState(msgspec.Struct, frozen=True):
    """The credit that a task held at first, and whether it is held still."""

    hold_id: str
    """The hold's id, `hold_…`."""
    credits: Amount
    """The credit held at first."""
    is_open: bool
    """Whether it is held still."""


class TaskRow(msgspec.Struct, frozen=True):
    """What is stored of a task."""

    request_id: TaskId
    account_id: AccountId
    fault: str | None
    """Why the row cannot be read as a task; null if it can."""
    columns: dict[str, str | None]
    """The columns as text, by name."""
    hold: HoldState | None
    """Its hold; null if there is none."""


def task_by_id(rows: Connection, request_id: str) -> Task | None:
    """Return the task with this id, of any account, with its input. No other read of tasks has whole inputs.

    Raises :class:`~holdfast.persistence.records.unreadable.UnreadableRow`.
    """
    found = rows.execute(_BY_ID, {"request_id": request_id}).one_or_none()
    return None if found is None else read_row(task_of, found, "tasks", request_id)


def texts_of_inputs(rows: Connection, *, field: str, request_ids: Sequence[str]) -> dict[str, str | None]:
    """Return a field of each task's input as text, by the tasks' ids; None where the input has none."""
    found = rows.execute(_TEXTS_OF_INPUTS, {"field": field, "request_ids": request_ids})
    return {row.request_id: row.text for row in found}


def find_tasks(rows: Connection, request_ids: Sequence[str]) -> dict[str, tuple[str, Task | UnreadableRow]]:
    """Return the tasks with these ids, of any account, with their accounts' ids.

    Queried by the id alone: with the account, the plan might read all of its tasks.
    """
    found: dict[str, tuple[str, Task | UnreadableRow]] = {}
    for row in _BY_IDS.rows(rows, {"request_ids": request_ids}):
        try:
            found[row.request_id] = row.account_id, read_row(task_of, row, "tasks", row.request_id)
        except UnreadableRow as unreadable:
            found[row.request_id] = row.account_id, unreadable
    return found


def stored_input_bytes(rows: Connection, account_id: str) -> int:
    """Return how many bytes the large inputs of ended tasks take for which the account paid nothing."""
    return int(rows.execute(_STORED_INPUTS, {"account_id": account_id}).scalar_one())


def stored_task(rows: Connection, request_id: str, fault: str | None = None) -> TaskRow | None:
    """Return what is stored of the task with this id, whether or not it can be read; ``fault`` is why it cannot."""
    row = rows.execute(_STORED, {"request_id": request_id}).one_or_none()
    if row is None:
        return None
    *columns, hold_id = row
    hold = rows.execute(_HOLD, {"account_id": row.account_id, "hold_id": hold_id}).one_or_none()
    return TaskRow(
        request_id,
        row.account_id,
        None if fault is None else scrub(fault),
        {name: None if text is None else scrub(text) for name, text in zip(row._fields, columns, strict=False)},
        None if hold is None else HoldState(hold_id, format_amount(hold.amount_micro), hold.is_open),
    )


def tasks_of_account(
    rows: Connection,
    account_id: str,
    *,
    filters: Mapping[str, str] | None = None,
    scanned_max: int | None = None,
    **options: Unpack[PageOptions],
) -> list[Task | UnreadableEntry | ScanEnd]:
    """Return a page of the account's tasks, newest first by (created_at, request_id).

    ``filters`` may have a ``status``, a ``model``, an ``api_key_id``, an ``end_user``, and texts of the metadata as
    ``metadata[name]``. With any, at most ``scanned_max`` tasks are read; with an end user, of that one's.
    """
    if not filters:
        return [*_listed(page_of_account(rows, TASK, TASK_ORDER, account_id, **options))]
    found, end = scan_usage(rows, account_id, filters, options, scanned_max, of_tasks=True)
    return [*_listed(found), *end]


@cache
def newest_tasks(limit: int) -> Find[str, Callable[[], list[Task | UnreadableEntry]]]:
    """Return what finds up to ``limit`` of each account's newest tasks, decoded by a call.

    It returns them as :func:`tasks_of_account` does. Were the tasks of all accounts decoded before the first are
    read, they would not fit the CPU's caches, and take up to three times as long.

    What finds is one object for each limit, so that lookups of the same limit share a query.
    """
    return partial(_newest_tasks, limit=limit)


def _newest_tasks(
    rows: Connection, account_ids: Sequence[str], *, limit: int
) -> dict[str, Callable[[], list[Task | UnreadableEntry]]]:
    pages = newest_of_accounts(rows, TASK, TASK_ORDER, account_ids, limit=limit)
    return {account_id: partial(_listed, found) for account_id, found in pages.items()}


def tasks_of_models(
    rows: Connection,
    account_id: str,
    models: Sequence[str],
    *,
    oldest_first: bool,
    **options: Unpack[PageOptions],
) -> list[Task | UnreadableEntry]:
    """Return a page of the account's tasks of these models by (created_at, request_id)."""
    found = TASK.where(tasks.c.account_id == account_id, tasks.c.model.in_(models))
    return _listed(page(rows, found, TASK_ORDER, oldest_first=oldest_first, **options))


def unfinished_tasks(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[Task | UnreadableEntry]:
    """Return a page of the tasks of all accounts that have not ended, oldest first by (created_at, request_id).

    ``filters`` may have a ``provider`` and a ``status``.
    """
    return _listed(page(rows, unfinished(filters), TASK_ORDER, oldest_first=True, **options))


def unfinished(filters: Mapping[str, str]) -> Select[*tuple[Any, ...]]:
    """Select the tasks that :func:`unfinished_tasks` reads."""
    return _UNFINISHED.where(*(tasks.c[name] == value for name, value in filters.items()))


def failed_tasks(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[Task | UnreadableEntry]:
    """Return a page of the failed tasks of all accounts, newest first by (created_at, request_id).

    ``filters`` may have a ``provider``.
    """
    matches = [tasks.c[name] == value for name, value in filters.items()]
    return _listed(page(rows, _FAILED.where(*matches), TASK_ORDER, **options))


def held_tasks(rows: Connection, account_id: str, *, per_status: int) -> list[HeldTask]:
    """Return the newest tasks of each status that hold credit of the account, oldest first.

    All that are in flight are read, of which an account has a limited number.
    """
    found = _HELD.rows(rows, {"account_id": account_id, "per_status": per_status})
    return [HeldTask._make(row) for row in found]


def open_reviews(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[Task | UnreadableEntry]:
    """Return a page of the tasks in review, oldest first by (created_at, request_id).

    ``filters`` may have the ``reason`` of the review.
    """
    return _listed(page(rows, in_review(filters), TASK_ORDER, oldest_first=True, **options))


def in_review(filters: Mapping[str, str]) -> Select[*tuple[Any, ...]]:
    """Select the tasks that :func:`open_reviews` reads."""
    reason = func.json_extract_path_text(tasks.c.state, "review", "reason")
    return _IN_REVIEW.where(*(reason == value for value in filters.values()))


def task_under_review(rows: Connection, case_id: str) -> Task | None:
    """Return the task of this review, decided or not."""
    task = task_by_id(rows, task_of_review_case(case_id))
    review = None if task is None else task.state.review
    return task if review is not None and review.case_id == case_id else None


def usage_of_account(
    rows: Connection,
    account_id: str,
    *,
    filters: Mapping[str, str] | None = None,
    scanned_max: int | None = None,
    **options: Unpack[PageOptions],
) -> list[UsageEntry | UnreadableEntry | ScanEnd]:
    """Return a page of the account's entries, newest first by (ts, request_id).

    ``filters`` are exact matches by column name. With any, at most ``scanned_max`` entries are read, as for tasks.
    """
    found, end = (
        scan_usage(rows, account_id, filters, options, scanned_max, of_tasks=False)
        if filters
        else (
            page_of_account(rows, USAGE_ENTRY, (usage.c.ts, usage.c.request_id), account_id, **options),
            [],
        )
    )
    return [*read_rows(usage_entry_of, found, "usage_entries", lambda row: (row.ts, row.request_id)), *end]


def asset_by_id(rows: Connection, asset_id: str) -> AssetRow | None:
    """Return the asset with this id, or None if it never existed or its row was deleted."""
    found = rows.execute(_ASSET_BY_ID, {"asset_id": asset_id}).one_or_none()
    return None if found is None else AssetRow(*found)


def _listed(found: Iterable[Any]) -> list[Task | UnreadableEntry]:
    return read_rows(task_of, found, "tasks", lambda row: (row.created_at, row.request_id))
