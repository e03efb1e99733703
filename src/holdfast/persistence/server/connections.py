"""Connections on which every wait for the server has a time limit, and calls that wait on trio's own thread.

The server limits each statement by its own timeouts. They do not help when its processes are stopped or its host is
unreachable, and TCP's keep-alive detects neither through a Unix socket or on loopback. So the client limits each
wait for a response too; when the limit is reached, the connection is closed and the call returns.

While a call waits for the database, the loop runs other tasks. With a thread for each call, the thread is woken,
and then the loop, and both contend for the interpreter: for a short query that takes longer than the query itself.
So a call runs in a greenlet (:func:`run_on_loop`). It stays ordinary blocking code, of ours, of psycopg and of
SQLAlchemy; only :meth:`BoundedConnection.wait`, through which every exchange with the server goes, leaves the
greenlet while it waits. Such a call must not wait for anything else, and must not hold a lock while it waits that
another one may want: both run on the same thread.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, cast

import psycopg
import sqlalchemy
import structlog
import trio
from greenlet import getcurrent, greenlet
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    ServerSilent,
    reason_of,
    trouble_of,
)
from holdfast.persistence.server.database_gate import DatabaseGate

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

EngineUse: TypeAlias = Literal["reads", "single_statements", "transactions"]
"""What connections are used for.

``reads`` write nothing, and their plans read rows by their keys. Both they and ``single_statements`` commit each
statement by itself, which saves the round trips of BEGIN and COMMIT: under READ COMMITTED each statement has its
own snapshot anyway.
"""

SERVER_VERSION_MIN = 150000
"""PostgreSQL 15, as ``server_version_num`` writes it."""

CONNECT_S = 5
DEFAULT_PORT = "5432"
APPLICATION_NAME = "holdfast"
LOCK_MS = 5_000
WRITER_LOCK_MS = 1_000
"""The writer waits less: a batch that waits for one row's lock delays the units of all others."""
IDLE_IN_TRANSACTION_MS = 15_000
SILENCE_MARGIN_S = 1.0
"""How much longer than the server's own time limit the client waits for a response."""
SET_UP_MS = 3_000

_PLANS_BY_KEY = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; set jit = off"
)
"""The writer finds every row by its key, and its plans are reused by all batches."""

_FEW_ROWS_BY_KEY = "set enable_seqscan = off; set max_parallel_workers_per_gather = 0; set jit = off"
"""For reads: no plan reads a whole table, or runs on several of the server's cores.

A plan that is reused may be as old as its connection, and tables grow: one made for a small table would read all
of it. Only what no index serves is read that way.
"""

_EVENTS: Final = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


_last_hosts: Final[dict[str, tuple[str, str]]] = {}
"""The host and port that this process connected to last, by URL."""


class LoopCall(greenlet):
    """A call that :func:`run_on_loop` runs. Its code finds itself as ``greenlet.getcurrent()``."""


