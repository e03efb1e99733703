"""The service as a process of its own, and a client of it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx2
import trio
from tests.fresh_clusters import create_data_folder

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import database_url_of

START_S = 120.0
STOP_S = 120.0
CALLBACK_SECRET = "callback-secret-for-the-journeys-0123456789"
OPERATOR_TOKEN = "operator-token-of-the-journeys-0123456789"
T = TypeVar("T")

ENDED = frozenset({"succeeded", "failed", "canceled"})
IMAGE = {"prompt": "a lighthouse at dusk", "width": 256, "height": 256}


class Totals(NamedTuple):
    """An account's credit."""

    balance: Decimal
    held: Decimal
    available: Decimal


def new_folder() -> Path:
    """Create a folder for one service."""
    # Not in pytest's folders: a service run by root runs its database as a user who cannot enter them.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-journey-"))
    folder.chmod(0o711)
    return folder


class Service:
    """One service process. ``settings`` are environment variables without their prefix.

    ``open_files``, set before the start, is the hard limit of open files it runs under.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.data_dir = folder / "var"
        self.log_path = folder / "service.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.open_files: int | None = None
        generous = {
            "CALLBACK_SECRET": CALLBACK_SECRET,
            "OTP_PER_ORIGIN_HOUR": "100000",
            "OTP_RESEND_S": "0",
            "POOL_SIZE": "4",
        }
        given = {"PORT": "0", "DATA_DIR": str(self.data_dir), "LOG_FORMAT": "json", **generous, **settings}
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
        limited = [] if self.open_files is None else ["sh", "-c", f'ulimit -n {self.open_files}; exec "$@"', "sh"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*limited, sys.executable, "-m", "holdfast", "serve"],
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
        self.environment["HOLDFAST_PORT"] = self.url.rpartition(":")[2]

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

    def metric(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        text = httpx2.get(f"{self.url}/metrics", verify=False).text
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", text, re.MULTILINE)
        return sum(map(float, found))

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


@dataclass
class Customer:
    """A client with an account, a session and an API key, on its own connections. Its tasks are of ``model``."""

    http: httpx2.AsyncClient
    model: str = "studio/image-1"
    email: str = field(default_factory=lambda: f"{secrets.token_hex(8)}@example.com")
    account_id: str = ""
    session: str = ""
    key: str = ""

    async def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: str | None = None,
        as_session: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send one request with the API key (or the session), and with an Idempotency-Key if given."""
        credential = self.session if as_session else self.key
        sent = dict(headers or {})
        if credential:
            sent["Authorization"] = f"Bearer {credential}"
        if key is not None:
            sent["Idempotency-Key"] = key
        return await self.http.request(method, path, json=json, headers=sent)

    async def sign_in(self) -> None:
        """Sign in with the code that development shows, and create an API key."""
        sent = ok(await self.http.post("/v2/control/auth/otp", json={"email": self.email}))
        proof = {"email": self.email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
        verified = ok(await self.http.post("/v2/control/auth/verify", json=proof))
        self.account_id, self.session = verified["account_id"], verified["session"]["token"]
        created = ok(await self.call("POST", "/v2/control/api-keys", {}, as_session=True))
        self.key = created["api_key"]

    async def recharge(self, amount: str, *, key: str | None = None) -> None:
        """Add sandbox credit."""
        path = "/v2/control/sandbox/recharge"
        ok(await self.call("POST", path, {"amount": amount}, key=key, as_session=True))

    async def create(
        self, model: str | None = None, *, key: str | None = None, **wanted: object
    ) -> httpx2.Response:
        """Create a task for a small image, or with other input."""
        body = {"model": model or self.model, "input": {**IMAGE, **wanted}}
        return await self.call("POST", "/v2/task/create", body, key=key)

    async def task(self, request_id: str) -> dict[str, Any]:
        """Read one of the account's tasks."""
        return ok(await self.call("GET", f"/v2/task/{request_id}"))

    async def tasks(self) -> dict[str, dict[str, Any]]:
        """Read all the account's tasks, by id."""
        found: dict[str, dict[str, Any]] = {}
        query = "?limit=100"
        while query:
            page = ok(await self.call("GET", f"/v2/task/list{query}"))
            found |= {task["request_id"]: task for task in page["data"]}
            query = f"?limit=100&cursor={page['next_cursor']}" if page["next_cursor"] else ""
        return found

    async def totals(self) -> Totals:
        """Read the account's credit."""
        account = ok(await self.call("GET", "/v2/control/account", as_session=True))
        return Totals(*(Decimal(account[name]) for name in ("balance", "held_total", "available_balance")))

    async def all_ended(self, *, within_s: float = 120.0) -> dict[str, dict[str, Any]]:
        """Wait until all the account's tasks have ended, and return them."""

        async def ended() -> dict[str, dict[str, Any]] | None:
            tasks = await self.tasks()
            return tasks if all(task["status"] in ENDED for task in tasks.values()) else None

        return await until(ended, within_s=within_s)


def loopback_client(**options: Any) -> httpx2.AsyncClient:
    """Return a client for plain HTTP, without CA certificates, whose loading takes longer than the requests."""
    return httpx2.AsyncClient(verify=False, **options)


def ok(response: httpx2.Response) -> dict[str, Any]:
    """Return the body of a response that must be a success."""
    assert response.status_code == 200, f"{response.request.url.path}: {response.status_code} {response.text}"
    body: dict[str, Any] = response.json()
    return body


def code_of(response: httpx2.Response) -> str:
    """Return the error code of a response that must be an error."""
    assert response.status_code >= 400, response.text
    return str(response.json()["error"]["code"])


async def until(find: Callable[[], Awaitable[T | None]], *, within_s: float = 60.0) -> T:
    """Poll ``find`` until it returns a true value, and return that."""
    with trio.fail_after(within_s):
        while True:
            found = await find()
            if found:
                return found
            await trio.sleep(0.05)
