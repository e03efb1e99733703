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

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Identity,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records.credit_tables import coupon_tries, coupon_uses, coupons, credit_lots
from holdfast.persistence.records.event_rows import AlertsRow, WebhookRow
from holdfast.persistence.records.operator_tables import (
    check_callbacks,
    operator_actions,
    operator_sessions,
    poison_messages,
)
from holdfast.persistence.records.rows import (
    AccountLimitRow,
    ApiKeyRecord,
    AssetRow,
    AuditProgress,
    AutoTopUpRow,
    FileRow,
    KnownDifference,
    OrderPaymentRow,
    OutboxAttemptRow,
    PaymentEventRow,
    SessionRow,
    TaskEventRow,
    UsageEntry,
    WebhookSecretRow,
)
from holdfast.persistence.records.table_base import Int16, Int32, Time, columns, columns_of, index, metadata

__all__ = [
    "check_callbacks", "coupon_tries", "coupon_uses", "coupons", "credit_lots", "metadata", "operator_actions",
    "operator_sessions", "poison_messages",
]  # fmt: skip

accounts = Table(
    "accounts",
    metadata,
    Column("id", Text, primary_key=True),
    *columns(email=str, role=str, brand_id=str, created_at=datetime),
    # Since when the account is disabled by an operator.
    Column("disabled_at", Time),
    # The fence: each unit of work increments it by one.
    Column("version", BigInteger, nullable=False),
    # The account's newest operation: its number, the totals after it and its chain hash.
    *columns(operation_count=int, balance_micro=int, held_micro=int, chain_head=bytes),
    # The amounts of its open lots, where several are open: number, remaining, reserved of each that was used, as
    # JSON. Those of a lone lot follow from the totals, so that an operation on it changes nothing here.
    Column("lots", Text),
    # In the order of bytes, so that operators find an address by its beginning.
    index("uq_accounts_email", "email", unique=True, postgresql_ops={"email": "text_pattern_ops"}),
    postgresql_with={"fillfactor": "60"},
)

operations = Table(
    "operations",
    metadata,
    *columns_of(Operation, without=["postings", "lot", "emptied"]),
    PrimaryKeyConstraint("account_id", "number"),
    index("uq_operations_operation_id", "operation_id", unique=True),
    # For sums by day. Operations are appended in the order of their times, so that it stays small.
    index("ix_operations_at", "at", postgresql_using="brin", postgresql_with={"pages_per_range": 32}),
    # The last guard against settling a hold twice; the account's actor and its fence come first.
    index(
        "uq_operations_settled_hold", "account_id", "hold_id", unique=True, where="kind in ('capture', 'release')"
    ),
)

