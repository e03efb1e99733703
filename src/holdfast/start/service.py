"""The service of one process: its start on sockets and a database, its signals, and its orderly stop.

A stop drains the supervision tree in reverse start order (accept waiting connections, finish requests, empty
mailboxes, last commit, close the database). A second signal stops it without waiting, and the log lists the
children that had not finished.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import structlog
import trio

from holdfast import __version__
from holdfast.actors.workers.report_writer import store_last_reports
from holdfast.http.server.limits import connections_within, raise_open_files_limit
from holdfast.ledger.cells import Cells
from holdfast.persistence.queries.moves import find_unlisted, find_unreachable
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import migrate_when_reachable
from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.settings.settings import Settings
from holdfast.sockets.emulator_sockets import EmulatorSockets
from holdfast.sockets.listening import SlotSockets, Sockets, url_of
from holdfast.start.exit_codes import BAD_CONFIGURATION, CLEAN, GAVE_UP
from holdfast.supervision.faults import GaveUp, NotRunning
from holdfast.telemetry.logs import flush_logs
from holdfast.wiring.assembly import Assembly, assemble

log = structlog.get_logger(__name__)

CLOSE_CLIENTS_S = 2.0
AT_ONCE_S = 3.0
"""How long the process may take to end after a second signal."""


def run(
    settings: Settings,
    sockets: Sockets,
    emulator_sockets: EmulatorSockets,
    database_url: str,
    embedded: EmbeddedPostgres | None,
) -> int:
    """Migrate the database, then run the service in this process alone; returns the exit code.

    Raises the faults of migrations, ``CatalogFault``, and ``SettingsFault`` for a library that is not installed.
    """
    settings, own = within_open_files(settings), sockets.of_slots[0]
    report = migrate_when_reachable(database_url)
    if report.applied:
        log.info("database migrated", applied=", ".join(report.applied))
    assembly = assemble(
        settings,
        database_url=database_url,
        local_url=url_of(own.public),
        embedded=embedded,
        sockets=sockets,
        emulator_sockets=emulator_sockets,
    )
    return run_assembly(assembly, partial(_log_when_ready, assembly, own))


def run_assembly(assembly: Assembly, beside: Callable[[], Awaitable[None]]) -> int:
    """Run the composed service, with the task ``beside``, and return its exit code."""
    tune_interpreter()
    try:
        return trio.run(_run, assembly, beside)
    except Exception:
        # Logged rather than raised, because the log is scrubbed: an exception may quote client data.
        log.critical("the service crashed", exc_info=True)
        return GAVE_UP


def within_open_files(settings: Settings) -> Settings:
    """Return the settings with as many connections as the limit of open files allows; fewer are logged."""
    open_files = raise_open_files_limit()
    allowed = connections_within(open_files, settings.connections_max)
    if allowed == settings.connections_max:
        return settings
    log.warning("too few open files for CONNECTIONS_MAX", connections_max=allowed, open_files=open_files)
    return msgspec.structs.replace(settings, connections_max=allowed)


def tune_interpreter() -> None:
    """Tune the interpreter for one busy event loop beside threads that store files and check rows.

    Garbage collection runs less often and leaves out what exists already, which lives as long as the process:
    requests leave few cycles, and traversing thousands of actors every few hundred allocations costs more than it
    frees. What the start has left is freed before.

    The switch interval is short: beside a thread that computes, such as one that checks rows, the loop waits that
    long for the interpreter after each system call.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(200e-6)


async def _run(assembly: Assembly, beside: Callable[[], Awaitable[None]]) -> int:
    limit_name_lookups()
    code = CLEAN
    try:
        await assembly.parts.store.prepare()
    except OSError as fault:
        where = "" if fault.filename is None else f" ({fault.filename})"
        print(f"The asset store is not usable: {fault.strerror}{where}.", file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION
    cells = assembly.parts.cells
    if cells is not None and await _lacks_accounts(assembly.parts.database.url, cells):
        return BAD_CONFIGURATION
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_handle_signals, assembly, nursery)
        nursery.start_soon(beside)
        try:
            await assembly.tree.run()
        except GaveUp as gave_up:
            log.critical("the tree gave up", reason=str(gave_up))
            code = GAVE_UP
        assembly.parts.samples.leave()
        assembly.parts.reporter.report_sums(at_once=True)
        await store_last_reports(assembly.parts.reports, assembly.parts.database.url)
        with trio.move_on_after(CLOSE_CLIENTS_S):
            if assembly.parts.card is not None:
                await assembly.parts.card.provider.close()
            if assembly.http is not None:
                await assembly.http.close_clients()
        nursery.cancel_scope.cancel()
    log.info("stopped", exit_code=code)
    return code


