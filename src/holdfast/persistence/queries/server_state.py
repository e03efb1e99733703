"""The state of the database server as operators see it: connections, locks, statements, tables, replicas.

Each part is one statement, which ends after :data:`PART_MS`. A part that the database's role may not read, that the
server does not have, or that takes longer, is missing, with why.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from psycopg import errors
from sqlalchemy import Connection, RowMapping, text
from sqlalchemy.exc import DBAPIError

from holdfast.ledger.public_types import Time
from holdfast.ledger.values import format_time
from holdfast.persistence.server.connections import driver_of
from holdfast.telemetry.scrubbing import scrub

PART_MS: Final = 1_000
STATEMENT_CHARS_MAX: Final = 400
Statement = Annotated[str, msgspec.Meta(description=f"The statement, at most {STATEMENT_CHARS_MAX} characters.")]


class ConnectionGroup(msgspec.Struct, frozen=True):
    """Connections of one program in one state."""

    application: str
    """The name that the program gives."""
    state: str
    """`active`, `idle`, `idle in transaction` or another of PostgreSQL's; `not permitted` if it is not shown."""
    count: int
    """How many there are."""
    oldest_s: float | None
    """For how long the one has been in this state that has been longest, in seconds; null if not shown."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is open."""

    pid: int
    """The process of the server."""
    application: str
    """The name that its program gives."""
    state: str
    """The state of its connection."""
    age_s: float
    """For how long it has been open, in seconds."""
    waits_for: str | None
    """What it waits for, as PostgreSQL names it; null if for nothing."""
    statement: Statement


class BlockedStatement(msgspec.Struct, frozen=True):
    """A statement that waits for a lock, and one that has it or is before it."""

    pid: int
    """The process of the server that waits."""
    waits_s: float
    """For how long the statement has run, in seconds."""
    statement: Statement
    table: str | None
    """The table that the lock is on; null if it is on none."""
    blocker_pid: int
    """The process that it waits for."""
    blocker_application: str
    """The name that the program of this one gives."""
    blocker_state: str
    """The state of its connection."""
    blocker_statement: Statement


class SlowStatement(msgspec.Struct, frozen=True):
    """A statement and what it has cost since the statistics began."""

    statement: Statement
    calls: int
    """How often it ran."""
    mean_ms: float
    """How long it took on average, in milliseconds."""
    total_s: float
    """How long it took in all, in seconds."""


class TableState(msgspec.Struct, frozen=True):
    """A table with its indexes."""

    table: str
    """Its name."""
    total_bytes: int
    """The size of the table, of its indexes and of what is stored apart."""
    index_bytes: int
    """The size of its indexes."""
    live_rows: int
    """How many rows it has, by the server's estimate."""
    dead_rows: int
    """How many versions of rows wait to be removed, by its estimate."""
    dead_part: float
    """These as a part of all, from 0 to 1."""
    vacuumed_at: Time | None
    """When it was vacuumed last; null if it never was."""


class Replica(msgspec.Struct, frozen=True):
    """A standby that follows this server, or a slot that keeps what one has not read."""

    name: str
    """The name that it gives, or of the slot."""
    state: str
    """Such as `streaming`; of a slot `inactive` without a standby."""
    lag_bytes: int | None
    """How much of the server's log it has not applied; null if not shown."""
    lag_s: float | None
    """How long its newest commits took to be applied there, in seconds; null if not known."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The database server now."""

    at: Time
    """When it was asked."""
    version: str
    """Its version."""
    role: str
    """The role that the service connects with."""
    is_monitor: bool
    """Whether the role may see what other roles do (`pg_monitor`); if not, much is missing or not shown."""
    is_standby: bool
    """Whether the server follows another one."""
    database_bytes: int
    """The size of the database."""
    connections_max: int
    """How many connections the server allows (`max_connections`)."""
    missing: dict[str, str]
    """Why a part cannot be shown, by its name."""
    connections: list[ConnectionGroup]
    """The connections to this database, the most first."""
    transactions: list[OpenTransaction]
    """The open transactions, the oldest first, at most ten."""
    blocked: list[BlockedStatement]
    """Which statements wait for locks, and whom they wait for."""
    statements: list[SlowStatement]
    """What took longest in all (`pg_stat_statements`), at most ten."""
    tables: list[TableState]
    """The largest tables, at most twenty."""
    replicas: list[Replica]
    """The standbys and slots."""


