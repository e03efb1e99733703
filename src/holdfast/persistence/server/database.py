"""Access to the database: reads, the gate that is open while it answers, and the gate's watcher.

Reads go through :meth:`Database.read`. Writes go through the journal, on the connection that
:meth:`Database.keep_writer` keeps; :meth:`Database.record` is for what requests write without the journal,
:meth:`Database.work` for sweeps, :meth:`Database.renew` for this process's lease, :meth:`Database.scan` for reads
that may take long and that nothing waits for. All but scans run on trio's thread, where they must be short: see
:mod:`~holdfast.persistence.server.connections`.

A database that is gone or slow closes the :class:`DatabaseGate` for all callers at once, so they fail fast while
the watcher probes. A single slow query fails its own caller and leaves the gate open, but starts a probe.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Concatenate, Final, ParamSpec, TypeVar

import psycopg
import trio
from sqlalchemy import Connection, Engine, Pool

from holdfast.persistence.server.connections import (
    KeptConnection,
    connect_writer,
    make_engine,
    off_the_loop,
    run_on_loop,
    run_to_the_end,
)
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut, reason_of, trouble_of
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.persistence.server.probes import PROBE_CONNECTION_S, SilentClients, connect_probe, probe
from holdfast.persistence.server.revisions import installed_revisions
from holdfast.telemetry import metrics

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

READ_MS = 5_000
READ_DEADLINE_S = 8.0
"""How long a caller waits for a read and for a connection to run it on; less than a request may take."""
SCAN_MS = 60_000
WORK_MS = 15_000
WORK_SIZE = 2
RECORDS_SIZE = 2
WRITE_MS = 15_000
PROBE_FIRST_S = 0.1
PROBE_LAST_S = 1.0
STEADY_S = 10.0
"""A gate that was open for less opens later the next time: probes succeed where, on a full disk, writes do not."""
HEARTBEAT_S = 2.0
CHILD_CHECK_S = 0.25
RELEASE: Final = installed_revisions()[-1]
"""The revision that this process's code is written for. Its files may be replaced while it runs."""
RETIRED_MAX = 12
"""How many replaced pools are remembered, to close the connections that calls under way return to them."""


