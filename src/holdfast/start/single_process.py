"""The service in one process, without a parent: it owns the listening sockets and the embedded database itself.

The application loads while the database starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import msgspec
import structlog

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.settings.settings import Settings, environment
from holdfast.settings.warnings import find_warnings
from holdfast.sockets.emulator_sockets import open_emulator_sockets
from holdfast.sockets.listening import open_sockets
from holdfast.start.loading import loading
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.scrubbing import register_secrets
from holdfast.telemetry.traces.export import export_traces

log = structlog.get_logger(__name__)


def serve(settings: Settings) -> int:
    """Run the service in this process alone. Returns 0 after a clean stop, 1 when the supervision tree gave up, and
    2 when the asset store does not respond.

    Raises ``CannotListen``, the faults of the embedded database and of migrations, ``CatalogFault``, and
    ``SettingsFault`` for a library that is not installed.
    """
    configure_logging(
        settings.log_format,
        level=settings.log_level,
        in_thread=True,
        memory_bytes=settings.log_memory_bytes,
        memory_s=settings.log_memory_s,
    )
    register_secrets(settings.secret_values())
    export_traces(environment())
    for warning in find_warnings(settings):
        log.warning(warning)
    with ExitStack() as stack:
        sockets = open_sockets(settings, environment())
        stack.callback(sockets.close)
        await_database, embedded = stack.enter_context(_database(settings))
        # The data folder is this process's from here on.
        emulators = open_emulator_sockets(settings)
        stack.callback(emulators.close)
        settings = msgspec.structs.replace(settings, **emulators.ports)
        with loading():
            from holdfast.start.service import run
        return run(settings, sockets, emulators, await_database(), embedded)


@contextmanager
def _database(settings: Settings) -> Iterator[tuple[Callable[[], str], EmbeddedPostgres | None]]:
    """Yield a function that returns the database's URL, once an embedded one has started; stop it at the end."""
    if (url := settings.database_url) is not None:
        yield lambda: url, None
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    embedded.acquire()
    try:
        starter = ThreadPoolExecutor(1)
        starting = starter.submit(embedded.start)
        starter.shutdown(wait=False)
        yield starting.result, embedded
    finally:
        embedded.stop()
        embedded.release()
