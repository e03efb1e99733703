"""The service's processes, restarted when they end, as by a process manager."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

RESTART_PAUSE_S = 0.05
STOP_S = 60.0


def reserve_port(owner: object) -> int:
    """Return a port of loopback that no other process is given for as long as ``owner`` exists.

    It is kept by a socket that is bound and does not listen. A server that binds with SO_REUSEADDR may listen on it
    nevertheless; meanwhile connections are refused.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    weakref.finalize(owner, held.close)
    return int(held.getsockname()[1])


def children_of(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    found: list[int] = []
    # The system lists them by the thread that started them.
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class Service:
    """One process of the service, or a parent with workers, on a port of its own. ``ends`` are unexpected exits."""

    name: str
    folder: Path
    settings: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files_max: int | None = None
    port: int = field(init=False)
    ends: list[str] = field(default_factory=list)
    kills: int = 0
    process: subprocess.Popen[bytes] | None = None
    _is_killed: bool = False

    def __post_init__(self) -> None:
        self.port = reserve_port(self)

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """Its log."""
        return self.folder / f"{self.name}.log"

    def full_environment(self) -> dict[str, str]:
        """Its environment, also for commands run beside it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        given = {"PORT": str(self.port), "LOG_FORMAT": "json", **self.settings}
        return {**inherited, **self.environment, **{f"HOLDFAST_{name}": value for name, value in given.items()}}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep it running until cancelled, then kill it."""
        try:
            while True:
                self._is_killed = False
                process = self._start()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                code = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
                if not self._is_killed:
                    self.ends.append(f"{self.name} ended by itself with exit code {code}; see {self.log_path}")
                await trio.sleep(RESTART_PAUSE_S)
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def kill(self) -> bool:
        """Kill the process, as a power cut would; returns whether there was one."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal that ends the process; returns whether there was one."""
        if self.process is None or self.process.poll() is not None or self._is_killed:
            return False
        self._is_killed = True
        self.kills += 1
        self.process.send_signal(number)
        return True

    def workers(self) -> list[int]:
        """Return the processes of its workers, if it is a parent."""
        if self.process is None:
            return []
        worker = b"holdfast.start.children.worker"
        return [pid for pid in children_of(self.process.pid) if worker in command_of(pid)]

    def send_to_worker(self, pid: int, number: int) -> None:
        """Send a signal to a worker that may have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            self.kills += number == signal.SIGKILL

    def count_logged(self, *texts: str) -> int:
        """Return how many lines of its log contain one of these texts."""
        lines = self.log_path.read_bytes().splitlines()
        return sum(any(text.encode() in line for text in texts) for line in lines)

    def _start(self) -> subprocess.Popen[bytes]:
        limit = self.files_max
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve"],
                env=self.full_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if limit is not None:
            # Before it has opened more than a few: it is still loading its modules.
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        return self.process

    async def command(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a holdfast command beside it; returns its exit code and output."""
        return await trio.run_process(
            [sys.executable, "-m", "holdfast", *words],
            env=self.full_environment(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
