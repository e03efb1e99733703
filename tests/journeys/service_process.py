"""The service as a process of its own, and a client of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from tests.clients import until
from tests.forked_processes import HOLDFAST, ForkedProcess, fork_process
from tests.fresh_clusters import create_data_folder
from torture.service import reserve_port

from holdfast.cluster.place_map import members_map
from holdfast.ledger.values import place_of
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import database_url_of

_SERVE = """
import sys
from holdfast.__main__ import main
sys.argv = ["holdfast", "serve"]
main()
"""
START_S = 120.0
STOP_S = 120.0
CALLBACK_SECRET = "callback-secret-for-the-journeys-0123456789"
OPERATOR_TOKEN = "operator-token-of-the-journeys-0123456789"
SERVER_KEY = "the-server-key-that-both-processes-have-0123456789"


def new_folder() -> Path:
    """Create a folder for one service."""
    # Not in pytest's folders: a service run by root runs its database as a user who cannot enter them.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-journey-"))
    folder.chmod(0o711)
    return folder


class Service:
    """One service process. ``settings`` are environment variables without their prefix.

    ``open_files``, set before the start, is the hard limit of open files it runs under. Without one it runs
    ``program``. Several processes and a limited one are run by ``python``.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.data_dir = folder / "var"
        self.log_path = folder / "service.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log_start = 0
        self.open_files: int | None = None
        self.program = _SERVE
        self.python = sys.executable
        generous = {
            "CALLBACK_SECRET": CALLBACK_SECRET,
            "OTP_PER_ORIGIN_HOUR": "100000",
            "OTP_RESEND_S": "0",
            "POOL_SIZE": "4",
        }
        given = {
            "PORT": str(reserve_port(self)),
            "DATA_DIR": str(self.data_dir),
            "LOG_FORMAT": "json",
            **generous,
            **settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment = {**inherited, **{f"HOLDFAST_{name}": value for name, value in given.items()}}

    @property
    def database_url(self) -> str:
        """The URL of its database."""
        url = self.environment.get("HOLDFAST_DATABASE_URL") or database_url_of(self.data_dir)
        assert url is not None, "the embedded database does not run"
        return url

    def start(self) -> None:
        """Start it, on the same port as before, and wait until it is ready."""
        self._launch()
        self._await_ready()

    def _launch(self) -> None:
        if not self.data_dir.exists() and "HOLDFAST_DATABASE_URL" not in self.environment:
            create_data_folder(self.data_dir)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self.log_path.touch()
        # A parent of processes imports little, and what is on another path may replace what a copy has imported.
        is_as_here = self.environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
        if self.open_files is None and "HOLDFAST_PROCESSES" not in self.environment and is_as_here:
            self.process = fork_process(
                self.program,
                python=sys.executable,
                modules=HOLDFAST,
                folder=Path.cwd(),
                environment=self.environment,
                out=self.log_path,
                err=self.log_path,
            )
            return
        limited = [] if self.open_files is None else ["sh", "-c", f'ulimit -n {self.open_files}; exec "$@"', "sh"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*limited, self.python, "-m", "holdfast", "serve"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            assert self.process.poll() is None, f"the service ended by itself:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"the service is not ready:\n{self.log_tail()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_S)

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def log_lines(self) -> list[dict[str, Any]]:
        """Return what it has logged since its last start."""
        lines = self.log_path.read_bytes()[self._log_start :].decode("utf-8", "replace").splitlines()
        found = []
        for line in lines:
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # half a line so far
        return found

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-30:])

    def faults(self) -> list[str]:
        """Return unexpected faults in its log: lines of level error and above."""
        return [str(line) for line in self.log_lines() if line.get("level") in {"error", "critical"}]

    def audit(self) -> list[str]:
        """Return the differences that an audit of its database finds."""
        with connected(self.database_url) as connection:
            return [f"{broken}: {what}" for broken, what in run_audit(connection).items()]

    @property
    def ops_url(self) -> str:
        """Where operators' pages and metrics are."""
        port = self.environment.get("HOLDFAST_OPS_PORT")
        return self.url if port is None else f"http://127.0.0.1:{port}"

    def metric(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        page = httpx2.get(f"{self.ops_url}/metrics", verify=False).raise_for_status()
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", page.text, re.MULTILINE)
        return sum(map(float, found))

    def owns(self, account_id: str) -> bool:
        """Whether an account is this member's, by the rows of those that are ready."""
        _, server = members_map(self.database_url, [place_of(account_id)]).split()
        return server == urlsplit(self.url).netloc

    def _is_ready(self) -> bool:
        started = [line for line in self.log_lines() if line.get("event") == "holdfast serves"]
        if not started:
            return False
        self.url = str(started[0]["url"])
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=60, verify=False).status_code == 200
        except httpx2.TransportError:
            return False


def start_together(services: Sequence[Service]) -> None:
    """Start services side by side, and wait until all are ready."""
    for service in services:
        service._launch()
    for service in services:
        service._await_ready()


async def until_linked(services: Sequence[Service]) -> None:
    """Wait until all members of one database own places, each by all the others."""

    async def are_linked() -> bool:
        return all(each.metric("holdfast_members") == len(services) for each in services)

    await until(are_linked)


@contextmanager
def running_service(folder: Path, **settings: str) -> Iterator[Service]:
    """Run a service in a folder that is deleted afterwards. It must stop with exit code 0."""
    service = Service(folder, **settings)
    try:
        service.start()
        yield service
        assert service.stop() == 0, service.log_tail()
    finally:
        if service.is_alive():
            service.kill()
        # The database of a killed service stops by itself, and removes its files meanwhile.
        shutil.rmtree(folder, ignore_errors=True)
