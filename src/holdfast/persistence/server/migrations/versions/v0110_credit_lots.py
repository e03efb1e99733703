"""Credit in lots, and what came with it, from the SQL beside this file: what an account has becomes one lot."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from holdfast.persistence.server.connections import APPLICATION_NAME
from holdfast.persistence.server.migrate import MigrationBlocked
from holdfast.persistence.server.upgrade import run_script

revision = "0110"
down_revision = "0100"
serves_from = revision

_SERVING = text(
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and application_name = :name and exists (select from accounts)"
)


def upgrade() -> None:
    """Change the tables and fill the new ones.

    Raises :class:`MigrationBlocked` while a process of an earlier release serves: it would move credit of no lot.
    """
    if op.get_bind().scalar(_SERVING, {"name": APPLICATION_NAME}):
        raise MigrationBlocked(
            "Processes of an earlier release use this database, and do not know lots of credit: stop all of them, "
            "and start again."
        )
    run_script(__file__)
