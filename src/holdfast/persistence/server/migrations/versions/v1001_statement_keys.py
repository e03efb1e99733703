"""The public keys that have signed statements, from the SQL beside this file."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1001"
down_revision = "1000"
# Processes of the release before do not know the table, and need not.
serves_from = "1000"


def upgrade() -> None:
    """Create the table."""
    run_script(__file__)
