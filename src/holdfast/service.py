"""The service process: the order of its start, its signals, and its orderly stop.

A stop drains the supervision tree in reverse start order (accept waiting connections, finish requests, empty
mailboxes, last commit, close the database) and then stops the embedded server. A second signal stops it without
waiting, and the log lists the children that had not finished.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog
import trio

from holdfast import __version__
from holdfast.http.server.open_files import connections_within, raise_open_files_limit
from holdfast.ledger.catalog.catalog import CatalogFault
from holdfast.logs import configure_logging
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import MigrationReport, migrate
from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.scrubbing import register_secrets
from holdfast.settings import Settings
from holdfast.settings_warnings import find_warnings
from holdfast.supervision.faults import GaveUp, NotRunning
from holdfast.wiring.assembly import Assembly, assemble
from holdfast.wiring.http_server import ListeningSockets

log = structlog.get_logger(__name__)

CLEAN, GAVE_UP, BAD_CONFIGURATION = 0, 1, 2
BACKLOG = 1024
CLOSE_CLIENTS_S = 2.0
AT_ONCE_S = 3.0
"""How long the process may take to end after a second signal."""
DATABASE_START_S = 30.0
"""How long a start waits for its database: longer than a restart or a failover takes."""
DATABASE_RETRY_S = 1.0


def serve(settings: Settings) -> int:
    """Run the service. Returns 0 after a clean stop, 1 when the supervision tree gave up, and 2 when it cannot
    start: an invalid catalog, a port in use, an asset store that does not respond.

    Raises the faults of the embedded database and of migrations, and ``SettingsFault`` for a library that is not
    installed.
    """
    configure_logging(settings.log_format)
    register_secrets(settings.secret_values())
    for warning in find_warnings(settings):
        log.warning(warning)
    open_files = raise_open_files_limit()
    with ExitStack() as stack:
        listening: list[socket.socket] = []
        for host, port in _addresses(settings):
            try:
                listening.append(stack.enter_context(_listen(host, port)))
            except OSError as exc:
                print(f"Cannot listen on {host}:{port}: {exc.strerror}.", file=sys.stderr)  # noqa: T201
                return BAD_CONFIGURATION
        connections_max = connections_within(open_files, settings.connections_max)
        if connections_max < settings.connections_max:
            log.warning(
                "too few open files for CONNECTIONS_MAX", connections_max=connections_max, open_files=open_files
            )
        sockets = ListeningSockets(
            public=listening[0],
            operators=listening[1] if len(listening) > 1 else None,
            connections_max=connections_max,
        )
        database_url, embedded = stack.enter_context(_database_url(settings))
        report = migrate_when_reachable(database_url)
        if report.applied:
            log.info("database migrated", applied=list(report.applied))
        try:
            assembly = assemble(
                settings,
                database_url=database_url,
                local_url=_url_of(sockets.public),
                embedded=embedded,
                sockets=sockets,
            )
        except CatalogFault as fault:
            for line in fault.lines:
                print(line, file=sys.stderr)  # noqa: T201
            return BAD_CONFIGURATION
        tune_interpreter()
        try:
            return trio.run(_run, assembly, sockets)
        except Exception:
            # Logged rather than raised, because the log is scrubbed: an exception may quote client data.
            log.critical("the service crashed", exc_info=True)
            return GAVE_UP


def migrate_when_reachable(database_url: str) -> MigrationReport:
    """Migrate the database, waiting for one that is starting, stopping or out of reach.

    Raises as :func:`~holdfast.persistence.server.migrate.migrate` does; ``DatabaseAway`` only once
    :data:`DATABASE_START_S` have passed.
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


def tune_interpreter() -> None:
    """Tune the interpreter for one busy event loop beside threads that wait for the database.

    Garbage collection runs less often and skips objects that live as long as the process: requests leave few
    cycles, and traversing thousands of actors every few hundred allocations costs more than it frees.

    The switch interval is short: the journal's thread needs the interpreter for microseconds between its waits, and
    would otherwise wait until the loop is idle, with the database idle too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(20e-6)


async def _run(assembly: Assembly, sockets: ListeningSockets) -> int:
    limit_name_lookups()
    code = CLEAN
    try:
        await assembly.store.prepare()
    except OSError as fault:
        print(f"The asset store is not usable: {fault.strerror}.", file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_handle_signals, assembly)
        nursery.start_soon(_log_when_ready, assembly, sockets)
        try:
            await assembly.tree.run()
        except GaveUp as gave_up:
            log.critical("the tree gave up", reason=str(gave_up))
            code = GAVE_UP
        if assembly.card is not None:
            with trio.move_on_after(CLOSE_CLIENTS_S):
                await assembly.card.provider.close()
        nursery.cancel_scope.cancel()
    log.info("stopped", exit_code=code)
    return code


async def _log_when_ready(assembly: Assembly, sockets: ListeningSockets) -> None:
    """Log the service's URLs once every part is up."""
    try:
        await assembly.tree.wait_ready()
    except NotRunning:
        return
    url = _url_of(sockets.public)
    log.info(
        "holdfast serves",
        version=__version__,
        url=url,
        docs=f"{url}/docs",
        operators=None if sockets.operators is None else _url_of(sockets.operators),
        env=assembly.settings.env,
        database=assembly.database.url if not assembly.settings.is_production else "configured",
        card_emulator=assembly.card.emulator_url if assembly.card is not None else None,
    )


async def _handle_signals(assembly: Assembly) -> None:
    """Stop in order at INT or TERM, immediately at a second one; reload the catalog at HUP."""
    tree, is_stopping = assembly.tree, False
    # A thread that waits for a database that hangs cannot be cancelled, and the loop does not end before it. Every
    # change that was confirmed is durable, so exiting here is as safe as a kill.
    exit_timer = threading.Timer(AT_ONCE_S, os._exit, (GAVE_UP,))
    exit_timer.daemon = True
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    await assembly.registry.reload()
                    assembly.members.beat_soon()
                elif not is_stopping:
                    is_stopping = True
                    log.info("stopping", signal=signal.Signals(number).name)
                    await assembly.members.drain()
                    await tree.stop()
                else:
                    cut = [child.child_id for child in tree.children() if child.state != "stopped"]
                    log.warning("stopping at once", signal=signal.Signals(number).name, cut=cut)
                    tree.stop_at_once()
                    if not exit_timer.is_alive():
                        exit_timer.start()
    finally:
        exit_timer.cancel()


def _addresses(settings: Settings) -> list[tuple[str, int]]:
    """Return the addresses to listen on: the public one, and the operators' one if it has its own port."""
    found = [(settings.host, settings.port)]
    return found if settings.ops_port is None else [*found, (settings.ops_host, settings.ops_port)]


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. This comes first, so that a port in use is reported immediately."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - only recognised
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _database_url(settings: Settings) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    """Return the configured database's URL, or start the embedded one and stop it at the end."""
    if settings.database_url is not None:
        yield settings.database_url, None
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    embedded.acquire()
    try:
        yield embedded.start(), embedded
    finally:
        embedded.stop()
        embedded.release()