async def run_on_loop(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``call`` on this thread, and await for it what it passes to :func:`await_in_call`.

    It begins at once. What is raised while it awaits, a cancellation too, is raised in it where it awaits.
    """
    running = LoopCall(call)
    running.gr_context = getcurrent().gr_context
    asked: Any = running.switch(*args, **kwargs)
    while not running.dead:
        try:
            answer = await asked()
        except BaseException as exc:
            asked = running.throw(exc)
        else:
            asked = running.switch(answer)
    return cast("T", asked)


async def run_to_the_end(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``call`` as :func:`run_on_loop` does, also if the caller is cancelled meanwhile."""
    with trio.CancelScope(shield=True):
        result = await run_on_loop(call, *args, **kwargs)
    return result  # noqa: RET504 - for mypy, the scope may end without a result


def await_in_call(wait: Callable[[], Awaitable[T]]) -> T:
    """Have :func:`run_on_loop`, which runs this code, await ``wait()``; return its result, or raise as it does."""
    running = getcurrent()
    assert isinstance(running, LoopCall)
    assert running.parent is not None
    return cast("T", running.parent.switch(wait))


async def _wait_ready(socket: int, wanted: Wait, deadline: float) -> Ready:
    """Wait until a socket is ready, and return for what. Raises ``TimeoutError`` at ``deadline`` (trio's clock)."""
    waits = {Ready.R: trio.lowlevel.wait_readable, Ready.W: trio.lowlevel.wait_writable}
    found = Ready.NONE

    async def wait(state: Ready) -> None:
        nonlocal found
        await waits[state](socket)
        found = Ready(found | state)
        nursery.cancel_scope.cancel()

    with trio.move_on_at(deadline):
        if wanted == Wait.R:
            await trio.lowlevel.wait_readable(socket)
            return Ready.R
        async with trio.open_nursery() as nursery:
            for state in waits:
                if wanted & state:
                    nursery.start_soon(wait, state)
    if not found:
        raise TimeoutError
    return found


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose every wait for the server ends after ``answer_s``, in :class:`ServerSilent`."""

    answer_s: float | None = None

    def __del__(self, __warn: Any = None) -> None:
        """Close: a disposed engine drops connections that are borrowed at that moment, and psycopg only warns."""
        if hasattr(self, "pgconn"):
            self.pgconn.finish()

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:  # psycopg's own hook around every exchange
        """Wait as psycopg does, and no longer than ``answer_s``; let trio's loop run meanwhile if it runs this."""
        timeout = self.answer_s if timeout is None else timeout
        try:
            if not isinstance(getcurrent(), LoopCall):
                return super().wait(gen, interval, timeout)
            socket = self.pgconn.socket
            deadline = math.inf if timeout is None else trio.current_time() + timeout
            poll = select.poll()
            wanted: Wait = next(gen)
            while True:
                ready = Ready.NONE
                if wanted & Wait.W:
                    # A socket nearly always takes what is sent. While it has nothing to read, the loop runs others.
                    poll.register(socket, _EVENTS[wanted])
                    for _, events in poll.poll(0):
                        can_read = Ready.R if events & ~select.POLLOUT else Ready.NONE
                        ready = Ready(can_read | (Ready.W if events & select.POLLOUT else Ready.NONE))
                wanted = gen.send(ready or await_in_call(partial(_wait_ready, socket, wanted, deadline)))
        except StopIteration as end:
            return cast("T", end.value)
        except (errors._WaitTimeout, TimeoutError, trio.Cancelled, BaseExceptionGroup) as exc:
            # In the middle of an exchange: later responses could not be matched to their requests. The group is of
            # Cancelled alone: a call that sends and receives at once waits in two tasks.
            self.pgconn.finish()
            limit = "in time" if timeout is None else f"within {timeout:g} s"
            raise ServerSilent(f"the server sent no response {limit}") from exc


def connect(url: str, *, statement_timeout_ms: int, connect_s: int = CONNECT_S) -> BoundedConnection:
    """Connect with every wait limited; ``statement_timeout_ms`` 0 limits none. Raises psycopg's errors."""
    connection = BoundedConnection.connect(
        url,
        **_last_host_first(url),
        autocommit=True,  # what follows is one round trip, instead of three in a transaction
        connect_timeout=connect_s,
        # Overrides PGCLIENTENCODING, because COPY's input is encoded here.
        client_encoding="utf8",
        application_name=APPLICATION_NAME,
        keepalives=1,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=15_000,
    )
    try:
        connection.answer_s = SET_UP_MS / 1000
        connection.execute(
            "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false), set_config('timezone', 'UTC', false)",
            (str(statement_timeout_ms), str(LOCK_MS), str(IDLE_IN_TRANSACTION_MS)),
        )
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    connection.answer_s = statement_timeout_ms / 1000 + SILENCE_MARGIN_S if statement_timeout_ms else None
    _last_hosts[url] = (connection.info.host, str(connection.info.port))
    return connection


def _last_host_first(url: str) -> dict[str, Any]:
    """Return the hosts of a URL that names several, in the order to try them.

    One that is gone takes the whole time limit of each connection for as long as it is tried before the primary.
    """
    named = conninfo_to_dict(url)
    hosts = str(named.get("host", "")).split(",")
    if url not in _last_hosts or len(hosts) == 1 or "hostaddr" in named:
        return {}
    last_host, last_port = _last_hosts[url]
    ports = str(named.get("port", "")).split(",")
    if len(ports) == 1:
        # The port of all, which may be PGPORT's.
        return {"host": ",".join(sorted(hosts, key=lambda host: host != last_host))}
    servers = sorted(
        zip(hosts, ports, strict=True),
        key=lambda server: (server[0], server[1] or DEFAULT_PORT) != (last_host, last_port),
    )
    return {"host": ",".join(host for host, _ in servers), "port": ",".join(port for _, port in servers)}


def has_ended(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection that is idle is closed, or has been ended by the server. Needs no exchange.

    An idle server sends nothing but why it ends, or rarely a notice, after which the connection is no loss.
    """
    if connection.closed:
        return True
    idle = select.poll()
    idle.register(connection.pgconn.socket, select.POLLIN)
    return bool(idle.poll(0))


def connect_writer(url: str, *, statement_timeout_ms: int) -> BoundedConnection:
    """Connect for the journal's writer: no autocommit, all waits bounded. Raises :class:`DatabaseAway`."""
    try:
        connection = connect(url, statement_timeout_ms=statement_timeout_ms)
        try:
            connection.execute(f"{_PLANS_BY_KEY}; set lock_timeout = {WRITER_LOCK_MS}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as exc:
        raise DatabaseAway(reason_of(exc)) from exc
    return connection


class KeptConnection:
    """A connection that is kept between uses, and replaced before the next one if it has ended.

    So it is if the database was away since: one that was idle over an outage may lead to a machine that is gone,
    or no longer the primary, and its first statement would wait until its time has passed. ``gate`` counts the
    outages. And so it is ``kept_s`` seconds after it was made.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        gate: DatabaseGate | None = None,
        *,
        kept_s: float = math.inf,
    ) -> None:
        self._connect = connect
        self._gate = gate
        self._kept_s = kept_s
        self._made_at = -math.inf
        self._made_after = 0
        """How many outages there had been when it was made."""
        self.current: psycopg.Connection[Any] | None = None
        """The connection that was last used, until it is discarded."""

    def get(self) -> psycopg.Connection[Any]:
        """Return it, connected. Raises as ``connect`` does."""
        closings, now = 0 if self._gate is None else self._gate.closings, time.monotonic()
        is_old = self._made_after != closings or now - self._made_at >= self._kept_s
        if self.current is not None and (is_old or has_ended(self.current)):
            self.discard()
        if self.current is None:
            self.current, self._made_after, self._made_at = self._connect(), closings, now
        return self.current

    def discard(self) -> None:
        """Close it. Idempotent."""
        if self.current is not None:
            self.current.close()
            self.current = None


def off_the_loop(create: Callable[[], BoundedConnection], limiter: trio.CapacityLimiter) -> BoundedConnection:
    """Connect, on a thread if trio's loop runs this: resolving a name blocks, and there are many exchanges."""
    if not isinstance(getcurrent(), LoopCall):
        return create()
    return await_in_call(lambda: trio.to_thread.run_sync(create, limiter=limiter, abandon_on_cancel=True))


def make_engine(url: str, *, pool_size: int, statement_timeout_ms: int, use: EngineUse) -> Engine:
    """Create an engine whose connections are ours, so that the URL means what it means to libpq."""

    def create() -> BoundedConnection:
        connection = connect(url, statement_timeout_ms=statement_timeout_ms)
        if use == "reads":
            connection.execute("select set_config('default_transaction_read_only', 'on', false)")
            connection.execute(_FEW_ROWS_BY_KEY)
        connection.commit()
        return connection

    connecting = trio.CapacityLimiter(pool_size)
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: off_the_loop(create, connecting),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_S,
        pool_recycle=1800,
        isolation_level=None if use == "transactions" else "AUTOCOMMIT",
    )
    event.listen(engine, "handle_error", _name_unreadable)
    if use != "reads":
        # A read is repeated instead.
        event.listen(engine, "checkout", _refuse_ended)
    return engine


def _refuse_ended(connection: BoundedConnection, record: ConnectionPoolEntry, *_: object) -> None:
    """Have the pool replace a connection that the server has ended: what is written on it would fail.

    A new one is not refused: after two refusals the pool raises what looks like a bug, not like a lost connection.
    """
    was_used = "was_used" in record.info
    record.info["was_used"] = True
    if was_used and has_ended(connection):
        raise DisconnectionError


def _name_unreadable(failed: ExceptionContext) -> None:
    if failed.execution_context is not None:
        name_unreadable(failed.original_exception, failed.execution_context.cursor)


def name_unreadable(fault: BaseException, cursor: object) -> None:
    """Raise :class:`UnreadableRow` if a fault is of a value that Python cannot hold, as the time ``infinity``.

    The driver says neither its column nor its row, so the result's values are loaded again one by one. Values that
    can be loaded cost nothing more.
    """
    is_of_value = isinstance(fault, psycopg.DataError) and fault.sqlstate is None
    if not is_of_value or not isinstance(cursor, psycopg.Cursor) or (where := _unreadable_value(cursor)) is None:
        return
    column, table_oid, first = where
    table = cursor.connection.execute("select cast(%s::oid::regclass as text)", (table_oid,)).fetchone()
    named = f"{table[0]}.{column}" if table and table_oid else column
    log.error("row is unreadable", table=named, key=first, reason=str(fault))
    raise UnreadableRow(f"{named} {first}: {fault}") from fault


def _unreadable_value(cursor: psycopg.Cursor[Any]) -> tuple[str, int, str] | None:
    """Return the first value of a result that cannot be loaded: its column, its table's oid, and the first value of
    its row, which is of a key in most.
    """
    found = cursor.pgresult
    if found is None:
        return None
    loaders = Transformer(cursor)
    for row in range(found.ntuples):
        for column in range(found.nfields):
            value = found.get_value(row, column)
            try:
                if value is not None:
                    loaders.get_loader(found.ftype(column), Format(found.fformat(column))).load(value)
            except psycopg.DataError:
                name, first = found.fname(column) or b"", found.get_value(row, 0) or b""
                return name.decode(), found.ftable(column), first.decode(errors="replace")
    return None


def in_one_transaction(change: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """Return a change whose statements are committed together also on a connection without transactions."""

    def run(rows: Connection) -> T:
        with driver_of(rows).transaction():
            return change(rows)

    return run


def driver_of(rows: Connection) -> psycopg.Connection[Any]:
    """Return the driver's connection."""
    driver = rows.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


@contextlib.contextmanager
def connected(url: str, *, statement_timeout_ms: int = 0) -> Iterator[Connection]:
    """Open one SQLAlchemy connection for a command (audit), by default without time limits on its queries. Blocks.

    Raises :class:`DatabaseAway` when the database cannot be reached, or is lost while the connection is in use.
    """
    engine = make_engine(url, pool_size=1, statement_timeout_ms=statement_timeout_ms, use="transactions")
    try:
        try:
            connection = engine.connect()
        except DBAPIError as exc:
            raise DatabaseAway(reason_of(exc)) from exc
        with connection:
            yield connection
    except DBAPIError as exc:
        if trouble_of(exc) is None:
            raise
        raise DatabaseAway(reason_of(exc)) from exc
    finally:
        engine.dispose()
