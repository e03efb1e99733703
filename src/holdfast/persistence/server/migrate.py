"""Migrate a database to the schema of this release. Forward only: a journal is never migrated back.

All pending migrations run in one transaction, so a failed one leaves the database as it was. An advisory lock of
that transaction lets one process migrate at a time; the others wait, and then have nothing to do. The server ends
the transaction soon after its client has died. Where no migration is pending, no lock is taken and alembic is not
loaded.

The service may write meanwhile, in another order of tables. So a migration first waits for the journal's batches
that run, and has the others wait. One that meets a deadlock with other sessions all the same is repeated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import sqlalchemy
import structlog
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from holdfast.persistence.server.connections import SERVER_VERSION_MIN, driver_of
from holdfast.persistence.server.database_faults import DatabaseAway, DatabaseTooOld, is_away
from holdfast.persistence.server.revisions import CONNECT_S, installed_revisions, revision_of

log = structlog.get_logger(__name__)

LOCK_KEY = 0x686F6C64
"""The advisory lock's number: "hold" in ASCII."""

LOCK_WAIT_S = 5.0
"""How long each line of the log waits for the migration of another process; the wait itself has no end."""
DDL_LOCK_S = 10
DEADLOCKS_MAX = 5
STATEMENT_S = 300
DATABASE_START_S = 30.0
"""How long a start waits for its database: longer than a restart or a failover takes."""
DATABASE_RETRY_S = 1.0
UNRELEASED_COMMIT = "dc25a491996b20a2dba81541a19aede73a5ea6eb"
"""The last commit that reads databases of before the first release, from revision 0100 on."""


_CLIENT_MUST_LIVE = (
    "select set_config(name, value, false) from (values "
    # While a statement runs, the server looks whether the connection is still there.
    "('client_connection_check_interval', '2s'), "
    # While it waits for the next one: of a client that is frozen.
    "('idle_in_transaction_session_timeout', '60s'), "
    # The system's check of a machine or network that is gone, without which the connection seems to live.
    "('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')"
    ") as wanted (name, value)"
)
_STOP_JOURNAL = text("lock table accounts, tasks in exclusive mode")
"""A batch locks rows of these first, in this order. Reads go on."""
_HOLDER = text(
    "select l.pid, coalesce(host(a.client_addr), 'local') as client, a.application_name, a.state "
    "from pg_locks l left join pg_stat_activity a using (pid) where l.locktype = 'advisory' and l.granted "
    "and l.classid = 0 and l.objid = :key and l.objsubid = 1 "
    "and l.database = (select oid from pg_database where datname = current_database())"
)


class MigrationRefused(Exception):
    """The database cannot be migrated by this release; the message is a sentence."""


class MigrationBlocked(Exception):
    """Other sessions are in the way of the migration, which may succeed later; the message is a sentence."""


class MigrationReport(msgspec.Struct, frozen=True):
    """The result of a migration: ``applied`` lists the new revisions, oldest first; empty if up to date."""

    before: str | None
    after: str
    applied: tuple[str, ...]


def migrate(url: str) -> MigrationReport:
    """Migrate the database at ``url``. Blocks, for as long as another process migrates it.

    Raises :class:`MigrationRefused`, :class:`MigrationBlocked`,
    :class:`~holdfast.persistence.server.database_faults.DatabaseTooOld` or
    :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
    """
    deadlocks = 0
    while True:
        try:
            return _try_to_migrate(url)
        except (DBAPIError, psycopg.Error) as exc:
            if is_away(exc):
                raise DatabaseAway(str(exc)) from exc
            # A revision's script runs on the driver's connection, its other statements on SQLAlchemy's.
            cause = exc.orig if isinstance(exc, DBAPIError) else exc
            if isinstance(cause, psycopg.errors.LockNotAvailable):
                raise MigrationBlocked(
                    f"Another session, such as a backup, has used a table for more than {DDL_LOCK_S} s; try again."
                ) from exc
            if not isinstance(cause, psycopg.errors.DeadlockDetected):
                raise
            deadlocks += 1
            if deadlocks == DEADLOCKS_MAX:
                raise MigrationBlocked("Other sessions keep using the tables in another order; try again.") from exc
            log.warning("the migration is repeated after a deadlock", deadlocks=deadlocks)


