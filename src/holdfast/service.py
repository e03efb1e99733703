"""The service as a process: what starts in which order, what the signals mean, and the ordered way down.

Down: stop accepting, finish requests, drain the tree in reverse (mailboxes, last commit, database), stop the
embedded server. A second signal ends the waiting, and what was cut is named in the log.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http

from holdfast import __version__
from holdfast.http.app import create_app
from holdfast.ledger.catalog import CatalogFault
from holdfast.logs import configure_logging
from holdfast.persistence.embedded import EmbeddedPostgres
from holdfast.persistence.migrate import migrate
from holdfast.providers.outward.name_lookups import limit_name_lookups
from holdfast.scrubbing import learn_secrets
from holdfast.settings import Settings
from holdfast.supervision.faults import GaveUp
from holdfast.wiring.assembly import Assembly, assemble

log = structlog.get_logger(__name__)

CLEAN, GAVE_UP, BAD_CONFIGURATION = 0, 1, 2
FINISH_REQUESTS_S = 5.0
BACKLOG = 1024


def serve(settings: Settings) -> int:
    """Run until told to stop. Returns 0 after a clean stop, 1 when the tree gave up, 2 for what keeps it from
    starting: a bad catalog, a taken port, a store of results that does not answer.

    Raises the faults of the embedded database and of migrations, and ``SettingsFault`` for a library that is not
    installed, each with a sentence for people.
    """
    configure_logging(settings.log_format)
    learn_secrets(settings.secret_values())
    for warning in settings.warnings:
        log.warning(warning)
    try:
        listener = _listen(settings)
    except OSError as exc:
        print(f"Cannot listen on {settings.host}:{settings.port}: {exc.strerror}.", file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION
    with listener, _database_url(settings) as (database_url, embedded):
        report = migrate(database_url)
        if report.applied:
            log.info("database migrated", applied=list(report.applied))
        try:
            assembly = assemble(settings, database_url=database_url, local_url=_url_of(listener), embedded=embedded)
        except CatalogFault as fault:
            for line in fault.lines:
                print(line, file=sys.stderr)  # noqa: T201
            return BAD_CONFIGURATION
        tune_interpreter()
        return trio.run(_run, assembly, listener)


def tune_interpreter() -> None:
    """Fit the interpreter to one busy event loop beside threads that wait for the database.

    Garbage collection looks less often, and past what lives as long as the process anyway: requests leave little
    behind in cycles, and to look at thousands of actors every few hundred allocations costs more than it finds.

    Threads are let in soon: the journal's needs the interpreter for some microseconds at a time between its waits,
    and each of them would otherwise last until the loop next rests, with the database idle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(20e-6)


async def _run(assembly: Assembly, listener: socket.socket) -> int:
    limit_name_lookups()
    stop = trio.Event()
    code = CLEAN
    tree_done = trio.Event()

    async def run_tree(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal code
        try:
            await assembly.tree.run(task_status=task_status)
        except GaveUp as gave_up:
            log.critical("the tree gave up", reason=str(gave_up))
            code = GAVE_UP
            task_status.started()
        finally:
            tree_done.set()
            stop.set()

    try:
        await assembly.store.prepare()
    except OSError as fault:
        print(f"Results cannot be stored: {fault.strerror}.", file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_heed_signals, assembly, stop, nursery.cancel_scope)
        await nursery.start(run_tree)
        if not tree_done.is_set():
            config = _http_config(assembly.settings, listener)
            app = create_app(assembly.front)
            url = _url_of(listener)
            log.info(
                "holdfast serves",
                version=__version__,
                url=url,
                docs=f"{url}/docs",
                env=assembly.settings.env,
                database=assembly.database.url if not assembly.settings.is_production else "configured",
                card_emulator=assembly.card.emulator_url if assembly.card is not None else None,
            )
            await serve_http(app, config, shutdown_trigger=stop.wait)
            log.info("no longer accepting requests")
        await assembly.tree.stop()
        await tree_done.wait()
        if assembly.card is not None:
            await assembly.card.provider.close()
        nursery.cancel_scope.cancel()
    log.info("stopped", exit_code=code)
    return code


async def _heed_signals(assembly: Assembly, stop: trio.Event, everything: trio.CancelScope) -> None:
    """INT and TERM stop in order, a second one at once; HUP reads the catalog again."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            if number == signal.SIGHUP:
                await assembly.shelf.reload()
            elif not stop.is_set():
                log.info("stopping", signal=signal.Signals(number).name)
                stop.set()
            else:
                cut = [child.child_id for child in assembly.tree.children() if child.state != "stopped"]
                log.warning("stopping at once", signal=signal.Signals(number).name, cut=cut)
                everything.cancel()


def _listen(settings: Settings) -> socket.socket:
    """The listening socket, made before anything else: the address is known, or taken, from the start."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
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


def _http_config(settings: Settings, listener: socket.socket) -> Config:
    config = Config()
    # A duplicate: hypercorn closes what it serves on.
    config.bind = [f"fd://{os.dup(listener.fileno())}"]
    config.backlog = BACKLOG
    config.graceful_timeout = FINISH_REQUESTS_S
    config.keep_alive_timeout = 60
    config.h11_max_incomplete_size = settings.header_bytes_max + 1024
    config.include_server_header = False
    config.accesslog = None
    # Its own handler would write beside ours.
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


@contextmanager
def _database_url(settings: Settings) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    """The database to use: the one named, or the embedded one, which is started here and stopped at the end."""
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
