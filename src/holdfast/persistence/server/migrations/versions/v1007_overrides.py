"""What operators set at run time for a time. Processes of the release before know of none."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1007"
down_revision = "1006"
serves_from = "1000"


def upgrade() -> None:
    """Add the table."""
    run_script(__file__)
