"""A worker: the service on sockets and a database that its parent owns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import structlog
import trio

from holdfast.ledger.catalog.catalog import CatalogFault
from holdfast.settings.settings import SettingsFault, environment, load_settings
from holdfast.sockets.listening import SlotSockets, Sockets, inherited_socket, url_of
from holdfast.start.children.control import Control
from holdfast.start.exit_codes import BAD_CONFIGURATION
from holdfast.start.parent.child_process import COVER, DATABASE, REPORT, RETIRE, WorkerArguments
from holdfast.start.service import run_assembly, stop_in_order, within_open_files
from holdfast.supervision.faults import NotRunning
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.metrics import render_workers
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.scrubbing import register_secrets
from holdfast.telemetry.traces.export import export_traces
from holdfast.wiring.assembly import Assembly, assemble

log = structlog.get_logger(__name__)


def serve(arguments: WorkerArguments, on_start: Callable[[], None]) -> int:
    """Serve until the parent or a signal ends it. Exit codes are those of the service.

    ``on_start`` is called when this follows the parent by itself.
    """
    settings = load_settings(environment())
    configure_logging(
        settings.log_format,
        level=settings.log_level,
        in_thread=True,
        worker=arguments.slot,
        processes=settings.processes,
        memory_bytes=settings.log_memory_bytes,
        memory_s=settings.log_memory_s,
    )
    register_secrets(settings.secret_values())
    export_traces(environment())
    settings = within_open_files(settings)
    assert settings.database_url is not None, "the parent names its embedded database"
    own = (
        (arguments.public_fd,) if arguments.operators_fd is None else (arguments.public_fd, arguments.operators_fd)
    )
    fds = {arguments.slot: own, **arguments.sibling_fds}
    sockets = Sockets(
        {slot: SlotSockets(*map(inherited_socket, each)) for slot, each in fds.items()}, is_shared=True
    )
    try:
        assembly = assemble(
            settings,
            database_url=settings.database_url,
            local_url=url_of(sockets.of_slots[arguments.slot].public),
            sockets=sockets,
            metrics_text=partial(render_workers, arguments.metrics_dir),
            worker=arguments.slot,
        )
    except (CatalogFault, SettingsFault) as fault:
        for line in fault.lines:
            print(line, file=sys.stderr)  # noqa: T201
        return BAD_CONFIGURATION

    async def follow_parent() -> None:
        on_start()
        await _follow_parent(assembly, Control(arguments.control_fd))

    return run_assembly(assembly, follow_parent)


async def _follow_parent(assembly: Assembly, control: Control) -> None:
    """Report that this worker serves, do what the parent asks, and stop in order when it is gone."""
    assert assembly.http is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report_when_ready, assembly, control)
        async for command, rest in control.lines():
            if command == COVER:
                assembly.http.accept_for([int(slot) for slot in rest.split()])
            elif command == RETIRE:
                log.info("retiring")
                nursery.start_soon(_retire, assembly)
            elif command == DATABASE:
                assembly.parts.database.gate.explain(rest)
            elif command == REPORT:
                with suppress(msgspec.MsgspecError):  # of another release
                    assembly.parts.reporter.accept(msgspec.json.decode(rest, type=Report))
        log.warning("stopping: the parent is gone")
        await stop_in_order(assembly)


async def _report_when_ready(assembly: Assembly, control: Control) -> None:
    try:
        await assembly.tree.wait_ready()
    except NotRunning:
        return
    await control.show_life()


async def _retire(assembly: Assembly) -> None:
    """Give the accounts to the other members, finish what is open, and stop."""
    assert assembly.http is not None
    await assembly.parts.members.drain()
    await assembly.http.retire()
    await assembly.tree.stop()
