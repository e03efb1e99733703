"""The time line of an account or a task: its rows of every kind, merged by time, newest first.

Each source reads its newest entries before the position, by an index that begins with the account or task; the
merge keeps the newest of them all. Operations, of which there are the most, are narrowed by their numbers first.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, NamedTuple, Unpack

import msgspec
from sqlalchemy import Connection, bindparam, select, text

from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.ledger import numbers_between, numbers_of_newest
from holdfast.persistence.queries.paging import EARLIEST, LATEST, AccountPageOptions
from holdfast.persistence.queries.tasks import stored_task, task_by_id
from holdfast.persistence.records.tables import accounts
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.telemetry.reports.report import Report, in_words

Source = Literal[
    "operation", "task", "progress", "order", "payment_event", "callback", "event", "delivery", "session",
    "api_key", "action", "report", "account",
]  # fmt: skip


class TimeLineEntry(NamedTuple):
    """One entry. ``subject`` is what it is about, such as a task's or an order's id.

    ``amount_micro`` and ``balance_micro`` are an operation's amount and the balance after it.
    """

    at: datetime
    id: str
    source: Source
    what: str
    subject: str
    text: str | None = None
    amount_micro: int | None = None
    balance_micro: int | None = None


_NO_AMOUNTS: Final = "null::bigint as amount_micro, null::bigint as balance_micro"
_ACTION: Final = (
    "select at, action_id as id, 'action' as source, action || ' ' || coalesce(result, 'begun') as what, "
    "target as subject, operator || coalesce(': ' || reason, '') as text, " + _NO_AMOUNTS + " from operator_actions"
)
_REPORT: Final = (
    "select at, report_id as id, 'report' as source, kind as what, path as subject, report::text as text, "
    + _NO_AMOUNTS
    + " from reports"
)
_OF_ACCOUNT: Final = (
    "select at, operation_id as id, 'operation' as source, kind as what, reference as subject, reason as text, "
    "amount_micro, balance_after_micro as balance_micro from operations "
    "where number > :number_min and number <= :number_max and",
    "select created_at as at, request_id as id, 'task' as source, 'created' as what, request_id as subject, "
    f"model || ', now ' || status as text, {_NO_AMOUNTS} from tasks",
    "select created_at as at, order_id as id, 'order' as source, 'created' as what, order_id as subject, "
    f"provider || ', now ' || status as text, {_NO_AMOUNTS} from orders",
    "select received_at as at, md5(provider || event_id) as id, 'payment_event' as source, type as what, "
    f"coalesce(order_id, '') as subject, verdict as text, {_NO_AMOUNTS} from payment_events",
    # Deliveries are entries of their tasks; here are those that do not succeed.
    "select created_at as at, event_id as id, 'event' as source, kind as what, "
    "coalesce(request_id, webhook_id, event_id) as subject, "
    f"status || ' after ' || tries || ' attempts' || coalesce(': ' || reason, '') as text, {_NO_AMOUNTS} "
    "from outbox where (status = 'given_up' or tries > 1) and",
    "select created_at as at, session_id as id, 'session' as source, 'signed in' as what, session_id as subject, "
    f"null as text, {_NO_AMOUNTS} from sessions",
    "select created_at as at, key_id as id, 'api_key' as source, 'created' as what, key_id as subject, "
    f"name as text, {_NO_AMOUNTS} from api_keys",
    "select revoked_at as at, key_id || '-revoked' as id, 'api_key' as source, 'revoked' as what, "
    f"key_id as subject, name as text, {_NO_AMOUNTS} from api_keys where revoked_at is not null and",
    "select at, change_id as id, 'account' as source, what, coalesce(subject, account_id) as subject, "
    "'by the API key ' || api_key_id as text, "
    f"{_NO_AMOUNTS} from account_changes",
    _ACTION,
    _REPORT,
)
_OF_TASK: Final = (
    "select o.at, o.operation_id as id, 'operation' as source, o.kind as what, o.hold_id as subject, "
    "o.reason as text, o.amount_micro, o.balance_after_micro as balance_micro from holds h "
    "join operations o on o.account_id = h.account_id and o.number in (h.opened_number, h.settled_number) "
    "where h.account_id = :account_id and h.hold_id = :hold_id",
    "select received_at, md5(provider || event_id), 'callback', verdict, event_id, provider, null, null "
    "from task_events where account_id = :account_id and request_id = :task_id",
    "select created_at, event_id, 'event', kind, event_id, status || coalesce(': ' || reason, ''), null, null "
    "from outbox where account_id = :account_id and request_id = :task_id",
    "select a.at, a.event_id || '-' || a.number, 'delivery', o.kind, a.event_id, "
    "coalesce(a.error, 'status ' || a.status_code) || ' in ' || a.duration_ms || ' ms', null, null "
    "from outbox o join outbox_attempts a on (a.account_id, a.event_id) = (o.account_id, o.event_id) "
    "where o.account_id = :account_id and o.request_id = :task_id",
    f"{_ACTION} where task_id = :task_id",
    f"{_REPORT} where task_id = :task_id",
)


def _newest(source: str) -> str:
    where = "" if source.endswith(" and") else "where"
    return (
        f"(select * from ({source} {where} account_id = :account_id) s "
        "where (cast(:source as text) is null or source = :source) "
        "and at >= :since and at < :until and (at, id) < (:before_at, :before_id) "
        "order by at desc, id desc limit :limit)"
    )


_ACCOUNT = text(" union all ".join(map(_newest, _OF_ACCOUNT)) + " order by at desc, id desc limit :limit")
_TASK = text(" union all ".join(f"({source})" for source in _OF_TASK))
_EXISTS = select(accounts.c.id).where(accounts.c.id == bindparam("account_id"))


def time_line_of_account(
    rows: Connection, account_id: str, **options: Unpack[AccountPageOptions]
) -> list[TimeLineEntry] | None:
    """Return a page of an account's entries, newest first; None if it does not exist. The filter is ``source``."""
    if rows.scalar(_EXISTS, {"account_id": account_id}) is None:
        return None
    since, until, after = options.get("since"), options.get("until"), options.get("after")
    before_at, before_id = after or (LATEST, "")
    page = {
        "account_id": account_id,
        "since": since or EARLIEST,
        "until": until or LATEST,
        "before_at": before_at,
        "before_id": before_id,
        "limit": options["limit"],
    }
    ends = [at for at in (until, after and after[0]) if at is not None]
    numbers = numbers_between(rows, account_id, since, min(ends, default=None))
    numbers = numbers_of_newest(rows, numbers, page)
    parameters = {**page, **numbers._asdict(), "source": options.get("filters", {}).get("source")}
    return [_entry(TimeLineEntry._make(row)) for row in rows.execute(_ACCOUNT, parameters)]


