"""A deployment: the service's processes, their database, emulated providers, and clients.

Each kind of deployment lets other faults happen:

- ``embedded``: one process with its embedded database
- ``server``: one process, a PostgreSQL of its own, reached through a proxy
- ``processes``: three processes on one PostgreSQL, reached through a proxy
- ``workers``: a parent with its embedded database, and two workers below it
- ``pair``: one process, a PostgreSQL with a synchronous standby, a URL that names both
- ``patroni``: two processes, a PostgreSQL on each of three machines, which Patroni and etcd watch
- ``disk``: embedded, everything on a small file system of its own
- ``files``: embedded, and few files may be open
- ``clock``: embedded, and the service's clock can be moved
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote

import httpx2
import trio

from .card_stand_in import CardStandIn
from .clients import Customer
from .media_stand_in import MediaStandIn
from .patroni import PatroniCluster, missing
from .postgres import PostgresServer, await_end, postmaster_of
from .proxy import Proxy
from .record import AccountRecord, Witness
from .sender import Sender
from .service import Service

DeploymentKind = Literal["embedded", "server", "processes", "workers", "pair", "patroni", "disk", "files", "clock"]
KINDS: tuple[DeploymentKind, ...] = get_args(DeploymentKind)

PROCESSES = {"processes": 3, "patroni": 2}
WORKERS = 2
ACCOUNTS = 2
CLIENTS_PER_ACCOUNT = 4
DISK_MIB = 512
FILES_MAX = 320
RECOVERY_S_MAX = 90.0
PROBE_PAUSE_S = 0.03
FIRST_CREDITS = 1000
OPERATOR_TOKEN = "operator-token-of-the-torture-harness-0123456789"

FAKETIME = (
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib64/faketime/libfaketimeMT.so.1"),
)


class NotPossible(Exception):
    """This machine lacks a requirement of a deployment; the message names it."""


class NotRecovered(Exception):
    """The service did not recover in time; the message says how it responded."""


@dataclass
class Deployment:
    """One running deployment.

    ``clock_offset_s`` is how far the service's clock has been moved; ``recovery_s`` is set by a fault that measured
    by itself how long the service took to answer again.
    """

    kind: DeploymentKind
    folder: Path
    witness: Witness
    media: MediaStandIn
    card: CardStandIn
    http: httpx2.AsyncClient
    services: list[Service] = field(default_factory=list)
    database: PostgresServer | None = None
    standby: PostgresServer | None = None
    cluster: PatroniCluster | None = None
    proxy: Proxy | None = None
    customers: list[Customer] = field(default_factory=list)
    clock_offset_s: int = 0
    recovery_s: float | None = None

    @property
    def embedded_pgdata(self) -> Path:
        """The folder of the embedded database."""
        return self.folder / "var" / "postgres"

    @property
    def pgdata(self) -> Path:
        """The folder of the database that accepts writes."""
        return self.embedded_pgdata if self.database is None else self.database.pgdata

    def database_url(self) -> str:
        """The URL of the database for the harness."""
        if self.database is not None:
            return self.database.url
        if self.cluster is not None:
            return self.cluster.url
        # Its socket is where its pid file says.
        lines = (self.embedded_pgdata / "postmaster.pid").read_text().splitlines()
        return f"postgresql://postgres@/holdfast?host={quote(lines[4], safe='')}&port=5432"

    def addresses(self) -> list[str]:
        """The service's URLs."""
        return [service.url for service in self.services]

    def kills(self) -> int:
        """The number of kills of service processes."""
        return sum(service.kills for service in self.services)

    def exits(self) -> list[str]:
        """Unexpected exits of the service."""
        return [end for service in self.services for end in service.ends]

    def move_clock(self, offset_s: int) -> None:
        """Set the offset of the service's clock."""
        (self.folder / "clock").write_text(f"{offset_s:+d}s\n")
        self.clock_offset_s = self.media.clock_offset_s = offset_s

    async def first_answers(self, since: float) -> float:
        """Return the seconds from ``since`` until every process has answered a read of the database with 200.

        Raises :class:`NotRecovered`.
        """
        headers = {"Authorization": f"Bearer {self.customers[0].sessions[0]}"} if self.customers else {}
        path = "/v2/control/account" if self.customers else "/readyz"
        return await self._first_200s(
            since, lambda service: self.http.get(service.url + path, headers=headers, timeout=15)
        )

    async def first_writes(self, since: float) -> float:
        """Return the seconds from ``since`` until every process has committed a change.

        Raises :class:`NotRecovered`.
        """

        def write(service: Service) -> Awaitable[httpx2.Response]:
            email = {"email": f"{service.name}@example.com"}
            return self.http.post(f"{service.url}/v2/control/auth/otp", json=email, timeout=15)

        return await self._first_200s(since, write)

    async def _first_200s(self, since: float, send: Callable[[Service], Awaitable[httpx2.Response]]) -> float:
        seen = ""
        for service in self.services:
            while True:
                try:
                    answer = await send(service)
                    seen = f"{answer.status_code} {answer.text[:200]}"
                    if answer.status_code == 200:
                        break
                except httpx2.TransportError as fault:
                    seen = repr(fault)
                if trio.current_time() - since > RECOVERY_S_MAX:
                    raise NotRecovered(f"{service.name} answers {seen} {RECOVERY_S_MAX:.0f} s after the fault")
                await trio.sleep(PROBE_PAUSE_S)
        return trio.current_time() - since

    async def reject_reviews(self) -> None:
        """Reject every open review as an operator; otherwise they stay open for a day."""
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        with contextlib.suppress(httpx2.TransportError):
            answer = await self.http.get(f"{self.services[0].url}/ops/api/reviews?limit=100", headers=headers)
            for review in answer.json()["data"] if answer.status_code == 200 else ():
                url = f"{self.services[0].url}/ops/api/reviews/{review['review_case_id']}/reject"
                await self.http.post(url, headers=headers)

    async def new_customers(self, rng: random.Random) -> None:
        """Create new accounts with credit; earlier ones stay as they are."""
        self.witness.accounts.clear()
        self.customers.clear()
        for _ in range(ACCOUNTS):
            record = AccountRecord(f"{rng.getrandbits(64):016x}@example.com")
            sender = Sender(self.witness, self.addresses, rng, self.http)
            customer = Customer(sender, record, self.card, OPERATOR_TOKEN)
            await customer.sign_in()
            await customer.recharge_first(FIRST_CREDITS)
            self.witness.accounts.append(record)
            self.customers.append(customer)

    @contextlib.asynccontextmanager
    async def clients(self, rng: random.Random) -> AsyncIterator[None]:
        """Run clients of all accounts; their gates control when they work."""
        async with trio.open_nursery() as nursery:
            for customer in self.customers:
                for _ in range(CLIENTS_PER_ACCOUNT):
                    nursery.start_soon(customer.work, random.Random(rng.getrandbits(64)))
            yield
            nursery.cancel_scope.cancel()

    def open_gates(self) -> None:
        """Let clients start new operations."""
        for customer in self.customers:
            customer.gate.set()

    async def close_gates(self) -> None:
        """Let clients finish running operations, which may take until the service is back.

        Raises :class:`NotRecovered` where some are still without an answer after a while.
        """
        for customer in self.customers:
            customer.gate = trio.Event()
        with trio.move_on_after(RECOVERY_S_MAX) as scope:
            for customer in self.customers:
                await customer.until_idle()
        if scope.cancelled_caught:
            raise NotRecovered(f"requests are not answered {RECOVERY_S_MAX:.0f} s after the service was back")


