"""Run migrations by alembic, which is loaded only where one is pending."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command, op
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

FOLDER: Final = Path(__file__).with_name("migrations")


def upgrade(connection: Connection, revision: str) -> None:
    """Apply the migrations up to ``revision`` in one transaction, and commit.

    A comment of alembic's table has the oldest revision whose processes may go on serving.
    """
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    script = ScriptDirectory.from_config(config).get_revision(revision)
    assert script is not None
    connection.exec_driver_sql(f"comment on table alembic_version is '{script.module.serves_from}'")
    connection.commit()


def run_script(revision: str) -> None:
    """Run the SQL beside the file of a revision; called by that file."""
    # The driver's own connection, which sends a script of several statements as it is.
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(Path(revision).with_suffix(".sql").read_bytes())


def alembic_config() -> Config:
    """Return the configuration that finds the migrations."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
