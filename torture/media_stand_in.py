"""The harness's media provider: it implements the Cog protocol and signs its callbacks in our format.

The prompt decides each job's outcome. The provider can be silent, repeat its messages, be late and truncate its
responses. It shares no code with the service.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import h11
import httpx2
import trio

IMAGE, IMAGE_PRICE_MICRO = "stand-in/image", 30_000
LINK, LINK_PRICE_MICRO = "stand-in/link", 50_001
SECRET = "secret-of-the-media-stand-in-0123456789abcdef"
BODY_BYTES_MAX = 1024 * 1024
CALLBACK_PAUSE_S = 0.2
CALLBACK_TRIES_MAX = 150

Mode = Literal["prompt", "silent", "doubled", "late", "cut"]

CATALOG = """
[catalog]
schema = 1
created = "2026-11-01"

[providers.stand-in]
kind = "cog"
polls = true
url = "{url}"
secret = "{secret}"
concurrency = 64
submit_timeout_s = 3

[defaults]
modality = "image"
type = "async"
created = "2026-11-01"
upstream = {{ provider = "stand-in" }}
deadlines = {{ dispatch_s = 600, run_s = 600, silence_s = 1, overall_s = 1200 }}

[[models]]
id = "stand-in/image"
pricing = {{ mode = "per_image", unit_price = "0.03" }}
units = {{ n = "n" }}
hosting = {{ content_types = ["image/png"], bytes_max = 1048576 }}
[models.input_schema]
type = "object"
required = ["prompt"]
[models.input_schema.properties]
prompt = {{ type = "string" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}

[[models]]
id = "stand-in/link"
pricing = {{ mode = "per_request", unit_price = "0.050001" }}
hosting = {{ mode = "passthrough" }}
[models.input_schema]
type = "object"
required = ["prompt"]
[models.input_schema.properties]
prompt = {{ type = "string" }}
"""


def picture(shade: int) -> bytes:
    """Return a small PNG; each shade from 0 to 255 gives a different one."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + bytes([shade]) * 4 for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


async def _receive(wire: h11.Connection, stream: trio.SocketStream) -> tuple[str, str, bytes] | None:
    """Read a request as method, path and body; None at the end of the connection."""
    method, path, body = "", "", b""
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Request):
            method, path = event.method.decode(), event.target.decode()
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            return (method, path, body) if isinstance(event, h11.EndOfMessage) else None


@dataclass(slots=True)
class Job:
    """One job: its planned outcome and its state."""

    name: str
    request_id: str
    attempt: int
    will_fail: bool
    pictures: int
    status: str = "starting"


