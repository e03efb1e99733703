"""Receipts. Processes of the release before go on; their payments get receipts from the others."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1002"
down_revision = "1001"
serves_from = "1000"


def upgrade() -> None:
    """Create the receipts and their series, and the index by which money is found that has none."""
    run_script(__file__)