async def _lacks_accounts(database_url: str, cells: Cells) -> bool:
    """Print which accounts could not be found by the list of cells, and return whether there are any.

    A list that lacks another cell may be the one from before that was added. A start while the database is away is
    not checked.
    """
    try:
        one = trio.CapacityLimiter(1)
        missing, unlisted = await trio.to_thread.run_sync(_missing_in_list, database_url, cells, limiter=one)
    except DatabaseAway as fault:
        log.warning("the list of cells was not checked", reason=str(fault))
        return False
    if unlisted:
        log.error("the list lacks cells to which this one gave addresses: what is not found is 503", cells=unlisted)
    if missing:
        print(  # noqa: T201
            f"HOLDFAST_CELLS: by this list no request would find {len(missing)} accounts of the database, such as "
            f"{missing[0]}. Add the places and addresses that this cell had before to `former_places` and "
            f"`former_emails` of cell {cells.own.number}.",
            file=sys.stderr,
        )
    return bool(missing)


def _missing_in_list(database_url: str, cells: Cells) -> tuple[list[str], list[int]]:
    with connected(database_url) as rows, rows.begin():
        return find_unreachable(rows, cells), find_unlisted(rows, cells)


async def _log_when_ready(assembly: Assembly, sockets: SlotSockets) -> None:
    """Log the service's URLs once every part is up."""
    try:
        await assembly.tree.wait_ready()
    except NotRunning:
        return
    url = url_of(sockets.public)
    log.info(
        "holdfast serves",
        version=__version__,
        url=url,
        docs=f"{url}/docs",
        operators=f"{url if sockets.operators is None else url_of(sockets.operators)}/ops",
        sign_in_with=str(assembly.parts.settings.token_file) if assembly.parts.settings.has_token_file else None,
        env=assembly.parts.settings.env,
        database=assembly.parts.database.url if not assembly.parts.settings.is_production else "configured",
        card_emulator=assembly.parts.card.emulator_url if assembly.parts.card is not None else None,
    )


async def stop_in_order(assembly: Assembly) -> None:
    """Give this process's accounts to other members, then drain the tree."""
    await assembly.parts.members.drain()
    await assembly.tree.stop()


async def _handle_signals(assembly: Assembly, nursery: trio.Nursery) -> None:
    """Stop in order at INT or TERM, immediately at a second one; reload the catalog at HUP. USR2 is a parent's."""
    tree, is_stopping = assembly.tree, False
    # A thread that waits for a database that hangs cannot be cancelled, and the loop does not end before it. Every
    # change that was confirmed is durable, so exiting here is as safe as a kill.
    exit_timer = threading.Timer(AT_ONCE_S, _exit_at_once)
    exit_timer.daemon = True
    try:
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
        with trio.open_signal_receiver(*wanted) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    # Beside this: its disk or an estimate of secrets may hang.
                    nursery.start_soon(_reload_catalog, assembly)
                elif number == signal.SIGUSR2:
                    log.warning("only a parent of worker processes can roll them")
                elif not is_stopping:
                    is_stopping = True
                    log.info("stopping", signal=signal.Signals(number).name)
                    await stop_in_order(assembly)
                else:
                    cut = [child.child_id for child in tree.children() if child.state != "stopped"]
                    log.warning("stopping at once", signal=signal.Signals(number).name, cut=cut)
                    tree.stop_at_once()
                    if not exit_timer.is_alive():
                        exit_timer.start()
    finally:
        exit_timer.cancel()


async def _reload_catalog(assembly: Assembly) -> None:
    await assembly.parts.registry.reload()
    assembly.parts.presence.beat_soon()


def _exit_at_once() -> None:
    flush_logs(within_s=0.2)
    os._exit(GAVE_UP)