postings = Table(
    "postings",
    metadata,
    *columns(account_id=str, number=int, line=Int32, ledger_account=str, amount_micro=int, lot=int | None),
    PrimaryKeyConstraint("account_id", "number", "line"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    # An operation up to which the account's history was audited, with the totals and the chain hash after it.
    # As immutable as the journal.
    *columns(account_id=str, number=int, balance_micro=int, held_micro=int, chain_head=bytes, at=datetime),
    PrimaryKeyConstraint("account_id", "number"),
)

holds = Table(
    "holds",
    metadata,
    *columns(account_id=str, hold_id=str, amount_micro=int, reference=str, opened_number=int),
    *columns(settled_number=int | None),
    PrimaryKeyConstraint("account_id", "hold_id"),
    index("ix_holds_open", "account_id", where="settled_number is null"),
)

tasks = Table(
    "tasks",
    metadata,
    # ``wake_at``: claiming a due task postpones it, so that several processes share the work. ``dispatched``: an
    # undispatched task waits for a slot.
    *columns_of(Task),
    # The input of the request, apart from the rest of it: it may have megabytes, and few reads need it.
    Column("input", JSON, nullable=False),
    # The process that last wrote or claimed the task after its dispatch; null before it.
    Column("owner", Text),
    # Until when the large input of an ended task is retained; null if there is nothing to delete.
    Column("input_until", Time),
    # What the terms allow: when the task is given up, and how long it waits for a provider that answers no
    # submission, or sends no update.
    *columns(overall_deadline_at=datetime, dispatch_s=Int32, run_s=Int32),
    # In the order of the listing, so that a new task needs no further index for it.
    PrimaryKeyConstraint("account_id", "created_at", "request_id"),
    index("uq_tasks_request_id", "request_id", unique=True),
    # A transition changes wake_at, so that the row's index entries are written again in any case. The first finds
    # the next waiting task of each account, the second those that have waited as long as their terms allow, the
    # third those that have waited long enough for a silent provider. The fourth finds the dispatched tasks of a
    # process, and which of them are due.
    index("ix_tasks_waiting", "provider", "account_id", "wake_at", where="wake_at is not null and not dispatched"),
    index("ix_tasks_overdue", "overall_deadline_at", where="wake_at is not null and not dispatched"),
    index(
        "ix_tasks_waited",
        "provider",
        "dispatch_s",
        "run_s",
        "created_at",
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

task_events = Table(
    "task_events",
    metadata,
    *columns_of(TaskEventRow),
    PrimaryKeyConstraint("account_id", "request_id", "provider", "event_id"),
)

usage_entries = Table(
    "usage_entries",
    metadata,
    *columns_of(UsageEntry),
    # In the order of the log. A task's entry is found by the task's own time.
    PrimaryKeyConstraint("account_id", "ts", "request_id"),
    # Finds the entries of an end user, who may have few of very many. Its columns never change.
    index(
        *("ix_usage_entries_end_user", "account_id", "end_user", "ts", "request_id"), where="end_user is not null"
    ),
    postgresql_with={"fillfactor": "80"},
)

usage_totals = Table(
    "usage_totals",
    metadata,
    # How many tasks of an account have ended, and what was captured for them, by the time of their creation. Each
    # task is counted in a quarter of an hour, an hour and a day of UTC: the one of ``span_s`` that begins at
    # ``start_at``. Tasks that have not ended are in no total.
    Column("account_id", Text, nullable=False),
    # "": the totals of all tasks by model, API key and status. Otherwise the totals of each end user by one of
    # these: all of them together might have as many rows as there are tasks. A column by which a row does not count
    # is "", as is the key of tasks without one.
    *columns(end_user_by=str, span_s=Int32, start_at=datetime, model=str, api_key_id=str, status=str, end_user=str),
    *columns(count=int, cost_micro=int),
    PrimaryKeyConstraint(
        "account_id", "end_user_by", "span_s", "start_at", "model", "api_key_id", "status", "end_user"
    ),
    postgresql_with={"fillfactor": "80"},
)

assets = Table(
    "assets",
    metadata,
    *columns_of(AssetRow),
    PrimaryKeyConstraint("account_id", "request_id", "position"),
    index("uq_assets_asset_id", "asset_id", unique=True),
    index("ix_assets_sha256", "sha256"),
    index("ix_assets_expires_at", "expires_at"),
)

# Written without the journal: no credit depends on them.
files = Table(
    "files",
    metadata,
    *columns_of(FileRow),
    # In the order of the listing.
    PrimaryKeyConstraint("account_id", "created_at", "file_id"),
    index("uq_files_file_id", "file_id", unique=True),
    index("ix_files_sha256", "sha256"),
    index("ix_files_expires_at", "expires_at", "file_id"),
)

file_uses = Table(
    "file_uses",
    metadata,
    # Which file the task with this hold has in its input: written before the task, deleted after its end.
    *columns(account_id=str, file_id=str, hold_id=str, claimed_at=datetime),
    PrimaryKeyConstraint("account_id", "file_id", "hold_id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    *columns_of(ApiKeyRecord, without=["terms"]),
    *columns_of(KeyTerms),
    Column("secret_sha256", LargeBinary, nullable=False),
    PrimaryKeyConstraint("account_id", "key_id"),
    index("uq_api_keys_secret_sha256", "secret_sha256", unique=True),
    index("ix_api_keys_prefix", "prefix"),
    index("ix_api_keys_revoked_at", "revoked_at", where="revoked_at is not null"),
)

account_limits = Table(
    "account_limits",
    metadata,
    # The limits of whole accounts. A limit that was removed keeps its row, without an amount.
    *columns_of(AccountLimitRow),
    PrimaryKeyConstraint("account_id", "limit_window"),
)

sessions = Table(
    "sessions",
    metadata,
    *columns_of(SessionRow),
    Column("revoked_at", Time),
    PrimaryKeyConstraint("account_id", "session_id"),
    index("uq_sessions_token_sha256", "token_sha256", unique=True),
    index("ix_sessions_expires_at", "expires_at"),
)

idempotency_records = Table(
    "idempotency_records",
    metadata,
    *columns(account_id=str, route=str, key=str, fingerprint=bytes),
    # The typed reply, as JSON; the HTTP layer renders it the same way each time.
    *columns(reply=bytes, created_at=datetime),
    PrimaryKeyConstraint("account_id", "route", "key"),
    index("ix_idempotency_records_created_at", "created_at"),
)

orders = Table(
    "orders",
    metadata,
    *columns(account_id=str, order_id=str),
    # No fence of its own: every change of an order is a change of its account.
    *columns(version=int, provider=str, origin=str, status=str, reconcile_status=str, created_at=datetime),
    *columns(updated_at=datetime, expires_at=datetime),
    # When the order's next timer is due; claiming the order postpones it.
    Column("wake_at", Time),
    Column("request", JSON, nullable=False),
    Column("state", JSON, nullable=False),
    PrimaryKeyConstraint("account_id", "order_id"),
    index("uq_orders_order_id", "order_id", unique=True),
    index("ix_orders_listing", "account_id", "created_at", "order_id"),
    index("ix_orders_due", "wake_at", where="wake_at is not null"),
    index("ix_orders_odd", "status", where="status = 'held' or reconcile_status = 'mismatch'"),
    postgresql_with={"fillfactor": "70"},
)

auto_top_ups = Table(
    "auto_top_ups",
    metadata,
    # As orders without a fence of its own: a part of the account's state.
    *columns_of(AutoTopUpRow, key=["account_id"]),
    index("ix_auto_top_ups_due", "wake_at", where="wake_at is not null"),
    index("ix_auto_top_ups_off_at", "off_at", "account_id", where="off_at is not null"),
)

outbox = Table(
    "outbox",
    metadata,
    *columns(account_id=str, event_id=str),
    # The task; null for an event of the account itself.
    Column("request_id", Text),
    # The webhook of the account; null for a task's own webhook_url, and for mail.
    Column("webhook_id", Text),
    # Whose deliveries wait for each other: the webhook, the account (for the webhook_url of its tasks), or
    # "mail:" and the account. Every other receiver has its turn meanwhile.
    *columns(receiver=str, kind=str, url=str, created_at=datetime),
    # When the next delivery may begin. Beginning one postpones this as a failure would, so that a delivery lost
    # with its process counts as failed. Null once no attempt is left.
    *columns(due_at=datetime | None, status=str),
    # Counted when a delivery begins: an outcome is recorded only if no other delivery has begun since.
    *columns(attempts=Int32, round_at=datetime, tries=Int32, done_at=datetime | None, reason=str | None),
    # The task as it was, or the data of an account's event: the body is rendered from it.
    Column("snapshot", JSON, nullable=False),
    PrimaryKeyConstraint("account_id", "event_id"),
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

outbox_attempts = Table(
    "outbox_attempts",
    metadata,
    *columns_of(OutboxAttemptRow),
    PrimaryKeyConstraint("account_id", "event_id", "number"),
)

silent_receivers = Table(
    "silent_receivers",
    metadata,
    # The receivers, other than webhooks, whose last delivery had no answer in time.
    Column("receiver", Text, primary_key=True),
    Column("since", Time, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    *columns_of(WebhookRow, key=["account_id", "webhook_id"]),
    # Whether its last delivery had no answer in time, or its address has had none yet.
    Column("is_silent", Boolean, nullable=False, server_default=text("true")),
    index("ix_webhooks_webhook_id", "webhook_id"),
)

alerts = Table("alerts", metadata, *columns_of(AlertsRow, key=["account_id"]))

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    *columns_of(WebhookSecretRow),
    PrimaryKeyConstraint("account_id", "generation"),
)

# ------------------------------------------------------------ what is unique across accounts, or belongs to none

# Every payment and charge that the provider named for an order. Each belongs to one order, so that its money is
# credited once, whichever orders later events name.
order_payments = Table(
    "order_payments",
    metadata,
    *columns_of(OrderPaymentRow, key=["provider", "provider_object_id"]),
    index("ix_order_payments_account_id", "account_id"),
)

# Its index by account serves the checks of one account at a time.
payment_events = Table(
    "payment_events",
    metadata,
    *columns_of(PaymentEventRow),
    PrimaryKeyConstraint("provider", "event_id"),
    index("ix_payment_events_account_id", "account_id"),
    index("ix_payment_events_order_id", "order_id", where="order_id is not null"),
    index("ix_payment_events_unmatched", "received_at", where="order_id is null"),
)

sign_ins = Table(
    "sign_ins",
    metadata,
    # "email:ada@example.com" or "origin:127.0.0.1": the key of the sign-in limits.
    Column("key", Text, primary_key=True),
    *columns(version=int, updated_at=datetime),
    Column("state", JSON, nullable=False),
    index("ix_sign_ins_updated_at", "updated_at"),
    index("ix_sign_ins_unproven", "updated_at", where="(state -> 'proven') is null"),
    postgresql_with={"fillfactor": "70"},
)

contents = Table(
    "contents",
    metadata,
    *columns(sha256=str, content_type=str, claimed_until=datetime, marked_at=datetime | None),
    PrimaryKeyConstraint("sha256", "content_type"),
)

journal_batches = Table(
    "journal_batches",
    metadata,
    # Written inside each batch's transaction: after a lost response to COMMIT, the row shows whether it committed.
    Column("batch_id", Text, primary_key=True),
    *columns(unit_count=Int32, committed=bool, at=datetime),
    index("ix_journal_batches_at", "at"),
)

audit_progress = Table(
    "audit_progress",
    metadata,
    # One row.
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    *columns_of(AuditProgress),
)

audit_differences = Table("audit_differences", metadata, *columns_of(KnownDifference, key=["account_id", "rule"]))

# ------------------------------------------------- processes: their leases, the clock they share, and their reports

processes = Table(
    "processes",
    metadata,
    Column("process_id", Text, primary_key=True),
    # Its machine, pid and start time, by which another process on the same machine detects that it has ended.
    *columns(machine=str | None, pid=Int32, started=str | None, lease_until=datetime),
    # The names of the media providers it can reach.
    Column("providers", ARRAY(Text), nullable=False),
    # Whether other members send it asks, where they reach it, and the version of the frames it understands.
    *columns(state=str, addresses=tuple[str, ...], protocol=Int16),
)

singletons = Table(
    "singletons",
    metadata,
    # A kind of work that one process does for all, and that process; it counts while the process's lease does.
    Column("name", Text, primary_key=True),
    Column("process_id", Text, nullable=False),
)

service_clock = Table(
    "service_clock",
    metadata,
    # One row. Service time is the database's clock plus ``ahead_s``, which compensates steps of that clock.
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("ahead_s", Double, nullable=False),
    # The last measurement: the process that made it, the time of the database's clock, and the service time.
    *columns(process_id=str, database_at=datetime, service_at=datetime),
)

reports = Table(
    "reports",
    metadata,
    # In the order of commits: writers take turns. So what follows a position that was read is all that is new.
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("report_id", Text, nullable=False, unique=True),
    # By the clock of the process that emitted it.
    Column("at", Time, nullable=False),
    # What is searched for; all fields are in the document.
    *columns(kind=str, level=str, path=str, key=str | None, account_id=str | None, task_id=str | None),
    *columns(provider=str | None, member_id=str | None, trace_id=str | None),
    Column("report", JSON, nullable=False),
    index("ix_reports_at", "at", "report_id"),
    index("ix_reports_kind", "kind", "at", "report_id"),
    index("ix_reports_key", "key", "at", "report_id", where="key is not null"),
    index("ix_reports_account_id", "account_id", "at", "report_id", where="account_id is not null"),
    index("ix_reports_task_id", "task_id", "at", "report_id", where="task_id is not null"),
    index("ix_reports_provider", "provider", "at", "report_id", where="provider is not null"),
    index("ix_reports_trace_id", "trace_id", where="trace_id is not null"),
)
