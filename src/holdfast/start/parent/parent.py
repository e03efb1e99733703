"""The parent process: what it starts, its signals, and its end.

Its supervisor has one child for each worker, one for the embedded database and one for the emulators, independent
of each other. An orderly stop ends the workers together, then the emulators, then the database. When the parent is
killed, its workers notice the end of their socket pairs and stop in order, and the database stops after its last
connection.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Final

import structlog
import trio
from prometheus_client.multiprocess import mark_process_dead

from holdfast import __version__
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.persistence.server.revisions import is_migrated
from holdfast.settings.settings import Settings, SettingsFault, environment, override
from holdfast.settings.warnings import find_warnings
from holdfast.sockets.closing import refuse_new_connections
from holdfast.sockets.emulator_sockets import EmulatorSockets, open_emulator_sockets
from holdfast.sockets.listening import Sockets, open_sockets, url_of
from holdfast.start.exit_codes import BAD_CONFIGURATION, CLEAN, GAVE_UP
from holdfast.start.parent.child_process import (
    DATABASE,
    ChildProcess,
    EmulatorsArguments,
    WorkerArguments,
    start_process,
)
from holdfast.start.parent.process_slot import ProcessSlot, StartTime
from holdfast.start.parent.workers import Workers
from holdfast.supervision.faults import GaveUp, NotRunning
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Report, ReportKind
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.scrubbing import register_secrets

log = structlog.get_logger(__name__)

METRICS_PREFIX: Final = "holdfast-metrics-"
METRICS_LOCK: Final = "lock"
METRICS_NEW_S: Final = 60.0
"""A folder that is younger may not be locked yet."""
DATABASE_RETRY_FIRST_S = 0.1
DATABASE_RETRY_LAST_S = 1.0
AT_ONCE_S = 3.0
"""How long the children may take to end after a second signal."""
STOP_MARGIN_S = 5.0
"""How long a child may take to end beyond ``SHUTDOWN_S``, within which it stops by itself."""
RETIRE_MARGIN_S = 15.0
"""How long a replaced worker may take to end beyond the time limits of a request and of a stop."""
RESTARTS_PER_WORKER = 5
RESTARTS_PERIOD_S = 60.0
CONNECTIONS_BESIDE_READS = 10
"""The database connections of a worker besides ``POOL_SIZE``: the journal, leases, probes, checks."""
CONNECTIONS_BESIDE_WORKERS = 20


@contextmanager
def metrics_folder() -> Iterator[str]:
    """Create the folder with the metrics of all workers, and remove it at the end.

    It is in the service's runtime directory, if systemd gives it one, else beside other temporary files. A parent
    that is killed leaves its folder behind, so each start removes those that no parent has locked. Raises
    ``SettingsFault`` if there can be none.
    """
    above = environment().get("RUNTIME_DIRECTORY", "").partition(":")[0]
    try:
        above = above or tempfile.gettempdir()
        _remove_abandoned(Path(above))
        made = tempfile.TemporaryDirectory(prefix=METRICS_PREFIX, dir=above)
    except OSError as fault:
        where = above or "TMPDIR"
        raise SettingsFault((f"{where}: no folder for metrics can be made: {fault.strerror}",)) from fault
    with made as folder, (Path(folder) / METRICS_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _remove_abandoned(above: Path) -> None:
    for folder in above.glob(f"{METRICS_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < METRICS_NEW_S:
                continue
            with (folder / METRICS_LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


class DatabaseServer:
    """Starts the server again whenever it has ended, at no cost in restarts: the workers wait for it meanwhile.

    ``tell`` sends them why it does not start. It does not stop the server, which must outlive the last worker.
    """

    def __init__(self, embedded: EmbeddedPostgres, reporter: Reporter, tell: Callable[[str], None]) -> None:
        self._embedded = embedded
        self._reporter = reporter
        self._tell = tell
        self._scope = trio.CancelScope()
        self._limiter = trio.CapacityLimiter(2)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch the server until stopped."""
        task_status.started()
        with self._scope:
            while True:
                await trio.to_thread.run_sync(self._embedded.wait, limiter=self._limiter, abandon_on_cancel=True)
                began = trio.current_time()
                self._report("outage", "the embedded database has stopped")
                await self._start_again()
                self._report("recovery", "the embedded database runs again", round(trio.current_time() - began, 3))

    async def stop(self) -> None:
        """End the watch."""
        self._scope.cancel()

    def _report(self, kind: ReportKind, reason: str, duration_s: float | None = None) -> None:
        self._reporter.report(Report(kind=kind, path="processes/database", reason=reason, duration_s=duration_s))

    async def _start_again(self) -> None:
        pause_s, reported = DATABASE_RETRY_FIRST_S, ""
        while True:
            try:
                await trio.to_thread.run_sync(self._embedded.start, limiter=self._limiter)
            except EmbeddedFault as fault:
                # The same one may name another process or file at each try.
                without_numbers = re.sub(r"\d+", "", str(fault))
                if without_numbers != reported:
                    self._report("outage", str(fault))
                    reported = without_numbers
                log.error("the embedded database does not start")
                self._tell(" ".join([DATABASE, *str(fault).split()]))
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, DATABASE_RETRY_LAST_S)
            else:
                return


