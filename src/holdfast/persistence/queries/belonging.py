"""What belongs together: the ids of one thing, found by any of them, and the account that it is of.

An id that a customer, a receipt, a provider or a log line shows leads to a task or an order, and that to its
request, hold, operations, events, payments and receipts. Where there is no index for an id, the newest rows are
searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from holdfast.ledger.tasks.transitions import task_of_attempt, task_of_review_case
from holdfast.persistence.queries.accounts import account_of_email, email_of_account
from holdfast.persistence.queries.finding import Found, accounts_of_key, made_by_request, newest_with, subject_of
from holdfast.telemetry.traces import trace_id_in

SUBJECTS_MAX: Final = 20
"""How many tasks and orders one id leads to: a caller's trace may have created very many."""
EVENTS_MAX: Final = 100

_TASK: Final = text(
    "select account_id, created_at, updated_at, request ->> 'traceparent' as traceparent, array_remove(array["
    "request ->> 'http_request_id', request ->> 'hold_id', request ->> 'retry_of', state ->> 'provider_ref', "
    "state -> 'review' ->> 'case_id'], null) as ids from tasks where request_id = :subject"
)
_OF_TASK: Final = text(
    "select o.operation_id from holds h join operations o on o.account_id = h.account_id "
    "and o.number in (h.opened_number, h.settled_number) "
    "where h.account_id = :account_id and h.hold_id = any(:ids) "
    "union all (select event_id from outbox where account_id = :account_id and request_id = :subject "
    "order by created_at desc limit :most)"
)
_ORDER: Final = text(
    "select account_id, created_at, updated_at, request ->> 'traceparent' as traceparent, array_remove(array["
    "request ->> 'http_request_id', request ->> 'operation_id'], null) as ids from orders where order_id = :subject"
)
_OF_ORDER: Final = text(
    "select provider_object_id from order_payments where account_id = :account_id and order_id = :subject "
    "union all (select event_id from payment_events where order_id = :subject "
    "order by received_at desc limit :most) "
    "union all select unnest(array[number, operation_id]) from receipts "
    "where account_id = :account_id and order_id = :subject "
    "union all select json_object_keys(state -> 'facts' -> 'refunds') from orders "
    "where order_id = :subject and json_typeof(state -> 'facts' -> 'refunds') = 'object' "
    "union all select json_object_keys(state -> 'facts' -> 'disputes') from orders "
    "where order_id = :subject and json_typeof(state -> 'facts' -> 'disputes') = 'object'"
)
_KINDS: Final = {"task_": (_TASK, _OF_TASK), "ord_": (_ORDER, _OF_ORDER)}


class Belonging(NamedTuple):
    """What belongs to what was sought: its ``own`` ids, the ``subjects`` among them, tasks and orders, and when
    these were created first and changed last; and its account with its e-mail address.
    """

    own: Sequence[str]
    subjects: Sequence[str] = ()
    account_id: str | None = None
    email: str | None = None
    begun_at: datetime | None = None
    changed_at: datetime | None = None


def what_belongs_to(rows: Connection, sought: str, *, digits: str | None, key_prefix: str | None) -> Belonging:
    """Return what belongs to an id, an e-mail address or an API key; ``own`` is at least what was sought.

    ``digits`` are those of a request's or trace's id, ``key_prefix`` how an API key begins, if it is one.
    """
    leads = _leads(rows, sought, digits, key_prefix)
    own = dict.fromkeys([digits or key_prefix or sought])
    subjects = [
        each.reference for each in leads if each.reference is not None and each.reference[:4] in ("task", "ord_")
    ]
    account_id = next((each.account_id for each in leads if each.account_id), None)
    times: list[datetime] = []
    for subject in dict.fromkeys(subjects):
        first, others = _KINDS["task_" if subject.startswith("task_") else "ord_"]
        row = rows.execute(first, {"subject": subject}).one_or_none()
        if row is None:
            continue
        account_id = row.account_id
        times += row.created_at, row.updated_at
        about = {"account_id": account_id, "subject": subject, "ids": row.ids, "most": EVENTS_MAX}
        trace = trace_id_in(row.traceparent)
        own |= dict.fromkeys([subject, *([trace] if trace else []), *row.ids])
        own |= dict.fromkeys(rows.execute(others, about).scalars())
    return Belonging(
        own=[*own],
        subjects=[each for each in own if each in subjects],
        account_id=account_id,
        email=None if account_id is None else email_of_account(rows, account_id),
        begun_at=min(times, default=None),
        changed_at=max(times, default=None),
    )


def _leads(rows: Connection, sought: str, digits: str | None, key_prefix: str | None) -> list[Found]:
    """Return accounts, and tasks or orders, that an id leads to; one without an account if there is no such row."""
    if digits is not None:
        return made_by_request(rows, digits, SUBJECTS_MAX)
    if key_prefix is not None:
        return accounts_of_key(rows, key_prefix, 1)
    if "@" in sought:
        account_id = account_of_email(rows, sought.lower())
        return [] if account_id is None else [Found(account_id)]
    if sought.startswith("acct_"):
        return [Found(sought)]
    if sought.startswith("rev_"):
        sought = task_of_review_case(sought)
    if sought.startswith(("task_", "ord_")):
        # Some providers name a job as we name an attempt.
        return [Found("", reference=task_of_attempt(sought))]
    found = subject_of(rows, sought)
    return newest_with(rows, sought, SUBJECTS_MAX) if found is None else [found]
