"""Reports: what operators should know of. Older releases neither write nor read them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

_ORDER = ("at", "report_id")


def upgrade() -> None:
    """Create the table and its indexes."""
    op.create_table(
        "reports",
        sa.Column("position", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("report_id", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("account_id", sa.Text()),
        sa.Column("task_id", sa.Text()),
        sa.Column("provider", sa.Text()),
        sa.Column("member_id", sa.Text()),
        sa.Column("trace_id", sa.Text()),
        sa.Column("report", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_reports")),
        sa.UniqueConstraint("report_id", name=op.f("uq_reports_report_id")),
    )
    op.create_index("ix_reports_at", "reports", _ORDER)
    op.create_index("ix_reports_kind", "reports", ("kind", *_ORDER))
    for name in ("key", "account_id", "task_id"):
        where = sa.text(f"{name} is not null")
        op.create_index(f"ix_reports_{name}", "reports", (name, *_ORDER), postgresql_where=where)
    op.create_index(
        "ix_reports_trace_id", "reports", ["trace_id"], postgresql_where=sa.text("trace_id is not null")
    )
