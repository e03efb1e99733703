"""The tables of the first release, from the SQL beside this file."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None


def upgrade() -> None:
    """Create every table, index and trigger."""
    # The driver's own connection, which sends a script of several statements as it is.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(Path(__file__).with_suffix(".sql").read_bytes())
