"""The one way to the database: reads on threads, the gate that says whether it answers, and its watcher.

Reads go through :meth:`Database.read`. Writes go through the journal, on the connection that
:meth:`Database.connect_writer` makes; :meth:`Database.work` is for leases and sweeps alone.

A lost connection closes the :class:`DatabaseGate` for everybody at once, so callers fail fast while the
watcher probes. A single slow query is its caller's trouble and leaves the gate open.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

import psycopg
import sqlalchemy
import trio
from psycopg import errors
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast import metrics
from holdfast.persistence.embedded import EmbeddedFault, EmbeddedPostgres

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PLANS_BY_KEY = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; set jit = off"
)
"""The writer finds every row by its key. A plan is kept for all batches; while tables are small it is made anew."""

SERVER_VERSION_MIN = 150000
"""PostgreSQL 15, as ``server_version_num`` writes it."""

CONNECT_S = 5
PROBE_CONNECT_S = 3
"""A probe waits less: while a hung server is not known to be one, callers wait with it."""
READ_MS = 5_000
WORK_MS = 15_000
WRITE_MS = 15_000
LOCK_MS = 5_000
IDLE_IN_TRANSACTION_MS = 15_000
PROBE_FIRST_S = 0.1
PROBE_LAST_S = 1.0
HEARTBEAT_S = 2.0
CHILD_CHECK_S = 0.25

_AWAY_STATES = frozenset(
    {
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now: starting up, shutting down, recovering
        "57P05",  # idle session timeout
        "25P03",  # idle-in-transaction timeout: the server hung up
        "53300",  # too many connections
    }
)


class DatabaseAway(Exception):
    """The database cannot be reached or did not answer in time; nothing was changed by this call.

    The exception of :meth:`Database.work`: when the connection is lost while its transaction commits, the
    change may stand.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class QueryTimedOut(DatabaseAway):
    """One query took too long, or no connection came free in time; the database itself is there."""


class DatabaseTooOld(Exception):
    """The server's version is below the oldest one supported."""


class DatabaseGate:
    """Open while the database answers. Used on trio's thread only; other threads come by ``trio.from_thread``."""

    def __init__(self) -> None:
        self.reason = "The database has not been reached yet."
        self.retry_after_s = PROBE_LAST_S
        self._opened = trio.Event()
        self._closed = trio.Event()
        self._closed.set()

    @property
    def is_open(self) -> bool:
        """Whether the database answered when last heard of."""
        return self._opened.is_set()

    def open(self) -> None:
        """Let callers through; repeating it changes nothing."""
        if not self.is_open:
            self.reason = ""
            self._closed = trio.Event()
            self._opened.set()

    def close(self, reason: str) -> None:
        """Turn callers away with ``reason``; repeating it only renews the reason."""
        self.reason = reason
        if self.is_open:
            self._opened = trio.Event()
            self._closed.set()
            metrics.DATABASE_AWAY.inc()

    async def wait_open(self) -> None:
        """Return once the gate is open."""
        while not self.is_open:
            await self._opened.wait()

    async def wait_closed(self) -> None:
        """Return once the gate is closed."""
        while self.is_open:
            await self._closed.wait()


