"""Indexes by which claims and counts read no more than they find.

Older releases work with this schema: the index of dispatched tasks serves their queries as well, though less fast.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

_WAITING = "wake_at is not null and not dispatched"
_DISPATCHED = "wake_at is not null and dispatched"


def upgrade() -> None:
    """Index waiting tasks by how long they may wait, dispatched ones by owner, reviews, and sign-ins to delete."""
    op.create_index(
        "ix_tasks_waited",
        "tasks",
        ["provider", sa.text("coalesce(request #>> '{terms,deadlines}', '')"), "created_at"],
        postgresql_where=sa.text(_WAITING),
    )
    op.drop_index("ix_tasks_due", "tasks")
    op.create_index("ix_tasks_due", "tasks", ["owner", "wake_at"], postgresql_where=sa.text(_DISPATCHED))
    op.create_index(
        "ix_tasks_review", "tasks", ["created_at", "request_id"], postgresql_where=sa.text("status = 'review'")
    )
    op.create_index(
        "ix_sign_ins_unproven",
        "sign_ins",
        ["updated_at"],
        postgresql_where=sa.text("(state -> 'proven') is null"),
    )
