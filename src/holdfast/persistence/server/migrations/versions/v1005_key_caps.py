"""The most that each task of an API key may cost. Processes of the release before go on without it."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1005"
down_revision = "1004"
serves_from = "1000"


def upgrade() -> None:
    """Add the column."""
    run_script(__file__)
