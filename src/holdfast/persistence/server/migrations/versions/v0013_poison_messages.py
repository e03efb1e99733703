"""Messages whose handling crashed their actor. Older releases ignore the table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0013"
down_revision = "0012"

_TIME = TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "poison_messages",
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("poison_id", "group_name", "key", "message_type")
        ),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("body_mac", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first_at", _TIME, nullable=False),
        sa.Column("last_at", _TIME, nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("reason_type", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=True),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("state_digest", sa.Text(), nullable=True),
        sa.Column("replays", sa.Integer(), nullable=False),
        sa.Column("replayed_at", _TIME, nullable=True),
        sa.Column("replay_result", sa.Text(), nullable=True),
        sa.Column("claimed_until", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("poison_id", name=op.f("pk_poison_messages")),
    )
    op.create_index(
        "uq_poison_messages_open",
        "poison_messages",
        ["group_name", "key", "message_type", "body_mac"],
        unique=True,
        postgresql_where=sa.text("state in ('kept', 'replaying', 'unknown')"),
    )
    op.create_index("ix_poison_messages_last_at", "poison_messages", ["last_at"])
    op.create_index("ix_poison_messages_first_at", "poison_messages", ["first_at", "poison_id"])
