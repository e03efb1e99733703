"""The first tables, and the triggers that keep the journal immutable."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

JOURNAL = ("operations", "postings")


def upgrade() -> None:
    """Create every table of version 1."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("brand_id", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("operation_count", sa.BigInteger(), nullable=False),
        sa.Column("balance_micro", sa.BigInteger(), nullable=False),
        sa.Column("held_micro", sa.BigInteger(), nullable=False),
        sa.Column("chain_head", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        postgresql_with={"fillfactor": "60"},
    )
    op.create_index("uq_accounts_email", "accounts", ["email"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_used_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("revoked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("account_id", "key_id", name=op.f("pk_api_keys")),
    )
    op.create_index("uq_api_keys_secret_sha256", "api_keys", ["secret_sha256"], unique=True)
    op.create_table(
        "assets",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("asset_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "request_id", "position", name=op.f("pk_assets")),
    )
    op.create_index("ix_assets_expires_at", "assets", ["expires_at"], unique=False)
    op.create_index("ix_assets_sha256", "assets", ["sha256"], unique=False)
    op.create_index("uq_assets_asset_id", "assets", ["asset_id"], unique=True)
    op.create_table(
        "holds",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("hold_id", sa.Text(), nullable=False),
        sa.Column("amount_micro", sa.BigInteger(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("opened_number", sa.BigInteger(), nullable=False),
        sa.Column("settled_number", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("account_id", "hold_id", name=op.f("pk_holds")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "ix_holds_open", "holds", ["account_id"], unique=False, postgresql_where=sa.text("settled_number is null")
    )
    op.create_table(
        "idempotency_records",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("reply", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "route", "key", name=op.f("pk_idempotency_records")),
    )
    op.create_index("ix_idempotency_records_created_at", "idempotency_records", ["created_at"], unique=False)
    op.create_table(
        "journal_batches",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_journal_batches")),
    )
    op.create_index("ix_journal_batches_at", "journal_batches", ["at"], unique=False)
    op.create_table(
        "operations",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount_micro", sa.BigInteger(), nullable=False),
        sa.Column("balance_after_micro", sa.BigInteger(), nullable=False),
        sa.Column("held_after_micro", sa.BigInteger(), nullable=False),
        sa.Column("hold_id", sa.Text(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "number", name=op.f("pk_operations")),
    )
    op.create_index("uq_operations_operation_id", "operations", ["operation_id"], unique=True)
    op.create_index(
        "uq_operations_settled_hold",
        "operations",
        ["account_id", "hold_id"],
        unique=True,
        postgresql_where=sa.text("kind in ('capture', 'release')"),
    )
    op.create_table(
        "orders",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("order_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reconcile_status", sa.Text(), nullable=False),
        sa.Column("provider_payment_id", sa.Text(), nullable=True),
        sa.Column("provider_charge_id", sa.Text(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("wake_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("request", postgresql.JSON(), nullable=False),
        sa.Column("state", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "order_id", name=op.f("pk_orders")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "ix_orders_due", "orders", ["wake_at"], unique=False, postgresql_where=sa.text("wake_at is not null")
    )
    op.create_index("ix_orders_listing", "orders", ["account_id", "created_at", "order_id"], unique=False)
    op.create_index(
        "ix_orders_odd",
        "orders",
        ["status"],
        unique=False,
        postgresql_where=sa.text("status = 'held' or reconcile_status = 'mismatch'"),
    )
    op.create_index(
        "ix_orders_provider_charge_id",
        "orders",
        ["provider", "provider_charge_id"],
        unique=False,
        postgresql_where=sa.text("provider_charge_id is not null"),
    )
    op.create_index("uq_orders_order_id", "orders", ["order_id"], unique=True)
    op.create_index(
        "uq_orders_provider_payment_id",
        "orders",
        ["provider", "provider_payment_id"],
        unique=True,
        postgresql_where=sa.text("provider_payment_id is not null"),
    )
    op.create_table(
        "payment_events",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("order_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("received_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("provider", "event_id", name=op.f("pk_payment_events")),
    )
    op.create_index(
        "ix_payment_events_order_id",
        "payment_events",
        ["order_id"],
        unique=False,
        postgresql_where=sa.text("order_id is not null"),
    )
    op.create_index(
        "ix_payment_events_unmatched",
        "payment_events",
        ["received_at"],
        unique=False,
        postgresql_where=sa.text("order_id is null"),
    )
    op.create_table(
        "postings",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.SmallInteger(), nullable=False),
        sa.Column("ledger_account", sa.Text(), nullable=False),
        sa.Column("amount_micro", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "number", "line", name=op.f("pk_postings")),
    )
    op.create_table(
        "sessions",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("revoked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("account_id", "session_id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"], unique=False)
    op.create_index("uq_sessions_token_sha256", "sessions", ["token_sha256"], unique=True)
    op.create_table(
        "sign_ins",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("state", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_sign_ins")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("ix_sign_ins_updated_at", "sign_ins", ["updated_at"], unique=False)
    op.create_table(
        "task_events",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("received_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "request_id", "provider", "event_id", name=op.f("pk_task_events")),
    )
    op.create_table(
        "tasks",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("wake_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("dispatched", sa.Boolean(), nullable=False),
        sa.Column("request", postgresql.JSON(), nullable=False),
        sa.Column("state", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "request_id", name=op.f("pk_tasks")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "ix_tasks_due", "tasks", ["wake_at"], unique=False, postgresql_where=sa.text("wake_at is not null")
    )
    op.create_index("ix_tasks_listing", "tasks", ["account_id", "created_at", "request_id"], unique=False)
    op.create_index("uq_tasks_request_id", "tasks", ["request_id"], unique=True)
    op.create_table(
        "usage_entries",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("ts", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("modality", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("billable_units", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("latency_ms", sa.BigInteger(), nullable=True),
        sa.Column("cost_micro", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("operation_id", sa.Text(), nullable=True),
        sa.Column("status_history", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "request_id", name=op.f("pk_usage_entries")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("ix_usage_entries_listing", "usage_entries", ["account_id", "ts", "request_id"], unique=False)

    _refuse_changes()


def _refuse_changes() -> None:
    """Refuse UPDATE, DELETE and TRUNCATE on the journal, also if ``session_replication_role`` is ``replica``."""
    op.execute(
        """
        create function refuse_journal_change() returns trigger language plpgsql as $$
        begin
            raise exception 'the journal is immutable: % on % is refused', tg_op, tg_table_name
                using errcode = 'restrict_violation';
        end
        $$
        """
    )
    for table in JOURNAL:
        op.execute(
            f"create trigger {table}_are_immutable before update or delete or truncate on {table} "
            "for each statement execute function refuse_journal_change()"
        )
        op.execute(f"alter table {table} enable always trigger {table}_are_immutable")
