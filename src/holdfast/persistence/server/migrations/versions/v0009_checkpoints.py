"""Checkpoints: up to which operation each account's history was audited. Older releases ignore them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create the table, and the trigger that rejects changes of it, as those of the journal do."""
    op.create_table(
        "checkpoints",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("balance_micro", sa.BigInteger(), nullable=False),
        sa.Column("held_micro", sa.BigInteger(), nullable=False),
        sa.Column("chain_head", sa.LargeBinary(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "number", name=op.f("pk_checkpoints")),
    )
    op.execute(
        "create trigger checkpoints_are_immutable before update or delete or truncate on checkpoints "
        "for each statement execute function refuse_journal_change()"
    )
    op.execute("alter table checkpoints enable always trigger checkpoints_are_immutable")