@contextlib.asynccontextmanager
async def deploy(
    kind: DeploymentKind, folder: Path, witness: Witness, rng: random.Random
) -> AsyncIterator[Deployment]:
    """Start a deployment of this kind in a new folder, and end all of it afterwards; the folder stays.

    Raises groups of :class:`NotPossible`, :class:`NotRecovered` and :class:`~torture.clients.NotSignedIn`.
    """
    with contextlib.ExitStack() as stack:
        if kind == "disk":
            stack.enter_context(_small_disk(folder / "var"))
        limits = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
        async with httpx2.AsyncClient(verify=False, timeout=30, limits=limits, trust_env=False) as http:
            media = MediaStandIn(random.Random(rng.getrandbits(64)))
            deployment = Deployment(kind, folder, witness, media, CardStandIn(folder / "card"), http)
            media.addresses = deployment.addresses
            deployment.card.addresses = deployment.addresses
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(media.run)
                    await nursery.start(deployment.card.run)
                    await _start_database(deployment, nursery)
                    _make_services(deployment)
                    for service in deployment.services:
                        await nursery.start(service.run)
                    await deployment.first_answers(trio.current_time())
                    await deployment.new_customers(rng)
                    yield deployment
                finally:
                    nursery.cancel_scope.cancel()
                    for server in (deployment.standby, deployment.database, deployment.cluster):
                        if server is not None:
                            await _shielded_stop(server)
        await _await_embedded_end(deployment)


