"""An index of the reports that concern a provider, for the list of them. Older releases ignore it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "ix_reports_provider",
        "reports",
        ["provider", "at", "report_id"],
        postgresql_where=sa.text("provider is not null"),
    )