def time_line_of_task(rows: Connection, task_id: str) -> list[TimeLineEntry] | None:
    """Return every entry of a task, newest first; None if the task does not exist.

    A task has a few hundred at most: its progress, its callbacks and the attempts of its events are limited.
    """
    stored = stored_task(rows, task_id)
    if stored is None:
        return None
    parameters = {
        "account_id": stored.account_id,
        "task_id": task_id,
        "hold_id": stored.hold and stored.hold.hold_id,
    }
    found = [_entry(TimeLineEntry._make(row)) for row in rows.execute(_TASK, parameters)]
    with suppress(UnreadableRow):
        task = task_by_id(rows, task_id)
        found += [] if task is None else _own_entries(task)
    return sorted(found, key=lambda entry: (entry.at, entry.id), reverse=True)


def _own_entries(task: Task) -> Iterable[TimeLineEntry]:
    for number, change in enumerate(task.state.status_history):
        yield TimeLineEntry(change.ts, f"status-{number:03}", "task", change.status, task.request_id, change.error)
    for number, each in enumerate(task.state.progress):
        yield TimeLineEntry(
            each.ts, f"progress-{number:03}", "progress", each.status, task.request_id, each.message
        )


def _entry(entry: TimeLineEntry) -> TimeLineEntry:
    """Put a report into words; a report of a newer release stays as it is named."""
    if entry.source != "report" or entry.text is None:
        return entry
    try:
        return entry._replace(text=in_words(msgspec.json.decode(entry.text, type=Report)))
    except msgspec.MsgspecError:
        return entry._replace(text=None)
