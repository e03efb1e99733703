"""Several limits of an API key, and groups of keys. Processes of the release before keep the limit they know."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "1006"
down_revision = "1005"
serves_from = "1000"


def upgrade() -> None:
    """Add the column and tables."""
    run_script(__file__)
