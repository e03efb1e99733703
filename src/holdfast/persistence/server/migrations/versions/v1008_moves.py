"""Moves of accounts between cells. Processes of the release before know of none, and none may run during one."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1008"
down_revision = "1007"
serves_from = "1000"


def upgrade() -> None:
    """Add the tables, and have what is written without the journal be refused for an account that is gone."""
    run_script(__file__)
