"""Primary keys in the order of the lists, so that a task and its usage entry each need one index less.

The fill factor is reset where updates cannot use the free space, because they change an indexed column.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Replace the primary keys and the indexes for lists by new primary keys."""
    for table, time in (("tasks", "created_at"), ("usage_entries", "ts")):
        op.drop_constraint(f"pk_{table}", table, type_="primary")
        op.create_primary_key(f"pk_{table}", table, ["account_id", time, "request_id"])
        op.drop_index(f"ix_{table}_listing", table)
    op.execute("alter table tasks reset (fillfactor)")
    op.execute("alter table holds reset (fillfactor)")
