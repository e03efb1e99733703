"""Faults of the database: its processes, its connections, its locks, its disk.

Where the harness runs the server, it plays the operator too and starts what has ended; an embedded server is the
service's to start again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import psycopg
import trio

from .deployment import Deployment
from .postgres import PostgresFault, backends_of, frozen, postmaster_of, send
from .service import children_of

LOCKED_TABLES = ("accounts", "tasks", "operations", "holds", "idempotency_records", "orders", "journal_batches")
LOG_FILES = 12
MEND_S_MAX = 60.0
BALLAST_ROUNDS = 20


async def kill_postmaster(deployment: Deployment, rng: random.Random) -> None:
    """``kill -9`` of the postmaster; its backends end by themselves."""
    pid = postmaster_of(deployment.pgdata)
    if pid is not None:
        send(pid, signal.SIGKILL)
    if deployment.database is not None:
        await trio.sleep(rng.uniform(0, 0.5))
        await trio.to_thread.run_sync(deployment.database.stop, "kill")
        await mend(deployment)


async def kill_everything(deployment: Deployment, _: random.Random) -> None:
    """``kill -9`` of the service and all its database processes at once."""
    pid = postmaster_of(deployment.pgdata)
    pids = [] if pid is None else [pid, *children_of(pid)]
    pids += deployment.services[0].workers()
    deployment.services[0].kill()
    for each in pids:
        send(each, signal.SIGKILL)


async def kill_backend(deployment: Deployment, rng: random.Random) -> None:
    """``kill -9`` of one backend of the service, after which the server restarts all of them."""
    with contextlib.suppress(psycopg.Error, OSError):
        pids = await trio.to_thread.run_sync(backends_of, deployment.database_url())
        if pids:
            send(rng.choice(pids), signal.SIGKILL)


async def stop_and_start(deployment: Deployment, rng: random.Random) -> None:
    """The server is stopped, in order or immediately, and started again later."""
    assert deployment.database is not None
    await trio.to_thread.run_sync(deployment.database.stop, rng.choice(("fast", "immediate")))
    await trio.sleep(rng.choice((0, rng.uniform(0, 1), rng.uniform(1, 4))))
    await mend(deployment)


async def freeze(deployment: Deployment, rng: random.Random) -> None:
    """Every process of the server is paused for a while."""
    with frozen(deployment.pgdata):
        await trio.sleep(rng.choice((rng.uniform(0.2, 1), rng.uniform(1, 4), rng.uniform(4, 8))))


async def fail_over(deployment: Deployment, rng: random.Random) -> None:
    """The primary ends, its synchronous standby takes over, and the old primary becomes the standby."""
    old, new = deployment.database, deployment.standby
    assert old is not None
    assert new is not None
    await trio.to_thread.run_sync(old.stop, rng.choice(("kill", "immediate", "fast")))
    await trio.sleep(rng.uniform(0, 0.5))
    await trio.to_thread.run_sync(new.promote)
    deployment.database, deployment.standby = new, old
    deployment.recovery_s = await deployment.first_answers(trio.current_time())
    await trio.to_thread.run_sync(old.clone, new)


async def terminate_connections(deployment: Deployment, rng: random.Random) -> None:
    """Every connection of the service is ended by the server, several times in a row."""

    def terminate() -> None:
        with psycopg.connect(deployment.database_url(), connect_timeout=5, autocommit=True) as connection:
            query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'"
            connection.execute(query)

    for _ in range(rng.randint(1, 4)):
        with contextlib.suppress(psycopg.Error, OSError):
            await trio.to_thread.run_sync(terminate)
        await trio.sleep(rng.uniform(0, 0.4))


async def disturb_connections(deployment: Deployment, rng: random.Random) -> None:
    """Between service and database bytes stall, answers get lost, connections are cut or refused."""
    proxy = deployment.proxy
    assert proxy is not None
    kind = rng.choice(("cut", "stall", "swallow", "swallow", "refuse"))
    try:
        if kind == "refuse":
            proxy.set_mode("refuse")
            proxy.cut()
        elif kind == "stall":
            proxy.set_mode("stall")
        elif kind == "swallow":
            # What was sent arrives and has its effect, a commit too; its answer never comes.
            proxy.set_mode("swallow")
            await trio.sleep(rng.uniform(0.02, 0.3))
            proxy.cut()
        else:
            proxy.cut()
        if kind != "cut":
            await trio.sleep(rng.choice((rng.uniform(0, 0.5), rng.uniform(0.5, 5))))
    finally:
        proxy.set_mode("pass")


async def hold_lock(deployment: Deployment, rng: random.Random) -> None:
    """Another session locks a table exclusively for a while."""
    table = rng.choice(LOCKED_TABLES)
    seconds = rng.choice((rng.uniform(0.2, 1), rng.uniform(1, 4), rng.uniform(4, 8)))

    def lock() -> None:
        with psycopg.connect(deployment.database_url(), connect_timeout=5) as connection:
            connection.execute("set lock_timeout = '5s'")
            connection.execute(f"lock table {table} in access exclusive mode")
            connection.execute("select pg_sleep(%s)", (seconds,))

    with contextlib.suppress(psycopg.Error, OSError):
        await trio.to_thread.run_sync(lock)


async def fill_disk(deployment: Deployment, rng: random.Random) -> None:
    """The file system of the database and the results is full for a while."""
    ballast = deployment.folder / "var" / "ballast"
    await trio.to_thread.run_sync(fill, ballast)
    try:
        await trio.sleep(rng.uniform(0.2, 2))
        # A log that needs a new file now finds no room for it; the server has some in store.
        if rng.random() < 0.5:
            turns = ("select pg_logical_emit_message(false, '', 'full')", "select pg_switch_wal()") * LOG_FILES
            await trio.to_thread.run_sync(_execute, deployment, *turns)
        # What others gave free in between is taken too.
        await trio.to_thread.run_sync(fill, ballast)
        await trio.sleep(rng.uniform(0.2, 1))
    finally:
        ballast.unlink()
    # A log that has grown is cut back, so that room is left for the next round.
    await trio.to_thread.run_sync(_execute, deployment, "checkpoint")


def _execute(deployment: Deployment, *statements: str) -> None:
    """Run statements while the server accepts them."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        psycopg.connect(deployment.database_url(), connect_timeout=5, autocommit=True) as connection,
    ):
        connection.execute("set statement_timeout = '5s'")
        for statement in statements:
            connection.execute(statement)


def fill(path: Path) -> None:
    """Fill all free blocks with a file, also those freed meanwhile."""
    with path.open("ab") as file:
        for _ in range(BALLAST_ROUNDS):
            room = os.statvfs(path)
            free = room.f_bavail * room.f_frsize
            if not free:
                return
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)


async def mend(deployment: Deployment) -> None:
    """Start the harness's own server if it has ended."""
    if deployment.database is None:
        return
    # The last backends of a killed server may hold its shared memory for a while.
    with trio.move_on_after(MEND_S_MAX):
        while True:
            try:
                await trio.to_thread.run_sync(deployment.database.start)
            except PostgresFault:
                await trio.sleep(0.2)
            else:
                return
    await trio.to_thread.run_sync(deployment.database.start)