class Database:
    """A PostgreSQL database at ``url`` (``postgresql://…``), optionally the embedded one this process runs.

    ``pool_size`` bounds the reads that run at once, ``work_size`` the units of :meth:`work`.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        work_size: int = 2,
        read_timeout_ms: int = READ_MS,
        embedded: EmbeddedPostgres | None = None,
    ) -> None:
        self.url = url
        self.gate = DatabaseGate()
        self._embedded = embedded
        self._reads = trio.CapacityLimiter(pool_size)
        self._works = trio.CapacityLimiter(work_size)
        self._probes = trio.CapacityLimiter(1)
        self._engine = _engine(url, pool_size=pool_size, statement_timeout_ms=read_timeout_ms, read_only=True)
        self._work_engine = _engine(url, pool_size=work_size, statement_timeout_ms=WORK_MS, read_only=False)

    @property
    def limiters(self) -> dict[str, trio.CapacityLimiter]:
        """The thread limiters by purpose, for the meters."""
        return {"read": self._reads, "work": self._works}

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run ``query`` on a thread inside one read-only transaction and return what it returns.

        It is run again once when its connection turns out to be lost, so it must only read. What it returns
        must not need the connection any more. Raises :class:`DatabaseAway`, or its subclass
        :class:`QueryTimedOut`; every other exception of ``query`` passes through.
        """
        return await self._on_thread(self._engine, query, limiter=self._reads, attempts=2)

    async def work(self, change: Callable[[Connection], T]) -> T:
        """Run ``change`` on a thread inside one read-write transaction, once.

        Only for leases and sweeps (claiming due work, deleting what has expired): whatever touches money,
        orders, tasks, keys or idempotency records goes through the journal. Raises like :meth:`read`.
        """
        return await self._on_thread(self._work_engine, change, limiter=self._works, attempts=1)

    def connect_writer(self) -> psycopg.Connection:
        """Open a connection for the journal's writer thread: no autocommit, every wait bounded. Blocks.

        Raises :class:`DatabaseAway`; faults later on the connection are the caller's to report by
        :meth:`report_away`.
        """
        try:
            connection = _connect(self.url, statement_timeout_ms=WRITE_MS)
            try:
                connection.execute(_PLANS_BY_KEY)
                connection.commit()
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as exc:
            raise DatabaseAway(_reason(exc)) from exc
        return connection

    def report_away(self, exc: BaseException) -> bool:
        """Close the gate when ``exc`` says that the database is gone; whether it did. On trio's thread only."""
        if not is_away(exc):
            return False
        self.gate.close(_reason(exc))
        return True

    async def open(self) -> None:
        """Probe once and open the gate. Raises :class:`DatabaseAway` or :class:`DatabaseTooOld`."""
        await trio.to_thread.run_sync(_probe, self.url, limiter=self._probes)
        self.gate.open()

    def close(self) -> None:
        """Close the gate and every idle connection."""
        self.gate.close("The database connection is closed.")
        self._engine.dispose()
        self._work_engine.dispose()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch over the database until cancelled; reports started after the first probe, however it went.

        While the gate is closed it probes with a growing pause; while it is open it looks in now and then.
        An embedded server that died is started again. Raises :class:`DatabaseTooOld`.
        """
        first = True
        try:
            while True:
                await self._open_again(task_status if first else trio.TASK_STATUS_IGNORED)
                first = False
                await self._watch()
                _log.warning("the database is away: %s", self.gate.reason)
                # What lies idle in the pools may be lost too, and would seem to take the database away again.
                self._engine.dispose()
                self._work_engine.dispose()
        finally:
            self.close()

    async def _open_again(self, task_status: trio.TaskStatus[None]) -> None:
        pause_s = PROBE_FIRST_S
        reported = False
        while True:
            try:
                await self._revive_child()
                await self.open()
            except (DatabaseAway, EmbeddedFault) as exc:
                self.gate.close(str(exc))
            if not reported:
                task_status.started()
                reported = True
            if self.gate.is_open:
                _log.info("the database answers")
                return
            await trio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads the probes
            pause_s = min(pause_s * 2, PROBE_LAST_S)

    async def _watch(self) -> None:
        """Return when the gate has closed."""
        while self.gate.is_open:
            until = trio.current_time() + HEARTBEAT_S
            while trio.current_time() < until and self.gate.is_open:
                if self._embedded is not None and not self._embedded.is_running():
                    self.gate.close("The embedded database has stopped.")
                    return
                with trio.move_on_after(HEARTBEAT_S if self._embedded is None else CHILD_CHECK_S):
                    await self.gate.wait_closed()
            if self.gate.is_open:
                try:
                    await self.open()
                except DatabaseAway as exc:
                    self.gate.close(exc.reason)

    async def _revive_child(self) -> None:
        if self._embedded is not None and not self._embedded.is_running():
            _log.warning("the embedded database has stopped; starting it again")
            await trio.to_thread.run_sync(self._embedded.start, limiter=self._probes)

    async def _on_thread(
        self, engine: Engine, unit: Callable[[Connection], T], *, limiter: trio.CapacityLimiter, attempts: int
    ) -> T:
        if not self.gate.is_open:
            raise DatabaseAway(self.gate.reason, retry_after_s=self.gate.retry_after_s)
        try:
            return await trio.to_thread.run_sync(_in_transaction, engine, unit, attempts, limiter=limiter)
        except QueryTimedOut:
            raise
        except DatabaseAway as exc:
            self.gate.close(exc.reason)
            raise


def is_away(exc: BaseException) -> bool:
    """Whether an exception of psycopg or SQLAlchemy says that the connection or the server is gone."""
    if isinstance(exc, DatabaseAway):
        return not isinstance(exc, QueryTimedOut)
    if isinstance(exc, DBAPIError):
        return exc.connection_invalidated or (exc.orig is not None and is_away(exc.orig))
    if not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    if exc.sqlstate is not None:
        return exc.sqlstate.startswith("08") or exc.sqlstate in _AWAY_STATES
    # Without a state the fault is the client library's own: it could not connect, or lost the connection.
    return isinstance(exc, psycopg.OperationalError) or "connection" in str(exc)


def _in_transaction(engine: Engine, unit: Callable[[Connection], T], attempts: int) -> T:
    """Run one unit on this thread; psycopg's and SQLAlchemy's faults leave it as ours."""
    while True:
        attempts -= 1
        try:
            with engine.begin() as connection:
                return unit(connection)
        except PoolTimeout as exc:
            raise QueryTimedOut("No database connection came free in time.") from exc
        except (DBAPIError, psycopg.Error, PendingRollbackError) as exc:
            if _timed_out(exc):
                raise QueryTimedOut(_reason(exc)) from exc
            if not is_away(exc):
                raise
            if attempts == 0:
                raise DatabaseAway(_reason(exc)) from exc


def _timed_out(exc: BaseException) -> bool:
    cause = exc.orig if isinstance(exc, DBAPIError) else exc
    return isinstance(cause, errors.QueryCanceled | errors.LockNotAvailable)


def _reason(exc: BaseException) -> str:
    cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
    return " ".join(str(cause).split()) or type(cause).__name__


def _connect(url: str, *, statement_timeout_ms: int, connect_s: int = CONNECT_S) -> psycopg.Connection:
    connection = psycopg.connect(
        url,
        connect_timeout=connect_s,
        # Whatever the environment says: some of what we send is encoded by us.
        client_encoding="utf8",
        application_name="holdfast",
        keepalives=1,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=15_000,
    )
    try:
        connection.execute(
            "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false), set_config('timezone', 'UTC', false)",
            (str(statement_timeout_ms), str(LOCK_MS), str(IDLE_IN_TRANSACTION_MS)),
        )
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _engine(url: str, *, pool_size: int, statement_timeout_ms: int, read_only: bool) -> Engine:
    """An engine whose connections we make ourselves, so that the URL means what it means to libpq."""

    def creator() -> psycopg.Connection:
        return _connect(url, statement_timeout_ms=statement_timeout_ms)

    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=creator,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_S,
        pool_recycle=1800,
    )
    return engine.execution_options(postgresql_readonly=True) if read_only else engine


def _probe(url: str) -> None:
    """Ask the server on a fresh connection whether it takes writes and is new enough. Blocks."""
    try:
        fresh = _connect(url, statement_timeout_ms=PROBE_CONNECT_S * 1000, connect_s=PROBE_CONNECT_S)
        with contextlib.closing(fresh) as connection:
            version = connection.info.server_version
            row = connection.execute("select pg_is_in_recovery()").fetchone()
    except psycopg.Error as exc:
        raise DatabaseAway(_reason(exc)) from exc
    if version < SERVER_VERSION_MIN:
        raise DatabaseTooOld(
            f"The database is PostgreSQL {version // 10000}; Holdfast needs {SERVER_VERSION_MIN // 10000} or newer."
        )
    if row is None or row[0]:
        raise DatabaseAway("The database is a standby and takes no writes.")


@contextlib.contextmanager
def connected(url: str) -> Iterator[Connection]:
    """One SQLAlchemy connection for a command (audit), without time limits on its queries. Blocks.

    Raises :class:`DatabaseAway` when the database cannot be reached.
    """
    engine = _engine(url, pool_size=1, statement_timeout_ms=0, read_only=False)
    try:
        try:
            connection = engine.connect()
        except DBAPIError as exc:
            raise DatabaseAway(_reason(exc)) from exc
        with connection:
            yield connection
    finally:
        engine.dispose()
