"""Keys in the order of lists, so that a task and its usage entry have one index less each.

Free space in pages is given up too where an update cannot use it, because it changes an indexed column.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Put new primary keys in the place of the old ones and of the indexes for lists."""
    for table, time in (("tasks", "created_at"), ("usage_entries", "ts")):
        op.drop_constraint(f"pk_{table}", table, type_="primary")
        op.create_primary_key(f"pk_{table}", table, ["account_id", time, "request_id"])
        op.drop_index(f"ix_{table}_listing", table)
    op.execute("alter table tasks reset (fillfactor)")
    op.execute("alter table holds reset (fillfactor)")
