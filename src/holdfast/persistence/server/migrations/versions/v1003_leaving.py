"""What accounts need that their owners leave."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1003"
down_revision = "1002"
serves_from = "1000"


def upgrade() -> None:
    """Add when accounts are closed, and what happened to them as a whole."""
    run_script(__file__)
