"""How far the checker has come, what it found, and indexes by account for it. Older releases ignore them.

While an index is built, writes to its table wait.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"

BY_ACCOUNT = ("account_emails", "order_payments", "payment_events")


def upgrade() -> None:
    """Create the tables and the indexes."""
    time = postgresql.TIMESTAMP(timezone=True)
    counts = ("accounts_total", "accounts_done", "operations_done", "skipped")
    op.create_table(
        "audit_progress",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("passes", sa.BigInteger(), nullable=False),
        sa.Column("verified_up_to", time),
        sa.Column("begun_at", time, nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counts),
        sa.Column("newest_operation_id", sa.Text()),
        sa.Column("newest_operation_at", time),
        sa.Column("operations_per_s", sa.Double(), nullable=False),
        sa.Column("written_at", time, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_progress")),
    )
    op.create_table(
        "audit_differences",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("account_id", "rule", "what")),
        sa.Column("found_at", time, nullable=False),
        sa.Column("seen_at", time, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "rule", name=op.f("pk_audit_differences")),
    )
    for table in BY_ACCOUNT:
        op.create_index(f"ix_{table}_account_id", table, ["account_id"])
