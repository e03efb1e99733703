"""Keys that keys have made, and what keys did. Processes of the release before make none and refuse to."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1004"
down_revision = "1003"
serves_from = "1000"


def upgrade() -> None:
    """Add the makers of a key, and who did what to an account's history."""
    run_script(__file__)
