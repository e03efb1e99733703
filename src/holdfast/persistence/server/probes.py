"""Probes: whether the database can be used, and transactions ended that block others without end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import psycopg
import structlog
from psycopg import errors

from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.connections import (
    APPLICATION_NAME,
    SERVER_VERSION_MIN,
    BoundedConnection,
    KeptConnection,
    connect,
)
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    DatabaseTooOld,
    OlderRelease,
    QueryTimedOut,
    reason_of,
    trouble_of,
)
from holdfast.persistence.server.revisions import SCHEMA, Schema, schema_in, schema_of

log = structlog.get_logger(__name__)

PROBE_S = 3
"""The timeout of a probe. It is short, because callers wait until a server that hangs is detected."""
PROBE_CONNECTION_S = 60.0
"""How long probes keep a connection. That new ones are refused, or read-only, is found by the next one."""
CLIENT_SILENT_S = 4.0
"""A write transaction whose client sends nothing for so long is ended by the probes of all processes.

Its process is frozen or cut off, and its locks would stop the others. That is sooner than a silent member's
accounts move. The server's own limits do not end an open pipeline or a COPY.
"""

_WAITING_FOR_CLIENTS = (
    "select a.pid, a.backend_start, extract(epoch from clock_timestamp() - a.state_change)::float8, "
    "c.relid, c.bytes_processed from pg_stat_activity a left join pg_stat_progress_copy c on c.pid = a.pid "
    f"where a.application_name = '{APPLICATION_NAME}' and a.datname = current_database() "
    "and a.usename = session_user "
    "and a.backend_xid is not null and a.wait_event_type = 'Client'"
)
"""Only a transaction that has written or locked rows has an id; those of reads and of the audit have none."""
_END = (
    "select count(pg_terminate_backend(a.pid)) from pg_stat_activity a "
    "join unnest(%s::int[], %s::timestamptz[]) s (pid, backend_start) "
    "on s.pid = a.pid and s.backend_start = a.backend_start where a.wait_event_type = 'Client'"
)

_LOCK_ALL = f"lock table {', '.join(sorted(metadata.tables))} in row exclusive mode"
"""The lock that a write takes. It conflicts only with sessions that block readers or writers."""


class SilentClients:
    """Ends write transactions whose client has sent nothing for :data:`CLIENT_SILENT_S`; run by each probe.

    The server says since when it has waited for a client's next statement. A COPY is one statement however long it
    takes, so that its client is silent only while the bytes that the server has read of it stay the same, which two
    probes compare.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._copies: dict[tuple[int, datetime, int, int], float] = {}
        """Since when each COPY has been seen at the bytes it had at the last probe."""

    def end(self, connection: psycopg.Connection[Any], found: Iterable[tuple[Any, ...]]) -> None:
        """End the silent ones of the transactions ``found``, and remember how far the others' COPYs are."""
        now = self._clock()
        copies: dict[tuple[int, datetime, int, int], float] = {}
        silent: list[tuple[int, datetime]] = []
        for pid, started, silent_s, table, copied in found:
            if copied is not None:
                at = (pid, started, table, copied)
                copies[at] = self._copies.get(at, now)
                silent_s = min(silent_s, now - copies[at])  # noqa: PLW2901 - the shorter silence counts
            if silent_s >= CLIENT_SILENT_S:
                silent.append((pid, started))
        self._copies = copies
        if silent:
            ended = connection.execute(_END, tuple(map(list, zip(*silent, strict=True)))).fetchone()
            assert ended is not None
            log.warning(
                "transactions ended whose process is silent", transactions=ended[0], silent_s=CLIENT_SILENT_S
            )


def connect_probe(url: str) -> BoundedConnection:
    """Connect for probes. Raises psycopg's errors."""
    connection = connect(url, statement_timeout_ms=PROBE_S * 1000, connect_s=PROBE_S)
    connection.autocommit = True
    # What one message can ask for is one, and such a message cannot be prepared.
    connection.prepare_threshold = None
    return connection


def probe(kept: KeptConnection, clients: SilentClients, release: str) -> None:
    """Check that the server can be used. Blocks, for a few seconds at most.

    It must be new enough, take writes, and grant the locks that reading and writing each table takes. Before these
    are asked for, transactions of silent ``clients`` are ended. A process of the revision ``release`` must be able
    to use its schema. Raises :class:`DatabaseAway`,
    :class:`~holdfast.persistence.server.database_faults.QueryTimedOut`, :class:`DatabaseTooOld` or
    :class:`OlderRelease`.

    The connection is kept, since a new one costs the server a process and this one as much as the rest of a probe.
    After a failure the next probe has a new one: another server may be the primary by then.
    """
    try:
        _check(kept.get(), clients, release)
    except BaseException as exc:
        kept.discard()
        if not isinstance(exc, psycopg.Error) or trouble_of(exc, writing=True) is None:
            raise
        is_held_up = isinstance(exc, errors.LockNotAvailable | errors.QueryCanceled)
        raise (QueryTimedOut if is_held_up else DatabaseAway)(reason_of(exc)) from exc


def _check(connection: psycopg.Connection[Any], clients: SilentClients, release: str) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise DatabaseTooOld(
            f"The database is PostgreSQL {version // 10000}; Holdfast needs {SERVER_VERSION_MIN // 10000} or newer."
        )
    answers = connection.execute(f"show transaction_read_only; {_WAITING_FOR_CLIENTS}")
    if answers.fetchone() != ("off",):
        raise DatabaseAway("The database is a standby or read-only, and takes no writes.")
    answers.nextset()
    clients.end(connection, answers)
    _refuse_older_release(_schema_of_locked(connection), release)


def _schema_of_locked(connection: psycopg.Connection[Any]) -> Schema | None:
    """Return the schema, read while this holds the lock of each table."""
    try:
        answers = connection.execute(f"{_LOCK_ALL}; {SCHEMA}")
    except errors.UndefinedTable:
        # A database that has not been migrated has no tables to wait for, and one of another release others.
        return schema_of(connection)
    answers.nextset()
    return schema_in(answers)


def _refuse_older_release(schema: Schema | None, release: str) -> None:
    if schema is not None and release < schema.serves_from:
        raise OlderRelease(
            f"This process is of an older release than the database's schema: "
            f"that is at revision {schema.revision}, and the process at {release}."
        )