def new_folder(kind: DeploymentKind) -> Path:
    """Create a folder that the database's user can enter."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-torture-{kind}-"))
    folder.chmod(0o755)
    (folder / "card").mkdir()
    return folder


async def _shielded_stop(server: PostgresServer | PatroniCluster) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(server.stop, "immediate")


async def _await_embedded_end(deployment: Deployment) -> None:
    """Wait for the embedded server to end after its service was killed, then delete its folder."""
    pid = postmaster_of(deployment.embedded_pgdata)
    if pid is not None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(await_end, [pid])


async def _start_database(deployment: Deployment, nursery: trio.Nursery) -> None:
    if deployment.kind == "patroni":
        if lacking := missing():
            raise NotPossible(f"machines for Patroni: {lacking}")
        deployment.cluster = PatroniCluster(deployment.folder)
        await trio.to_thread.run_sync(deployment.cluster.create)
    if deployment.kind not in {"server", "processes", "pair"}:
        return
    deployment.database = PostgresServer(deployment.folder / "first")
    await trio.to_thread.run_sync(deployment.database.create)
    if deployment.kind == "pair":
        deployment.standby = PostgresServer(deployment.folder / "second")
        await trio.to_thread.run_sync(deployment.standby.clone, deployment.database)
        return
    deployment.proxy = Proxy(deployment.database.port)
    await nursery.start(deployment.proxy.run)


def _make_services(deployment: Deployment) -> None:
    kind, folder = deployment.kind, deployment.folder
    # A clock that is moved makes deadlines pass; elsewhere none does while a fault lasts.
    catalog = deployment.media.write_catalog(folder)
    settings = {
        "DATA_DIR": str(folder / "var"),
        "CATALOG": str(catalog),
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        "OTP_RESEND_S": "0",
        "OTP_PER_EMAIL_HOUR": "100000",
        "OTP_PER_ORIGIN_HOUR": "100000",
        "POOL_SIZE": "4",
        **deployment.card.settings(),
    }
    environment: dict[str, str] = {}
    if deployment.database is not None or deployment.cluster is not None:
        settings["DATABASE_URL"] = _database_setting(deployment)
    if kind == "clock":
        environment = _moved_clock(folder)
        settings["CLOCK_OFF_MAX_S"] = "1000000"  # it may be started while it is moved
        deployment.move_clock(0)
    if kind == "workers":
        settings["PROCESSES"] = str(WORKERS)
    for number in range(PROCESSES.get(kind, 1)):
        limit = FILES_MAX if kind == "files" else None
        deployment.services.append(Service(f"service-{number}", folder, settings, environment, limit))


def _database_setting(deployment: Deployment) -> str:
    if deployment.cluster is not None:
        return deployment.cluster.url
    assert deployment.database is not None
    if deployment.standby is not None:
        ports = (deployment.database.port, deployment.standby.port)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres@{hosts}/holdfast?target_session_attrs=read-write"
    assert deployment.proxy is not None
    return f"postgresql://postgres@127.0.0.1:{deployment.proxy.port}/holdfast"


def _moved_clock(folder: Path) -> dict[str, str]:
    library = next((path for path in FAKETIME if path.exists()), None)
    if library is None:
        raise NotPossible("moving the clock needs libfaketime (Debian: apt install faketime)")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_CACHE_DURATION": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    folder.chmod(0o755)
    mount = shutil.which("mount")
    options = f"size={DISK_MIB}m,mode=755"
    words = ["-t", "tmpfs", "-o", options, "holdfast-torture", str(folder)]
    if mount is None or subprocess.run([mount, *words], capture_output=True, check=False).returncode != 0:
        raise NotPossible("a full disk needs the right to mount a small file system (root)")
    try:
        yield
    finally:
        # A killed service's files are closed with it; the mount is removed when no process uses it.
        subprocess.run([shutil.which("umount") or "umount", "-l", str(folder)], check=False)