def serve(settings: Settings) -> int:
    """Run the service with ``settings.processes`` workers. Returns 0 after a clean stop, 1 when the workers keep
    failing, and 2 when their configuration is not valid.

    Raises ``CannotListen`` and the faults of the embedded database.
    """
    configure_logging(settings.log_format, level=settings.log_level, in_thread=True)
    register_secrets(settings.secret_values())
    for warning in find_warnings(settings):
        log.warning(warning)
    variables = {name: value for name, value in environment().items() if not name.startswith("LISTEN_")}
    sockets = open_sockets(settings, environment())
    with ExitStack() as stack:
        stack.callback(sockets.close)
        metrics_dir = stack.enter_context(metrics_folder())
        embedded = stack.enter_context(_embedded(settings))
        # The data folder is this process's from here on.
        emulators = open_emulator_sockets(settings)
        stack.callback(emulators.close)
        override(variables, _decided(settings, emulators, embedded))
        parent = Parent(
            settings,
            sockets=sockets,
            emulators=emulators,
            embedded=embedded,
            metrics_dir=metrics_dir,
            variables=variables,
        )
        return trio.run(parent.run)


class Parent:
    """The running parent. ``variables`` are the environment of its children."""

    def __init__(
        self,
        settings: Settings,
        *,
        sockets: Sockets,
        emulators: EmulatorSockets,
        embedded: EmbeddedPostgres | None,
        metrics_dir: str,
        variables: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._emulators = emulators
        self._metrics_dir = metrics_dir
        self._variables = variables
        url = settings.database_url if embedded is None else embedded.url
        assert url is not None, "without a configured database there is an embedded one"
        self._database_url = url
        self._database_checks = trio.CapacityLimiter(settings.processes + 1)
        self._code = CLEAN
        self._rolls_wanted = trio.Event()
        self._preparing = trio.CancelScope()
        reporter = Reporter(host=gethostname())
        self._conditions = Conditions(reporter)
        self._workers = Workers(
            settings.processes,
            self._start_worker,
            on_end=partial(mark_process_dead, path=metrics_dir),
            on_misconfigured=self._misconfigured,
            retire_s=settings.head_timeout_s + settings.body_timeout_s + settings.shutdown_s + RETIRE_MARGIN_S,
            reporter=reporter,
        )
        shutdown_s = settings.shutdown_s + STOP_MARGIN_S
        specs = self._workers.specs(shutdown_s)
        # Stopped last, in reverse order: workers may still use both.
        if emulators.studio is not None:
            start = partial(self._start_emulators, emulators.studio)
            slot = partial(ProcessSlot, start, StartTime(), may_finish=True)
            specs.insert(0, ChildSpec("emulators", slot, restart="transient", shutdown_s=shutdown_s))
        if embedded is not None:
            server = partial(DatabaseServer, embedded, reporter, self._workers.tell_all)
            specs.insert(0, ChildSpec("database", server))
        self._tree = Supervisor(
            "processes",
            specs,
            # one_for_one: a worker waits for a database that is away, and does not need its siblings.
            strategy="one_for_one",
            intensity=Intensity(RESTARTS_PER_WORKER * settings.processes, RESTARTS_PERIOD_S),
            reporter=reporter,
            conditions=self._conditions,
            # A worker's start may migrate the database first, which takes as long as its tables are large.
            start_timeout_s=math.inf,
            drain_timeout_s=shutdown_s + STOP_MARGIN_S,
        )

    async def run(self) -> int:
        """Migrate the database, then run the workers until a signal or a failure; returns the exit code."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._handle_signals)
            with self._preparing:
                self._code = await self._migrate()
            if self._code == CLEAN and not self._preparing.cancelled_caught:
                nursery.start_soon(self._conditions.run)
                nursery.start_soon(self._log_when_ready)
                nursery.start_soon(self._roll_when_wanted)
                try:
                    await self._tree.run()
                except GaveUp as gave_up:
                    log.critical("the workers keep failing", reason=str(gave_up))
                    self._code = GAVE_UP
            nursery.cancel_scope.cancel()
        log.info("stopped", exit_code=self._code)
        return self._code

    async def _handle_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Stop in order at INT or TERM, at once at a second one; HUP reloads the catalog, USR2 replaces workers."""
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
        is_stopping = False
        with trio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if number == signal.SIGHUP:
                    self._workers.send_signal(signal.SIGHUP)
                elif number == signal.SIGUSR2:
                    self._rolls_wanted.set()
                elif not is_stopping:
                    is_stopping = True
                    log.info("stopping", signal=name)
                    await self._stop()
                else:
                    log.warning("stopping at once", signal=name)
                    self._workers.send_signal(signal.SIGTERM)
                    await trio.sleep(AT_ONCE_S)
                    self._tree.stop_at_once()

    async def _stop(self) -> None:
        self._preparing.cancel()
        if not self._sockets.is_shared:
            for listening in self._sockets.each():
                refuse_new_connections(listening)
        await self._workers.stop_all()
        await self._tree.stop()

    def _misconfigured(self) -> None:
        """End with the exit code of a worker that found the configuration invalid at the first start."""
        self._code = BAD_CONFIGURATION
        self._tree.stop_at_once()

    async def _roll_when_wanted(self) -> None:
        """Replace the workers after each signal. Signals during a roll lead to one more."""
        while True:
            await self._rolls_wanted.wait()
            self._rolls_wanted = trio.Event()
            log.info("roll begins", workers=self._workers.count)
            if await self._migrate() != CLEAN:
                log.error("roll abandoned: the database was not migrated")
            elif await self._workers.roll():
                log.info("roll complete", workers=self._workers.count)

    async def _migrate(self) -> int:
        """Migrate the database by the code that is installed now, in a process of its own if there is need."""
        if await self._is_migrated():
            return CLEAN
        try:
            done = await trio.run_process(
                [sys.executable, "-m", "holdfast.start.children.migration"],
                env=dict(self._variables),
                stdin=subprocess.DEVNULL,
                check=False,
                start_new_session=True,
            )
        except OSError as fault:
            # As while the interpreter is being replaced: the workers that run are not affected.
            log.error("the migration cannot be started", reason=str(fault))
            return GAVE_UP
        return done.returncode if done.returncode >= 0 else GAVE_UP

    async def _is_migrated(self) -> bool | None:
        """Return whether the tables are those of the installed code; None if the database cannot be read."""
        return await trio.to_thread.run_sync(
            is_migrated, self._database_url, abandon_on_cancel=True, limiter=self._database_checks
        )

    async def _start_worker(self, slot: int) -> ChildProcess:
        """Start a worker. Raises OSError."""
        # A release may have been installed since the last one was started, and its tables are not there yet.
        if await self._is_migrated() is False and await self._migrate() != CLEAN:
            raise OSError("the database was not migrated")
        of_slots = {
            number: tuple(listening.fileno() for listening in sockets.each())
            for number, sockets in self._sockets.of_slots.items()
        }
        own = of_slots[slot]
        # A sibling that shares a socket with this slot needs no other worker to accept for it.
        siblings = {each: fds for each, fds in of_slots.items() if not set(fds) & set(own)}

        def arguments(control_fd: int) -> WorkerArguments:
            return WorkerArguments(
                slot=slot,
                metrics_dir=self._metrics_dir,
                control_fd=control_fd,
                public_fd=own[0],
                operators_fd=own[1] if len(own) > 1 else None,
                sibling_fds=siblings,
            )

        fds = sorted({*own, *(fd for some in siblings.values() for fd in some)})
        # In the environment, because prometheus_client reads it when it is imported.
        variables = {**self._variables, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir}
        return await start_process("holdfast.start.children.worker", arguments, fds=fds, variables=variables)

    async def _start_emulators(self, studio: socket.socket) -> ChildProcess:
        card = self._emulators.card

        def arguments(control_fd: int) -> EmulatorsArguments:
            return EmulatorsArguments(
                control_fd=control_fd,
                local_url=url_of(self._sockets.of_slots[0].public),
                studio_fd=studio.fileno(),
                card_fd=None if card is None else card.fileno(),
            )

        fds = [each.fileno() for each in (studio, card) if each is not None]
        return await start_process(
            "holdfast.start.children.emulators", arguments, fds=fds, variables=self._variables
        )

    async def _log_when_ready(self) -> None:
        """Log the service's URLs once every worker serves."""
        try:
            await self._tree.wait_ready()
        except NotRunning:
            return
        sockets = self._sockets.of_slots[0]
        url = url_of(sockets.public)
        card = self._emulators.card
        log.info(
            "holdfast serves",
            version=__version__,
            url=url,
            docs=f"{url}/docs",
            operators=f"{url if sockets.operators is None else url_of(sockets.operators)}/ops",
            sign_in_with=str(self._settings.token_file) if self._settings.has_token_file else None,
            env=self._settings.env,
            processes=self._workers.count,
            database="configured" if self._settings.is_production else self._database_url,
            card_emulator=None if card is None else url_of(card),
        )


def _decided(settings: Settings, emulators: EmulatorSockets, embedded: EmbeddedPostgres | None) -> dict[str, str]:
    """Return the settings that the parent decides for all its children."""
    decided = {"PROCESSES": str(settings.processes)}
    decided |= {name.upper(): str(port) for name, port in emulators.ports.items()}
    if embedded is not None:
        decided["DATABASE_URL"] = embedded.url
    return decided


@contextmanager
def _embedded(settings: Settings) -> Iterator[EmbeddedPostgres | None]:
    """Run the embedded database, if none is configured, until all children have ended."""
    if settings.database_url is not None:
        yield None
        return
    per_worker = settings.pool_size + CONNECTIONS_BESIDE_READS
    # A worker and its successor run at the same time.
    connections = (settings.processes + 1) * per_worker + CONNECTIONS_BESIDE_WORKERS
    embedded = EmbeddedPostgres(settings.data_dir, settings={"max_connections": str(max(100, connections))})
    embedded.acquire()
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.stop()
        embedded.release()
