"""What operators did, and their sessions in a browser. Older releases ignore both tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0011"
down_revision = "0010"

_TIME = TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Create the tables, and the trigger that keeps actions."""
    op.create_table(
        "operator_actions",
        sa.Column("action_id", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("operator", "credential", "origin", "action", "target")
        ),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("account_id", "task_id", "reason")),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("action_id", name=op.f("pk_operator_actions")),
    )
    op.create_index("ix_operator_actions_at", "operator_actions", ["at", "action_id"])
    for name in ("account", "task"):
        op.create_index(
            f"ix_operator_actions_{name}",
            "operator_actions",
            [f"{name}_id", "at", "action_id"],
            postgresql_where=sa.text(f"{name}_id is not null"),
        )
    op.execute(
        "create trigger operator_actions_are_kept before delete or truncate on operator_actions "
        "for each statement execute function refuse_journal_change()"
    )
    op.execute("alter table operator_actions enable always trigger operator_actions_are_kept")
    op.create_table(
        "operator_sessions",
        sa.Column("cookie_mac", sa.LargeBinary(), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("cookie_mac", name=op.f("pk_operator_sessions")),
    )
    op.create_index("ix_operator_sessions_expires_at", "operator_sessions", ["expires_at"])
