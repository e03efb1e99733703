"""The servers that are measured: their processes and CPU time, catalog, accounts and requests."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx2
import psycopg

from benchmarks import load
from benchmarks.conditions import describe, fresh_database

REFUSING = "http://127.0.0.1:9"
"""Where no provider listens."""
SECRET = "b0c47f2e91d65a3817fe04c9ab62d85e"
SERVE = [sys.executable, "-m", "holdfast", "serve"]
BODY = b'{"model":"gpu/image-1","input":{"prompt":"a lighthouse at dusk"}}'
SCHEMA = """{
  "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Prompt", "type": "object",
  "required": ["prompt"], "properties": {"prompt": {"type": "string", "maxLength": 2000}}
}"""
CATALOG = """
[catalog]
schema = 1
currency = "USD"
created = "2026-11-01"

[providers.gpu]
kind = "cog"
url = "{url}"
secret = "{secret}"
concurrency = {slots}

[[models]]
id = "gpu/image-1"
created = "2026-11-01"
modality = "image"
type = "async"
owned_by = "gpu"
capabilities = ["text_to_image"]
pricing = {{ mode = "per_image", unit = "image", unit_price = "0.012" }}
units = {{}}
upstream = {{ provider = "gpu", model = "instant" }}
input_schema = "prompt.json"
hosting = {{ content_types = ["image/png"] }}
deadlines = {{ dispatch_s = 3600 }}
"""


def service_settings(
    folder: Path, *, database_url: str, port: int, provider_url: str, slots: int
) -> dict[str, str]:
    """Write the catalog of a service whose provider is at ``provider_url``; return the service's environment."""
    catalog = folder / "catalog.toml"
    catalog.write_text(CATALOG.format(url=provider_url, secret=SECRET, slots=slots))
    (folder / "prompt.json").write_text(SCHEMA)
    return {
        "HOLDFAST_DATA_DIR": str(folder),
        "HOLDFAST_DATABASE_URL": database_url,
        "HOLDFAST_PORT": str(port),
        "HOLDFAST_CATALOG": str(catalog),
        "HOLDFAST_TASKS_IN_FLIGHT_MAX": "100000000",
        "HOLDFAST_OTP_PER_ORIGIN_HOUR": "100000",
    }


def peer_command(port: int, processes: int = 1) -> list[str]:
    """Return the command that starts the row-lock peer."""
    return [sys.executable, "-m", "benchmarks.row_lock_peer", str(port), str(processes)]


def peer_settings(folder: Path, *, database_url: str, port: int, provider_url: str) -> dict[str, str]:
    """Create the folder of the row-lock peer's outputs; return the peer's environment."""
    (folder / "peer").mkdir()
    return {
        "PEER_DATABASE_URL": database_url,
        "PEER_PROVIDER_URL": provider_url,
        "PEER_URL": f"http://127.0.0.1:{port}",
        "PEER_SECRET": SECRET,
        "PEER_FOLDER": str(folder / "peer"),
    }


def peer_keys(rows: psycopg.Connection, count: int) -> list[str]:
    """Create the row-lock peer's tables and the keys of ``count`` accounts."""
    # Imported here: the peer's libraries are needed only by what runs beside it.
    from benchmarks.row_lock_peer import TABLES

    rows.execute(TABLES)
    rows.execute("insert into peer_accounts select n, 1000000000000, 0 from generate_series(1, %s) n", (count,))
    rows.execute("insert into peer_keys select 'key' || n, n from generate_series(1, %s) n", (count,))
    return [f"key{n + 1}" for n in range(count)]


def creates(keys: Sequence[str]) -> list[bytes]:
    """Return a request to create a task for each key."""
    return [load.post("/v2/task/create", BODY, {"Authorization": f"Bearer {key}"}) for key in keys]


_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port that no other process is given; a server that binds with SO_REUSEADDR may listen on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])


def environment_without_settings() -> dict[str, str]:
    """Return the environment of this process without the service's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


@contextmanager
def process(
    command: list[str], url: str, environment: Mapping[str, str] = MappingProxyType({}), *, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it responds, and stop it at the end; with ``log`` its output goes there."""
    env = {**environment_without_settings(), **environment}
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        server = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    output.seek(0)
                    raise RuntimeError(output.read().decode())
                try:
                    if httpx2.get(url, timeout=2, trust_env=False).status_code < 500:
                        break
                except httpx2.HTTPError:
                    pass
                time.sleep(0.05)
            yield server
        finally:
            server.send_signal(signal.SIGCONT)  # it may be paused
            server.terminate()
            server.wait(60)


@contextmanager
def silent_provider() -> Iterator[str]:
    """Return the address of a provider that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


class Service(NamedTuple):
    """A service that runs, on a port of its own."""

    port: int
    process: subprocess.Popen[bytes]
    settings: Mapping[str, str]

    @property
    def base(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def one_service(
    options: argparse.Namespace, provider_url: str = REFUSING, *, models: str = "", **more: str
) -> Iterator[Service]:
    """Print the conditions, and run a service on a fresh database, with further ``models`` and settings."""
    port = free_port()
    with fresh_database() as (url, folder), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        print(describe(folder, options), flush=True)
        settings = service_settings(Path(name), database_url=url, port=port, provider_url=provider_url, slots=1)
        with Path(settings["HOLDFAST_CATALOG"]).open("a") as catalog:
            catalog.write(models)
        settings |= more
        with process(SERVE, f"http://127.0.0.1:{port}/readyz", settings) as server:
            yield Service(port, server, settings)


def api_keys(base: str, count: int, *, lots: int = 1, limit: dict[str, str] | None = None) -> list[str]:
    """Create the API keys of ``count`` new accounts with enough credit in so many lots, each key with the limit."""
    return [key for key, _ in owners(base, count, lots=lots, limit=limit)]


def owners(base: str, count: int, *, lots: int = 1, limit: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """Create such accounts; return the API key of each and its owner's session."""
    found = []
    with httpx2.Client(base_url=base, timeout=30, trust_env=False) as client:

        def post(path: str, body: dict[str, Any], token: str | None = None) -> Any:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = client.post(path, json=body, headers=headers)
            answer.raise_for_status()
            return answer.json()

        for number in range(count):
            email = f"bench{number}-{secrets.token_hex(4)}@example.com"
            sent = post("/v2/control/auth/otp", {"email": email})
            proof = {"email": email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
            token = post("/v2/control/auth/verify", proof)["session"]["token"]
            scopes = ["tasks:read", "tasks:write", "account:read"]
            named = {"name": "bench", "scopes": scopes, **({} if limit is None else {"limit": limit})}
            found.append((post("/v2/control/api-keys", named, token)["api_key"], token))
            for _ in range(lots):
                post("/v2/control/sandbox/recharge", {"amount": "10000"}, token)
    return found


def cpu_s(server: subprocess.Popen[bytes]) -> float:
    """Return the CPU seconds of a process and its descendants, without PostgreSQL."""
    ticks, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                name, _, rest = (folder / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
                fields, pid = rest.split(), int(folder.name)
                parents[pid] = int(fields[1])
                ticks[pid] = 0 if name == "postgres" else int(fields[11]) + int(fields[12])
    family = {server.pid}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")
