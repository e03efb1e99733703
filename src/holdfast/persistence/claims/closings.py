"""Accounts whose closing is due, and the deletion of what is not kept of them, a bounded number of rows at a time.

Ledger operations, orders, tasks, usage and totals stay, without what came from the account's owner or is about a
person. All of it is idempotent and may begin again anywhere: nothing writes to a closed account any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection, TextClause, text, tuple_

from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records.reading import TASK, task_of
from holdfast.persistence.records.tables import metadata, tasks
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

SETTLED_AFTER: Final = timedelta(minutes=15)
"""How long after the closing the deletion begins: deliveries, uploads and claims of contents have ended by then."""

_DUE = text(
    """
    select closes_at, id as account_id, closed_at from accounts
    where closes_at <= :now and erased_at is null and (closes_at, id) > (:after_at, :after_id)
    order by closes_at, id limit :most
    """
)

_ERASED = text(
    """
    with erased as (
        update accounts set erased_at = :at where id = :account_id and erased_at is null returning id
    )
    insert into account_changes (account_id, at, what, change_id) select id, :at, 'erased', :change_id from erased
    """
)


def _page(table: str, where: str) -> str:
    names = ", ".join(f"t.{column.name}" for column in metadata.tables[table].primary_key)
    return f"page as materialized (select {names} from {table} t where {where} limit :most)"


def _same_key(table: str) -> str:
    key = [column.name for column in metadata.tables[table].primary_key]
    return " and ".join(f"d.{name} = page.{name}" for name in key)


def _delete(table: str, where: str = "t.account_id = :account_id") -> TextClause:
    return text(f"with {_page(table, where)} delete from {table} d using page where {_same_key(table)}")


_UNMATCHED: Final = _delete(
    "payment_events",
    "t.order_id is null and exists (select from unnest(cast(:names as text[])) name "
    "where position(convert_to(name, 'UTF8') in t.body) > 0)",
)
_WITH_BODY: Final = "t.account_id = :account_id and t.body <> ''"
_STATEMENTS: Final[tuple[TextClause, ...]] = (
    # What belongs to a row comes before that row.
    *(
        _delete(table)
        for table in (
            "task_events", "outbox_attempts", "outbox", "webhooks", "webhook_secrets", "alerts", "assets",
            "file_uses", "files", "sessions", "api_keys", "account_limits", "group_keys", "key_groups",
            "idempotency_records", "auto_top_ups", "coupon_tries", "reports", "archives",
        )
    ),
    _delete("silent_receivers", "t.receiver in (:account_id, 'mail:' || :account_id)"),
    _delete(
        "poison_messages",
        "t.key = :account_id or t.key in (select request_id from tasks where account_id = :account_id)",
    ),
    # The event with its verdict stays, which its order names.
    text(
        f"with {_page('payment_events', _WITH_BODY)} update payment_events d set body = '' "
        f"from page where {_same_key('payment_events')}"
    ),
    # An end user's totals are those of the entries that name him.
    text(
        "with page as materialized (select end_user from usage_entries "
        "where account_id = :account_id and end_user is not null limit 1), "
        "unnamed as (update usage_entries u set end_user = null from page "
        "where u.account_id = :account_id and u.end_user = page.end_user), "
        "gone as (delete from usage_totals t using page "
        "where t.account_id = :account_id and t.end_user_by <> '' and t.end_user = page.end_user) "
        "select from page"
    ),
)  # fmt: skip


class DueClosing(NamedTuple):
    """An account that is to be closed, or that was, and of which something is to be deleted."""

    closes_at: datetime
    account_id: str
    closed_at: datetime | None

    def is_settled(self, now: datetime) -> bool:
        """Whether the deletion may begin."""
        return self.closed_at is not None and self.closed_at + SETTLED_AFTER <= now


def due_closings(rows: Connection, now: datetime, *, after: tuple[datetime, str], most: int) -> list[DueClosing]:
    """Return the accounts that follow ``after``, by when they are due."""
    after_at, after_id = after
    page = {"now": now, "after_at": after_at, "after_id": after_id, "most": most}
    return [DueClosing._make(row) for row in rows.execute(_DUE, page)]


def tasks_of_closed(
    rows: Connection, account_id: str, *, after: tuple[datetime, str], most: int
) -> list[Task | UnreadableEntry]:
    """Return the account's tasks that follow ``after``, oldest first, without their inputs."""
    position = tuple_(tasks.c.created_at, tasks.c.request_id)
    query = TASK.where(tasks.c.account_id == account_id, position > after)
    found = rows.execute(query.order_by(tasks.c.created_at, tasks.c.request_id).limit(most))
    return read_rows(task_of, found, "tasks", lambda row: (row.created_at, row.request_id))


def erase_unmatched_events(rows: Connection, names: Sequence[str], *, most: int) -> int:
    """Delete the card provider's events of no order that name an account or its customer; return how many."""
    return rows.execute(_UNMATCHED, {"names": list(names), "most": most}).rowcount


def erase_rows(rows: Connection, account_id: str, *, which: int, most: int) -> int:
    """Run one of the :func:`statements_count` statements; return how many rows it has deleted or changed."""
    return rows.execute(_STATEMENTS[which], {"account_id": account_id, "most": most}).rowcount


def record_erased(rows: Connection, account_id: str, change_id: str, at: datetime) -> bool:
    """Record that nothing is left to delete of an account; False if another process has done that."""
    return rows.execute(_ERASED, {"account_id": account_id, "change_id": change_id, "at": at}).rowcount == 1


def statements_count() -> int:
    """Return how many statements :func:`erase_rows` has, which are to be run in order."""
    return len(_STATEMENTS)


def after_of(found: Sequence[Task | UnreadableEntry]) -> tuple[datetime, str]:
    """Return the position of the last task of a page."""
    last = found[-1]
    return (last.created_at, last.request_id) if isinstance(last, Task) else (last.at, last.id)