def _try_to_migrate(url: str) -> MigrationReport:
    with _connection(url) as connection:
        revision, missing = _pending(connection)
        driver_of(connection).rollback()
        if not missing:
            assert revision is not None
            return MigrationReport(before=revision, after=revision, applied=())
        _wait_for_lock(connection)
        return _migrate(connection)


def migrate_when_reachable(database_url: str) -> MigrationReport:
    """Migrate the database, waiting for one that is starting, stopping or out of reach.

    Raises like :func:`migrate`; ``DatabaseAway`` only once :data:`DATABASE_START_S` have passed.
    """
    deadline_s, is_logged = time.monotonic() + DATABASE_START_S, False
    while True:
        try:
            return migrate(database_url)
        except DatabaseAway as away:
            if time.monotonic() >= deadline_s:
                raise
            if not is_logged:
                log.warning("waiting for the database", reason=away.reason, for_s=DATABASE_START_S)
                is_logged = True
            time.sleep(DATABASE_RETRY_S)


def pending(url: str) -> tuple[str, ...]:
    """Return the revisions a migration would apply, oldest first. Raises like :func:`migrate`."""
    with _connection(url) as connection:
        return _pending(connection)[1]


@contextlib.contextmanager
def _connection(url: str) -> Iterator[Connection]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connect(url),
        poolclass=sqlalchemy.NullPool,
    )
    try:
        with engine.connect() as connection:
            version = int(driver_of(connection).info.server_version)
            if version < SERVER_VERSION_MIN:
                raise DatabaseTooOld(
                    f"The database is PostgreSQL {version // 10000}; "
                    f"Holdfast needs {SERVER_VERSION_MIN // 10000} or newer."
                )
            yield connection
    except DBAPIError as exc:
        if is_away(exc):
            raise DatabaseAway(" ".join(str(exc.orig).split())) from exc
        raise


def _connect(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(
        url,
        connect_timeout=CONNECT_S,
        application_name="holdfast migrate",
        keepalives=1,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    try:
        connection.execute(_CLIENT_MUST_LIVE)
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _wait_for_lock(connection: Connection) -> None:
    """Take the advisory lock for the transaction that this begins."""
    began_s = time.monotonic()
    while True:
        connection.execute(text(f"set local lock_timeout = '{LOCK_WAIT_S}s'"))
        try:
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        except DBAPIError as exc:
            if not isinstance(exc.orig, psycopg.errors.LockNotAvailable):
                raise
            connection.rollback()
            holder = connection.execute(_HOLDER, {"key": LOCK_KEY}).mappings().first()
            connection.rollback()
            waited_s = round(time.monotonic() - began_s)
            log.warning("waiting for the migration of another process", for_s=waited_s, backend=dict(holder or {}))
        else:
            break
    connection.execute(text(f"set local lock_timeout = '{DDL_LOCK_S}s'"))
    connection.execute(text(f"set local statement_timeout = '{STATEMENT_S}s'"))


def _migrate(connection: Connection) -> MigrationReport:
    before, applied = _pending(connection)
    if applied:
        from holdfast.persistence.server.upgrade import upgrade

        if before is not None:
            connection.execute(_STOP_JOURNAL)
        upgrade(connection, applied[-1])
    return MigrationReport(before=before, after=installed_revisions()[-1], applied=applied)


def _pending(connection: Connection) -> tuple[str | None, tuple[str, ...]]:
    """Return the database's revision and the later ones, oldest first."""
    installed, current = installed_revisions(), revision_of(driver_of(connection))
    if current is None:
        return None, installed
    if current < installed[0]:
        raise MigrationRefused(
            f"The database is at revision {current}, of before the first release, and cannot be migrated: start "
            f"with an empty database or data folder. The last commit that reads it is {UNRELEASED_COMMIT}."
        )
    if current not in installed:
        raise MigrationRefused(
            f"The database is at revision {current}, which this release does not know: it was migrated by a "
            f"newer release of Holdfast. Run that release or a later one."
        )
    return current, installed[installed.index(current) + 1 :]
