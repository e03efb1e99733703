"""The emulators of all workers, in one process: ``python -m holdfast.start.children.emulators``.

They imitate systems outside, so they outlive every worker, and a roll does not replace them.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

import msgspec
import trio

from holdfast.ledger.catalog.catalog import CatalogFault
from holdfast.providers.outbound.name_lookups import limit_name_lookups
from holdfast.settings.settings import environment, load_settings
from holdfast.sockets.emulator_sockets import EmulatorSockets
from holdfast.sockets.listening import inherited_socket
from holdfast.start.children.control import Control
from holdfast.start.exit_codes import BAD_CONFIGURATION, CLEAN, GAVE_UP
from holdfast.start.parent.child_process import EmulatorsArguments
from holdfast.supervision.faults import GaveUp, NotRunning
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import emulators_tree
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.scrubbing import register_secrets
from holdfast.wiring.emulators import emulators_of
from holdfast.wiring.provider_registry import ProviderRegistry


def main(arguments: EmulatorsArguments) -> int:
    """Run the emulators until the parent ends them; returns 0 at once if these settings need none."""
    settings = load_settings(environment())
    configure_logging(settings.log_format, level=settings.log_level, in_thread=True)
    register_secrets(settings.secret_values())
    try:
        registry = ProviderRegistry(settings)
    except CatalogFault:
        return BAD_CONFIGURATION  # the workers print the reason
    sockets = EmulatorSockets(
        inherited_socket(arguments.studio_fd),
        None if arguments.card_fd is None else inherited_socket(arguments.card_fd),
    )
    emulators = emulators_of(settings, registry, sockets, local_url=arguments.local_url)
    if not emulators:
        return CLEAN
    conditions = Conditions(reporter := Reporter())
    tree = emulators_tree(emulators, reporter, conditions)
    return trio.run(_run, tree, conditions, Control(arguments.control_fd))


async def _run(tree: Supervisor, conditions: Conditions, control: Control) -> int:
    limit_name_lookups()
    code = CLEAN
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conditions.run)
        nursery.start_soon(_stop_at_signal, tree)
        nursery.start_soon(_follow_parent, tree, control)
        try:
            await tree.run()
        except GaveUp:
            code = GAVE_UP
        nursery.cancel_scope.cancel()
    return code


async def _stop_at_signal(tree: Supervisor) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            await tree.stop()


async def _follow_parent(tree: Supervisor, control: Control) -> None:
    with suppress(NotRunning):
        await tree.wait_ready()
    await control.report_ready()
    async for _ in control.lines():
        pass
    await tree.stop()


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=EmulatorsArguments)))
