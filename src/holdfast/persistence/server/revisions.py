"""The revisions of the tables: those of the installed release, and the one that a database is at.

Reading them needs neither alembic nor SQLAlchemy, which take longer to load than most starts should: their database
is up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

CONNECT_S: Final = 5
VERSIONS: Final = Path(__file__).with_name("migrations") / "versions"
SCHEMA: Final = (
    "select version_num, coalesce(obj_description('alembic_version'::regclass, 'pg_class'), version_num) "
    "from alembic_version"
)
"""Reads a database's schema."""


class Schema(NamedTuple):
    """The revision that a database is at, and the oldest one whose processes can use it."""

    revision: str
    serves_from: str


def installed_revisions() -> tuple[str, ...]:
    """Return the revisions of the release that is installed now, oldest first: one file ``vNNNN_….py`` each.

    During a roll the parent that runs is of an older release: it finds the files of this one by their names, too.
    """
    return tuple(sorted(file.name[1:5] for file in VERSIONS.glob("v[0-9][0-9][0-9][0-9]_*.py")))


def revision_of(connection: psycopg.Connection[Any]) -> str | None:
    """Return the revision that a database is at; None before its first migration."""
    if connection.execute("select to_regclass('alembic_version')").fetchone() == (None,):
        return None
    row = connection.execute("select version_num from alembic_version").fetchone()
    return None if row is None else str(row[0])


def schema_of(connection: psycopg.Connection[Any]) -> Schema | None:
    """Return the schema of a database; None before its first migration, which ends the transaction."""
    try:
        return schema_in(connection.execute(SCHEMA))
    except psycopg.errors.UndefinedTable:
        return None


def schema_in(result: psycopg.Cursor[Any]) -> Schema | None:
    """Return the schema that :data:`SCHEMA` has read."""
    row = result.fetchone()
    return None if row is None else Schema(*row)


def is_migrated(url: str) -> bool | None:
    """Whether the database at ``url`` is at the newest installed revision; None if it cannot be read. Blocks."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_S, application_name="holdfast migrate") as connection:
            return revision_of(connection) == installed_revisions()[-1]
    except psycopg.Error:
        return None
