"""Every table, in SQLAlchemy Core. Migrations create them; the code reads and writes by this module.

The primary keys of what belongs to accounts begin with the account's id. Amounts are micro-credits in BIGINT.
``operations`` and ``postings`` are the immutable journal: the migration adds triggers that
reject UPDATE, DELETE and TRUNCATE on them.

Where a row is stored as a value of one type, the columns are that type's fields (``columns_of``).

Documents are JSON, not JSONB: they are written far more often than searched, and storing them as text takes half
the time of inserting a new task.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, Column, Identity, Text, text
from sqlalchemy.dialects.postgresql import JSON

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.orders.order import Order
from holdfast.ledger.receipts import Receipt
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records import event_rows, key_rows, rows
from holdfast.persistence.records.credit_tables import (
    coupon_tries,
    coupon_uses,
    coupons,
    credit_lots,
    statement_keys,
)
from holdfast.persistence.records.move_tables import account_moves, given_emails, moving_rows
from holdfast.persistence.records.operator_tables import (
    check_callbacks,
    operator_actions,
    operator_sessions,
    overrides,
    poison_messages,
)
from holdfast.persistence.records.table_base import Int16, Int32, columns, columns_of, index, metadata, table

__all__ = [
    "account_moves", "check_callbacks", "coupon_tries", "coupon_uses", "coupons", "credit_lots", "given_emails",
    "metadata", "moving_rows", "operator_actions", "operator_sessions", "overrides", "poison_messages",
    "statement_keys",
]  # fmt: skip

accounts = table(
    "accounts",
    ["id"],
    *columns_of(rows.AccountRow, without=["head"]),
    # The fence, and what follows from the newest operation.
    *columns_of(rows.AccountHead),
    # Since when the account is disabled by an operator.
    *columns(disabled_at=datetime | None),
    # When the account is closed, as its owner wants; when it was; and when all that is deleted then was deleted.
    *columns(closes_at=datetime | None, closed_at=datetime | None, erased_at=datetime | None),
    index("ix_accounts_closing", "closes_at", "id", where="closes_at is not null and erased_at is null"),
    # In the order of bytes, so that operators find an address by its beginning.
    index("uq_accounts_email", "email", unique=True, postgresql_ops={"email": "text_pattern_ops"}),
    postgresql_with={"fillfactor": "60"},
)

account_changes = table(
    "account_changes",
    ["account_id", "at", "change_id"],
    *columns_of(rows.AccountChangeRow),
    # For the deletion of what keys did long ago.
    index("ix_account_changes_of_keys", "at", where="api_key_id is not null"),
)

operations = table(
    "operations",
    ["account_id", "number"],
    *columns_of(Operation, without=["postings", "lot", "emptied"]),
    index("uq_operations_operation_id", "operation_id", unique=True),
    # For sums by day. Operations are appended in the order of their times, so that it stays small.
    index("ix_operations_at", "at", postgresql_using="brin", postgresql_with={"pages_per_range": 32}),
    # Finds what moved money for an order, in the order of the ledger.
    index(
        *("ix_operations_money", "at", "account_id", "number"),
        where="kind in ('credit', 'reversal') and starts_with(reference, 'ord_')",
    ),
    # The last guard against settling a hold twice; the account's actor and its fence come first.
    index(
        "uq_operations_settled_hold", "account_id", "hold_id", unique=True, where="kind in ('capture', 'release')"
    ),
)

postings = table(
    "postings",
    ["account_id", "number", "line"],
    *columns(account_id=str, number=int, line=Int32, ledger_account=str, amount_micro=int, lot=int | None),
)

checkpoints = table(
    "checkpoints",
    ["account_id", "number"],
    # An operation up to which the account's history was audited, with the totals and the chain hash after it.
    # As immutable as the journal.
    *columns(account_id=str, number=int, balance_micro=int, held_micro=int, chain_head=bytes, at=datetime),
)

holds = table(
    "holds",
    ["account_id", "hold_id"],
    *columns(account_id=str, hold_id=str, amount_micro=int, reference=str),
    *columns(opened_number=int, settled_number=int | None),
    index("ix_holds_open", "account_id", where="settled_number is null"),
)

tasks = table(
    "tasks",
    # In the order of the listing, so that a new task needs no further index for it.
    ["account_id", "created_at", "request_id"],
    # ``wake_at``: claiming a due task postpones it, so that several processes share the work. ``dispatched``: an
    # undispatched task waits for a slot.
    *columns_of(Task),
    # The input of the request, apart from the rest of it: it may have megabytes, and few reads need it.
    *columns(input=object),
    # The process that last wrote or claimed the task after its dispatch; null before it. Until when the large input
    # of an ended task is retained; null if there is nothing to delete.
    *columns(owner=str | None, input_until=datetime | None),
    # What the terms allow: when the task is given up, and how long it waits for a provider that answers no
    # submission, or sends no update.
    *columns(overall_deadline_at=datetime, dispatch_s=Int32, run_s=Int32),
    index("uq_tasks_request_id", "request_id", unique=True),
    # A transition changes wake_at, so that the row's index entries are written again in any case. The first finds
    # the next waiting task of each account, the second those that have waited as long as their terms allow, the
    # third those that have waited long enough for a silent provider. The fourth finds the dispatched tasks of a
    # process, and which of them are due.
    index("ix_tasks_waiting", "provider", "account_id", "wake_at", where="wake_at is not null and not dispatched"),
    index("ix_tasks_overdue", "overall_deadline_at", where="wake_at is not null and not dispatched"),
    index(
        *("ix_tasks_waited", "provider", "dispatch_s", "run_s", "created_at"),
        where="wake_at is not null and not dispatched",
    ),
    index("ix_tasks_due", "owner", "wake_at", where="wake_at is not null and dispatched"),
    index("ix_tasks_review", "created_at", "request_id", where="status = 'review'"),
    # The failed tasks of all accounts, for operators; a provider is compared in the index alone. It names wake_at,
    # which is null then, so that an account's own list of failed tasks never reads it.
    index("ix_tasks_failed", "created_at", "request_id", "provider", where="status = 'failed' and wake_at is null"),
    index("ix_tasks_input_until", "input_until", where="input_until is not null"),
    index("ix_tasks_stored_inputs", "account_id", where="input_until is not null and status <> 'succeeded'"),
)

task_events = table(
    "task_events",
    ["account_id", "request_id", "provider", "event_id"],
    *columns_of(rows.TaskEventRow),
)

usage_entries = table(
    "usage_entries",
    # In the order of the log. A task's entry is found by the task's own time.
    ["account_id", "ts", "request_id"],
    *columns_of(rows.UsageEntry),
    # Finds the entries of an end user, who may have few of very many. Its columns never change.
    index(
        *("ix_usage_entries_end_user", "account_id", "end_user", "ts", "request_id"), where="end_user is not null"
    ),
    postgresql_with={"fillfactor": "80"},
)

usage_totals = table(
    "usage_totals",
    ["account_id", "end_user_by", "span_s", "start_at", "model", "api_key_id", "status", "end_user"],
    # How many tasks of an account have ended, and what was captured for them, by the time of their creation. Each
    # task is counted in a quarter of an hour, an hour and a day of UTC: the one of ``span_s`` that begins at
    # ``start_at``. Tasks that have not ended are in no total.
    *columns(account_id=str, end_user_by=str, span_s=Int32, start_at=datetime),
    # ``end_user_by`` is "" in the totals of all tasks by model, API key and status. The others are of each end user
    # by one of these: all of them together might have as many rows as there are tasks. A column by which a row does
    # not count is "", as is the key of tasks without one.
    *columns(model=str, api_key_id=str, status=str, end_user=str, count=int, cost_micro=int),
    postgresql_with={"fillfactor": "80"},
)

assets = table(
    "assets",
    ["account_id", "request_id", "position"],
    *columns_of(rows.AssetRow),
    index("uq_assets_asset_id", "asset_id", unique=True),
    index("ix_assets_sha256", "sha256"),
    index("ix_assets_expires_at", "expires_at"),
)

# Written without the journal: no credit depends on them.
files = table(
    "files",
    # In the order of the listing.
    ["account_id", "created_at", "file_id"],
    *columns_of(rows.FileRow),
    index("uq_files_file_id", "file_id", unique=True),
    index("ix_files_sha256", "sha256"),
    index("ix_files_expires_at", "expires_at", "file_id"),
)

archives = table(
    "archives",
    ["account_id"],
    *columns_of(rows.ArchiveRow),
    index("uq_archives_archive_id", "archive_id", unique=True),
    index("ix_archives_due", "requested_at", where="made_at is null"),
)

file_uses = table(
    "file_uses",
    ["account_id", "file_id", "hold_id"],
    # Which file the task with this hold has in its input: written before the task, deleted after its end.
    *columns(account_id=str, file_id=str, hold_id=str, claimed_at=datetime),
)

api_keys = table(
    "api_keys",
    ["account_id", "key_id"],
    *columns_of(key_rows.ApiKeyRecord, without=["terms", "more_limits"]),
    *columns_of(KeyTerms),
    *columns(secret_sha256=bytes),
    # The keys that have made it, one after the other; null: the owner has.
    *columns(makers=tuple[str, ...] | None),
    # Of these limits what was captured is in no row of theirs, but in the usage totals. Null: a process of the
    # release before has written the key.
    Column("more_limits", JSON, nullable=True),
    index("uq_api_keys_secret_sha256", "secret_sha256", unique=True),
    index("ix_api_keys_prefix", "prefix"),
    index("ix_api_keys_revoked_at", "revoked_at", where="revoked_at is not null"),
)

key_groups = table("key_groups", ["account_id", "group_id"], *columns_of(key_rows.KeyGroupRow))
# A row stays when its key is deleted, since what the key has spent counts on in its group.
group_keys = table("group_keys", ["account_id", "key_id"], *columns_of(key_rows.GroupKeyRow))

account_limits = table(
    "account_limits",
    ["account_id", "limit_window"],
    # The limits of whole accounts. A limit that was removed keeps its row, without an amount.
    *columns_of(rows.AccountLimitRow),
)

sessions = table(
    "sessions",
    ["account_id", "session_id"],
    *columns_of(rows.SessionRow),
    *columns(revoked_at=datetime | None),
    index("uq_sessions_token_sha256", "token_sha256", unique=True),
    index("ix_sessions_expires_at", "expires_at"),
)

idempotency_records = table(
    "idempotency_records",
    ["account_id", "route", "key"],
    *columns_of(rows.IdempotencyProbe),
    *columns_of(rows.StoredReply),
    *columns(created_at=datetime),
    index("ix_idempotency_records_created_at", "created_at"),
)

orders = table(
    "orders",
    ["account_id", "order_id"],
    *columns(account_id=str, order_id=str, provider=str, origin=str, created_at=datetime, expires_at=datetime),
    *columns(status=str, reconcile_status=str),
    # ``version`` is no fence: every change of an order is a change of its account. ``wake_at`` is when the order's
    # next timer is due; claiming the order postpones it.
    *columns_of(Order),
    index("uq_orders_order_id", "order_id", unique=True),
    index("ix_orders_listing", "account_id", "created_at", "order_id"),
    index("ix_orders_due", "wake_at", where="wake_at is not null"),
    index("ix_orders_odd", "status", where="status = 'held' or reconcile_status = 'mismatch'"),
    postgresql_with={"fillfactor": "70"},
)

auto_top_ups = table(
    "auto_top_ups",
    ["account_id"],
    # As orders without a fence of its own: a part of the account's state.
    *columns_of(rows.AutoTopUpRow),
    index("ix_auto_top_ups_due", "wake_at", where="wake_at is not null"),
    index("ix_auto_top_ups_off_at", "off_at", "account_id", where="off_at is not null"),
)

outbox = table(
    "outbox",
    ["account_id", "event_id"],
    # Beginning a delivery postpones ``due_at`` as a failure would, so that one lost with its process counts as
    # failed. It also counts in ``attempts``: an outcome is recorded only if no other delivery has begun since.
    *columns_of(rows.OutboxRow),
    *columns(done_at=datetime | None, reason=str | None),
    index("ix_outbox_task", "account_id", "request_id"),
    # For operators, who have an event's id alone.
    index("ix_outbox_event_id", "event_id"),
    index(
        "ix_outbox_webhook", "account_id", "webhook_id", "created_at", "event_id", where="webhook_id is not null"
    ),
    # Finds the next event of each receiver.
    index("ix_outbox_pending", "receiver", "due_at", where="due_at is not null"),
    index("ix_outbox_given_up", "created_at", "event_id", where="status = 'given_up'"),
    index("ix_outbox_retried", "account_id", "created_at", "event_id", where="status = 'given_up' or tries > 1"),
    index("ix_outbox_done", "done_at", where="done_at is not null"),
    postgresql_with={"fillfactor": "80"},
)

outbox_attempts = table(
    "outbox_attempts",
    ["account_id", "event_id", "number"],
    *columns_of(rows.OutboxAttemptRow),
)

silent_receivers = table(
    "silent_receivers",
    ["receiver"],
    # The receivers, other than webhooks, whose last delivery had no answer in time.
    *columns(receiver=str, since=datetime),
)

webhooks = table(
    "webhooks",
    ["account_id", "webhook_id"],
    *columns_of(event_rows.WebhookRow),
    # Whether its last delivery had no answer in time, or its address has had none yet.
    Column("is_silent", Boolean, nullable=False, server_default=text("true")),
    index("ix_webhooks_webhook_id", "webhook_id"),
)

alerts = table("alerts", ["account_id"], *columns_of(event_rows.AlertsRow))

webhook_secrets = table(
    "webhook_secrets",
    ["account_id", "generation"],
    *columns_of(rows.WebhookSecretRow),
)

# ------------------------------------------------------------ what is unique across accounts, or belongs to none

# Every payment and charge that the provider named for an order. Each belongs to one order, so that its money is
# credited once, whichever orders later events name.
order_payments = table(
    "order_payments",
    ["provider", "provider_object_id"],
    *columns_of(rows.OrderPaymentRow),
    index("ix_order_payments_account_id", "account_id"),
)

# Its index by account serves the checks of one account at a time.
payment_events = table(
    "payment_events",
    ["provider", "event_id"],
    *columns_of(rows.PaymentEventRow),
    index("ix_payment_events_account_id", "account_id"),
    index("ix_payment_events_order_id", "order_id", where="order_id is not null"),
    index("ix_payment_events_unmatched", "received_at", where="order_id is null"),
)

receipts = table(
    "receipts",
    ["sequence"],
    # As immutable as the journal, and written after it.
    *columns_of(Receipt),
    index("ix_receipts_listing", "account_id", "issued_at", "sequence"),
    index("ix_receipts_all", "issued_at", "sequence"),
    index("ix_receipts_month", "month", "account_id"),
    index("ix_receipts_order", "account_id", "order_id"),
    index("uq_receipts_number", "number", unique=True),
    index("uq_receipts_operation_id", "operation_id", unique=True),
)

receipt_series = table(
    "receipt_series",
    ["id"],
    # One row: the last number, which is the fence of those who issue receipts, and since when there are receipts.
    *columns(id=Int16, last_number=int, begun_at=datetime),
)

sign_ins = table(
    "sign_ins",
    ["key"],
    *columns_of(rows.SignInRow),
    index("ix_sign_ins_updated_at", "updated_at"),
    index("ix_sign_ins_unproven", "updated_at", where="(state -> 'proven') is null"),
    postgresql_with={"fillfactor": "70"},
)

contents = table(
    "contents",
    ["sha256", "content_type"],
    *columns(sha256=str, content_type=str, claimed_until=datetime, marked_at=datetime | None),
)

journal_batches = table(
    "journal_batches",
    ["batch_id"],
    # Written inside each batch's transaction: after a lost response to COMMIT, the row shows whether it committed.
    *columns(batch_id=str, unit_count=Int32, committed=bool, at=datetime),
    index("ix_journal_batches_at", "at"),
)

audit_progress = table(
    "audit_progress",
    ["id"],
    # One row.
    *columns(id=Int16),
    *columns_of(rows.AuditProgress),
)

audit_differences = table("audit_differences", ["account_id", "rule"], *columns_of(rows.KnownDifference))

# ------------------------------------------------- processes: their leases, the clock they share, and their reports

processes = table(
    "processes",
    ["process_id"],
    # Its machine, pid and start time, by which another process on the same machine detects that it has ended.
    *columns(process_id=str, machine=str | None, pid=Int32, started=str | None, lease_until=datetime),
    # The names of the media providers it can reach. Whether other members send it asks, where they reach it, and
    # the version of the frames it understands.
    *columns(providers=tuple[str, ...], state=str, addresses=tuple[str, ...], protocol=Int16),
)

singletons = table(
    "singletons",
    ["name"],
    # A kind of work that one process does for all, and that process; it counts while the process's lease does.
    *columns(name=str, process_id=str),
)

service_clock = table(
    "service_clock",
    ["id"],
    # One row. Service time is the database's clock plus ``ahead_s``, which compensates steps of that clock.
    *columns(id=Int16, ahead_s=float),
    # The last measurement: the process that made it, the time of the database's clock, and the service time.
    *columns(process_id=str, database_at=datetime, service_at=datetime),
)

reports = table(
    "reports",
    ["position"],
    # In the order of commits: writers take turns. So what follows a position that was read is all that is new.
    Column("position", BigInteger, Identity(always=True), nullable=False),
    Column("report_id", Text, nullable=False, unique=True),
    # ``at`` is by the clock of the process that emitted it. What is searched for; all fields are in the document.
    *columns(at=datetime, kind=str, level=str, path=str, key=str | None, account_id=str | None),
    *columns(task_id=str | None, provider=str | None, member_id=str | None, trace_id=str | None, report=object),
    index("ix_reports_at", "at", "report_id"),
    index("ix_reports_kind", "kind", "at", "report_id"),
    index("ix_reports_key", "key", "at", "report_id", where="key is not null"),
    index("ix_reports_account_id", "account_id", "at", "report_id", where="account_id is not null"),
    index("ix_reports_task_id", "task_id", "at", "report_id", where="task_id is not null"),
    index("ix_reports_provider", "provider", "at", "report_id", where="provider is not null"),
    index("ix_reports_trace_id", "trace_id", where="trace_id is not null"),
)