class Database:
    """A PostgreSQL database at ``url`` (``postgresql://…``), optionally the embedded one this process runs.

    ``pool_size`` limits the reads that run at once.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        read_timeout_ms: int = READ_MS,
        read_deadline_s: float = READ_DEADLINE_S,
        embedded: EmbeddedPostgres | None = None,
    ) -> None:
        self.url = url
        self.gate = DatabaseGate()
        self._embedded = embedded
        self._read_deadline_s = read_deadline_s
        self._reads = trio.CapacityLimiter(pool_size)
        self._looks = trio.CapacityLimiter(1)
        self._works = trio.CapacityLimiter(WORK_SIZE)
        self._records = trio.CapacityLimiter(RECORDS_SIZE)
        self._renewals = trio.CapacityLimiter(1)
        self._scans = trio.CapacityLimiter(1)
        self._probes = trio.CapacityLimiter(1)
        self._examinations = trio.CapacityLimiter(1)
        self._writers = trio.CapacityLimiter(1)
        self._silent_clients = SilentClients()
        self._probe_connection = KeptConnection(partial(connect_probe, url), self.gate, kept_s=PROBE_CONNECTION_S)
        self._engine = make_engine(url, pool_size=pool_size + 1, statement_timeout_ms=read_timeout_ms, use="reads")
        self._is_prepared = False
        self._retired: deque[Pool] = deque(maxlen=RETIRED_MAX)
        self._work_engine = make_engine(
            url, pool_size=WORK_SIZE + 1, statement_timeout_ms=WORK_MS, use="transactions"
        )
        self._record_engine = make_engine(
            url, pool_size=RECORDS_SIZE, statement_timeout_ms=WORK_MS, use="single_statements"
        )
        self._scan_engine = make_engine(url, pool_size=1, statement_timeout_ms=SCAN_MS, use="reads")

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``query(connection, …)`` on a read-only connection, and return its result.

        It runs a second time if its connection is lost, so it must only read, and its result must not need the
        connection. It ends after ``read_deadline_s``, or when the gate closes. A cancellation takes effect while it
        waits for a connection, or after the query: one that is cut short loses its connection. Raises
        :class:`DatabaseAway`, or its subclass :class:`QueryTimedOut`; every other exception of ``query`` passes.
        """
        return await self._read("read", self._reads, lambda connection: query(connection, *args, **kwargs))

    async def look(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query of the workers as :meth:`read` does, one at a time, however many reads wait."""
        return await self._read("work", self._looks, lambda connection: query(connection, *args, **kwargs))

    async def _read(self, pool: str, limiter: trio.CapacityLimiter, query: Callable[[Connection], T]) -> T:
        self._refuse_if_closed()
        gate, wait = self.gate, _Wait()
        run = wait.ends_with(query)
        with wait.measured(pool), trio.move_on_after(self._read_deadline_s) as scope, gate.cutting_short(scope):
            try:
                async with limiter:
                    scope.shield = True
                    found = await run_on_loop(_in_transaction, self._engine, run, 2, False)
            except DatabaseAway as exc:
                if not scope.cancel_called:
                    self._note(exc)
                    raise
            else:
                gate.note_success()
                scope.shield = False
                await trio.lowlevel.checkpoint_if_cancelled()
                return found
        self._refuse_if_closed()
        late = QueryTimedOut(f"A read got no response within {self._read_deadline_s:g} s.")
        self._note(late)
        raise late

    async def examine(self, query: Callable[[Connection], T]) -> T:
        """Run a query about the server itself as :meth:`read` does, one at a time, also while the gate is closed.

        A lock that closes the gate is then among what it finds. Its outcome says nothing to the gate.
        """
        with trio.move_on_after(self._read_deadline_s):
            async with self._examinations:
                return await run_on_loop(_in_transaction, self._engine, query, 1, False)
        raise QueryTimedOut(f"The server was not examined within {self._read_deadline_s:g} s.")

    async def scan(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``query(connection, …)`` on a thread and a connection of its own, for as long as a minute.

        One runs at a time, on one of the server's cores, and finds its rows by their keys. That it takes long says
        nothing of the database. Raises like :meth:`read`.
        """
        self._refuse_if_closed()
        with trio.CancelScope() as scope, self.gate.cutting_short(scope):
            try:
                return await trio.to_thread.run_sync(
                    _in_transaction,
                    self._scan_engine,
                    lambda connection: query(connection, *args, **kwargs),
                    2,
                    False,
                    limiter=self._scans,
                    abandon_on_cancel=True,
                )
            except QueryTimedOut:
                raise
            except DatabaseAway as exc:
                self._note(exc)
                raise
        self._refuse_if_closed()
        raise DatabaseAway("The database was away for a moment.")

    async def work(self, change: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``change(connection, …)`` inside one read-write transaction, once.

        Only for sweeps (claiming due work, deleting what has expired): writes of money, orders, tasks, keys or
        idempotency records go through the journal. It is never cancelled. Raises like :meth:`read`.
        """
        return await self._write(
            "work", self._works, self._work_engine, lambda connection: change(connection, *args, **kwargs)
        )

    async def record(self, change: Callable[[Connection], T]) -> T:
        """Run a request's change of what the journal does not write, like :meth:`work`, however much of that waits.

        Each statement is committed by itself, which takes one round trip, unless the change is
        :func:`~holdfast.persistence.server.connections.in_one_transaction`.
        """
        return await self._write("record", self._records, self._record_engine, change)

    async def renew(self, change: Callable[[Connection], T]) -> T:
        """Run the change of this process's lease like :meth:`work`, at once, however much work waits.

        A lease that lapses behind other work makes other processes take this one's tasks and accounts over.
        """
        return await self._write("lease", self._renewals, self._work_engine, change)

    async def _write(
        self, pool: str, limiter: trio.CapacityLimiter, engine: Engine, change: Callable[[Connection], T]
    ) -> T:
        self._refuse_if_closed()
        wait = _Wait()
        try:
            with wait.measured(pool):
                async with limiter:
                    return await run_to_the_end(_in_transaction, engine, wait.ends_with(change), 1, True)
        except DatabaseAway as exc:
            self._note(exc)
            raise

    def connect_writer(self) -> psycopg.Connection:
        """Open a connection for the journal's writer: no autocommit, every wait bounded. Blocks.

        Raises :class:`DatabaseAway`. Later faults of the connection are reported to the gate by the journal.
        """
        return off_the_loop(partial(connect_writer, self.url, statement_timeout_ms=WRITE_MS), self._writers)

    def keep_writer(self) -> KeptConnection:
        """Return such a connection to keep, which is opened when it is first used."""
        return KeptConnection(self.connect_writer, self.gate)

    async def open(self) -> None:
        """Probe once and open the gate. Raises as :func:`probe` does."""
        await trio.to_thread.run_sync(
            probe,
            self._probe_connection,
            self._silent_clients,
            RELEASE,
            limiter=self._probes,
            abandon_on_cancel=True,
        )
        if not self._is_prepared:
            await trio.to_thread.run_sync(self._prepare, limiter=self._probes, abandon_on_cancel=True)
            self._is_prepared = True
        self.gate.open()

    def _prepare(self) -> None:
        """Connect each engine once: with its first connection SQLAlchemy asks for facts, and holds a lock."""
        for engine in (self._engine, self._work_engine, self._record_engine):
            _in_transaction(engine, lambda _: None, 1, False)

    def close(self) -> None:
        """Close the gate and every idle connection."""
        self.gate.close("The database connection is closed.", is_fault=False)
        if not self._probes.borrowed_tokens:
            # Else the thread of a probe still uses it.
            self._probe_connection.discard()
        self._dispose()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Probe the database until cancelled; reports started after the first probe, whether or not it succeeded.

        While the gate is closed, it probes with a growing pause; while it is open, every :data:`HEARTBEAT_S` and
        right after a timeout. An embedded server that died is started again. Raises ``DatabaseTooOld`` and
        ``OlderRelease``.
        """
        first, pause_s = True, 0.0
        try:
            while True:
                await trio.sleep(pause_s)
                await self._open_again(task_status if first else trio.TASK_STATUS_IGNORED)
                first, opened_at = False, trio.current_time()
                await self._watch()
                is_steady = trio.current_time() - opened_at >= STEADY_S
                pause_s = 0.0 if is_steady else min(max(2 * pause_s, PROBE_FIRST_S), PROBE_LAST_S)
                # Idle connections in the pools may be lost too; using one would close the gate again.
                self._dispose()
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
                self._close_gate(exc)
            if not reported:
                task_status.started()
                reported = True
            if self.gate.is_open:
                return
            await trio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads the probes
            pause_s = min(pause_s * 2, PROBE_LAST_S)

    async def _watch(self) -> None:
        """Return when the gate has closed."""
        while self.gate.is_open:
            self.gate.trust()
            until = trio.current_time() + HEARTBEAT_S
            while trio.current_time() < until and not self.gate.is_doubted:
                if self._embedded is not None and not self._embedded.is_running():
                    self.gate.close("The embedded database has stopped.")
                    return
                with trio.move_on_after(HEARTBEAT_S if self._embedded is None else CHILD_CHECK_S):
                    await self.gate.wait_closed_or_doubted()
            self._close_retired()
            if self.gate.is_open:
                try:
                    await self.open()
                except DatabaseAway as exc:
                    self._close_gate(exc)

    async def _revive_child(self) -> None:
        if self._embedded is not None and not self._embedded.is_running():
            _log.warning("the embedded database has stopped; starting it again")
            await trio.to_thread.run_sync(self._embedded.start, limiter=self._probes)

    def _refuse_if_closed(self) -> None:
        if not self.gate.is_open:
            raise DatabaseAway(self.gate.reason, retry_after_s=self.gate.retry_after_s)

    def _note(self, exc: DatabaseAway) -> None:
        """Report a fault of a read or of :meth:`work` to the gate."""
        if isinstance(exc, QueryTimedOut):
            self.gate.note_timeout(exc.reason)
        else:
            self.gate.close(exc.reason)

    def _close_gate(self, exc: Exception) -> None:
        self.gate.close(str(exc), "slow" if isinstance(exc, QueryTimedOut) else "away")

    def _dispose(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        for engine in (self._engine, self._work_engine, self._record_engine, self._scan_engine):
            self._retired.append(engine.pool)
            engine.dispose()
        self._close_retired()

    def _close_retired(self) -> None:
        for pool in self._retired:
            pool.dispose()


class _Wait:
    """How long one query waits for a connection of its pool."""

    def __init__(self) -> None:
        self._ended_s: float | None = None

    def ends_with(self, query: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """Return ``query``, whose first call ends the wait."""

        def run(connection: Connection) -> T:
            self._ended_s = self._ended_s or perf_counter()
            return query(connection)

        return run

    @contextmanager
    def measured(self, pool: str) -> Iterator[None]:
        """Measure the wait from here; one that did not end lasts until the block does."""
        begun_s = perf_counter()
        try:
            yield
        finally:
            waited_s = (self._ended_s or perf_counter()) - begun_s
            metrics.DATABASE_WAIT_S.labels(pool).observe(waited_s)


def _in_transaction(engine: Engine, unit: Callable[[Connection], T], attempts: int, writing: bool) -> T:
    """Run one unit; raise psycopg's and SQLAlchemy's connection faults as ours."""
    while True:
        attempts -= 1
        try:
            with engine.begin() as connection:
                return unit(connection)
        except Exception as exc:
            trouble = trouble_of(exc, writing=writing)
            if trouble is None:
                raise
            if trouble == "slow":
                raise QueryTimedOut(reason_of(exc)) from exc
            if attempts == 0:
                raise DatabaseAway(reason_of(exc)) from exc