@dataclass
class MediaStandIn:
    """The provider. ``clock_offset_s`` is how far the service's clock is from ours; signatures follow it."""

    rng: random.Random
    mode: Mode = "prompt"
    url: str = ""
    clock_offset_s: int = 0
    addresses: Callable[[], list[str]] = field(default=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    _nursery: trio.Nursery | None = None
    _http: httpx2.AsyncClient | None = None
    _spoke: trio.Event = field(default_factory=trio.Event)

    def write_catalog(self, folder: Path) -> Path:
        """Write a catalog with its two models."""
        path = folder / "catalog.toml"
        path.write_text(CATALOG.format(url=self.url, secret=SECRET))
        return path

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve on loopback until cancelled."""
        limits = httpx2.Limits(max_connections=64, max_keepalive_connections=16)
        http = httpx2.AsyncClient(verify=False, timeout=10, limits=limits, trust_env=False)
        async with http as self._http, trio.open_nursery() as self._nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            task_status.started()
            await trio.serve_listeners(self._connection, listeners)

    def set_mode(self, mode: Mode) -> None:
        """Set the mode; jobs held back while silent continue."""
        self.mode = mode
        self._spoke.set()
        self._spoke = trio.Event()

    async def _connection(self, stream: trio.SocketStream) -> None:
        try:
            await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            return

    async def _serve(self, stream: trio.SocketStream) -> None:
        wire = h11.Connection(h11.SERVER)
        while (request := await _receive(wire, stream)) is not None:
            status, content_type, content = self._answer(*request)
            await self._wait_while_silent()
            if self.mode == "late":
                await trio.sleep(self.rng.uniform(0, 1.5))
            if self.mode == "cut" and self.rng.random() < 0.5:
                return
            headers = [("Content-Type", content_type), ("Content-Length", str(len(content)))]
            head = wire.send(h11.Response(status_code=status, headers=headers)) or b""
            body = wire.send(h11.Data(data=content)) or b""
            await stream.send_all(head + body + (wire.send(h11.EndOfMessage()) or b""))
            if wire.our_state is h11.MUST_CLOSE:
                return
            wire.start_next_cycle()

    async def _wait_while_silent(self) -> None:
        while self.mode == "silent":
            await self._spoke.wait()

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Handle a request; returns status, content type and content."""
        if path.startswith("/files/"):
            return 200, "image/png", picture(zlib.crc32(path.encode()) % 256)
        name, _, action = path.removeprefix("/predictions/").partition("/")
        if method == "PUT":
            self._take(name, json.loads(body))
        job = self.jobs.get(name)
        if job is None:
            return 404, "application/json", b'{"detail": "unknown"}'
        if action == "cancel" and job.status not in {"succeeded", "failed"}:
            job.status = "canceled"
        found: dict[str, Any] = {"id": name, "status": job.status}
        if job.status == "succeeded":
            found["output"] = self._outputs(job)
        if job.status == "failed":
            found["error"] = "as asked for"
        return 201 if method == "PUT" else 200, "application/json", json.dumps(found).encode()

    def _take(self, name: str, order: dict[str, Any]) -> None:
        if name in self.jobs or self._nursery is None:
            return
        asked, client = order["input"], order["client"]
        will_fail = asked["prompt"].endswith("fail")
        job = Job(name, client["request_id"], client["attempt"], will_fail, asked.get("n", 1))
        self.jobs[name] = job
        self._nursery.start_soon(self._make, job)

    async def _make(self, job: Job) -> None:
        """Run the job and send its callbacks as the current mode says."""
        await trio.sleep(self.rng.uniform(0.01, 0.15))
        if job.status == "canceled":
            return
        if self.rng.random() < 0.3:
            job.status = "processing"
            await self._tell(job, 1)
            await trio.sleep(self.rng.uniform(0, 0.1))
        await self._wait_while_silent()
        if self.mode == "late":
            await trio.sleep(self.rng.uniform(0.5, 3))
        if job.status == "canceled":
            return
        job.status = "failed" if job.will_fail else "succeeded"
        if self.mode == "cut":
            return  # It is asked how the job stands.
        for _ in range(self.rng.randint(2, 3) if self.mode == "doubled" else 1):
            assert self._nursery is not None
            self._nursery.start_soon(self._tell, job, 2)

    async def _tell(self, job: Job, sequence: int) -> None:
        """Send a callback until it is accepted or finally refused."""
        payload: dict[str, Any] = {
            "event_id": f"{job.name}-{job.status}",
            "provider": "stand-in",
            "request_id": job.request_id,
            "attempt": job.attempt,
            "status": job.status,
            "sequence": sequence,
        }
        if job.status == "succeeded":
            payload["outputs"] = [{"url": url, "content_type": "image/png"} for url in self._outputs(job)]
        if job.status == "failed":
            payload["error"] = {"message": "as asked for"}
        body = json.dumps(payload).encode()
        assert self._http is not None
        for _ in range(CALLBACK_TRIES_MAX):
            at = str(int(time.time()) + self.clock_offset_s)
            digest = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
            headers = {
                "X-Callback-Signature": f"k=stand-in,t={at},v1={digest}",
                "Content-Type": "application/json",
            }
            addresses = self.addresses()
            try:
                url = self.rng.choice(addresses) + "/v2/callback"
                answer = await self._http.post(url, content=body, headers=headers)
            except (httpx2.TransportError, IndexError):
                answer = None
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                return
            await trio.sleep(CALLBACK_PAUSE_S * self.rng.uniform(0.5, 1.5))

    def _outputs(self, job: Job) -> list[str]:
        return [f"{self.url}/files/{job.name}-{place}.png" for place in range(job.pictures)]