_SERVER: Final = text(
    "select now() as at, current_setting('server_version') as version, current_user as role, "
    "pg_has_role(current_user, 'pg_monitor', 'usage') as is_monitor, pg_is_in_recovery() as is_standby, "
    "pg_database_size(current_database()) as database_bytes, "
    "current_setting('max_connections')::int as connections_max"
)
_AGE: Final = "extract(epoch from clock_timestamp() - {})::float8"
_PARTS: Final[dict[str, str]] = {
    # Of a connection that the role may not see only the database and the process are shown.
    "connections": f"""
        select coalesce(nullif(application_name, ''), 'unnamed') as application,
               coalesce(state, 'not permitted') as state, count(*) as count,
               max({_AGE.format("state_change")}) as oldest_s
        from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
        group by 1, 2 order by 3 desc, 1, 2 limit 50
    """,
    "transactions": f"""
        select pid, application_name as application, coalesce(state, '') as state,
               {_AGE.format("xact_start")} as age_s,
               case when state = 'active' then wait_event_type || ': ' || wait_event end as waits_for,
               left(query, :chars) as statement
        from pg_stat_activity
        where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()
        order by xact_start limit 10
    """,
    # What a process waits for is newer than its statement, which is as it was when this transaction first looked.
    "blocked": f"""
        select a.pid, {_AGE.format("coalesce(a.query_start, a.backend_start)")} as waits_s,
               left(a.query, :chars) as statement,
               (select l.relation::regclass::text from pg_locks l
                where l.pid = a.pid and not l.granted and l.relation is not null limit 1) as table,
               b.pid as blocker_pid, b.application_name as blocker_application,
               coalesce(b.state, 'not permitted') as blocker_state,
               left(coalesce(b.query, ''), :chars) as blocker_statement
        from pg_stat_activity a cross join lateral unnest(pg_blocking_pids(a.pid)) as w (pid)
        join pg_stat_activity b on b.pid = w.pid
        where a.wait_event_type = 'Lock' and a.datname = current_database() order by a.query_start limit 50
    """,
    "statements": """
        select left(query, :chars) as statement, calls, mean_exec_time as mean_ms, total_exec_time / 1000 as total_s
        from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())
        order by total_exec_time desc limit 10
    """,
    "tables": """
        select relname as table, pg_total_relation_size(relid) as total_bytes,
               pg_indexes_size(relid) as index_bytes,
               n_live_tup as live_rows, n_dead_tup as dead_rows,
               coalesce(n_dead_tup::float8 / nullif(n_live_tup + n_dead_tup, 0), 0) as dead_part,
               greatest(last_vacuum, last_autovacuum) as vacuumed_at
        from pg_stat_user_tables order by 2 desc, 1 limit 20
    """,
    "replicas": """
        with here as (
            select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn
        )
        select application_name as name, coalesce(state, 'not permitted') as state,
               pg_wal_lsn_diff(here.lsn, replay_lsn)::bigint as lag_bytes,
               extract(epoch from replay_lag)::float8 as lag_s
        from pg_stat_replication, here
        union all
        select 'slot ' || slot_name, case when active then 'active' else 'inactive' end,
               pg_wal_lsn_diff(here.lsn, restart_lsn)::bigint, null
        from pg_replication_slots, here
        order by 1 limit 50
    """,
}
_NOT_PERMITTED: Final = "the database's role may not read it; grant it pg_monitor"
_WHY: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.InsufficientPrivilege, _NOT_PERMITTED),
    (errors.UndefinedTable, "the extension pg_stat_statements is not in this database"),
    (errors.ObjectNotInPrerequisiteState, "the server has not loaded pg_stat_statements"),
    (errors.QueryCanceled, f"it took longer than {PART_MS // 1000} s"),
)


def read_server_state(rows: Connection) -> ServerState:
    """Read every part on one connection, whose settings are afterwards as they were."""
    missing: dict[str, str] = {}
    state: dict[str, object] = {"missing": missing}
    with driver_of(rows).transaction():
        rows.execute(text("select set_config('statement_timeout', :most, true)"), {"most": str(PART_MS)})
        state |= _shown(rows.execute(_SERVER).mappings().one())
        for name, query in _PARTS.items():
            given = {"chars": STATEMENT_CHARS_MAX} if ":chars" in query else {}
            state[name] = []
            try:
                with driver_of(rows).transaction():
                    state[name] = [_shown(row) for row in rows.execute(text(query), given).mappings()]
            except DBAPIError as fault:
                why = next((each for kind, each in _WHY if isinstance(fault.orig, kind)), None)
                if why is None:
                    raise
                missing[name] = why
    return msgspec.convert(state, ServerState)


def _shown(row: RowMapping) -> dict[str, object]:
    """Return a row as it is shown: of a statement no secret that it has as text."""
    shown = {name: format_time(value) if isinstance(value, datetime) else value for name, value in row.items()}
    return shown | {name: scrub(str(row[name])) for name in row if name.endswith("statement")}
