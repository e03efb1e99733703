"""An index by which the entries of an end user are found."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "0140"
down_revision = "0130"
serves_from = "0110"


def upgrade() -> None:
    """Create the index; what is written meanwhile waits."""
    run_script(__file__)
