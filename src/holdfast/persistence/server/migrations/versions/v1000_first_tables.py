"""The tables of the first release, from the SQL beside this file."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1000"
down_revision = None
serves_from = revision


def upgrade() -> None:
    """Create every table, index and trigger."""
    run_script(__file__)
