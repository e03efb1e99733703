"""Events are found by their ids alone."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "0130"
down_revision = "0120"
serves_from = "0110"


def upgrade() -> None:
    """Add the index."""
    run_script(__file__)
