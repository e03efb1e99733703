"""A media provider whose responses and files a test scripts.

A job is recognised by its prompt, so a scenario sets its script before it creates its task. A response is a
function of the exchange; several may be given for one path, to be used in turn.
"""

from __future__ import annotations

import base64
import io
import json
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image
from tests.threaded_server import serving

from holdfast.providers.signatures import sign

NAME = "scripted"
SECRET = "scripted-provider-secret-0123456789abcdef"
OLD_SECRET = "scripted-provider-secret-of-last-year-0123"
NARROW_NAME = "narrow"
OTHER_NAME = "other"
OTHER_SECRET = "other-provider-secret-0123456789abcdefghi"
FILE_BYTES_MAX = 1024 * 1024
POUR_BLOCK_BYTES = 64 * 1024

_MODELS = (
    "image", "clip", "timed", "doubted", "link", "hasty", "doubtful", "gone", "brief", "polled", "storing",
    "narrow",
)  # fmt: skip
IMAGE, CLIP, TIMED, DOUBTED, LINK, HASTY, DOUBTFUL, GONE, BRIEF, POLLED, STORING, NARROW = (
    f"hand/{name}" for name in _MODELS
)

CATALOG = """
[catalog]
schema = 1
created = "2026-11-01"

[providers.scripted]
kind = "cog"
polls = true
url = "{url}"
secret = "{secret}"
previous_secrets = ["{old_secret}"]
concurrency = 1000
submit_timeout_s = 5

[providers.narrow]
kind = "cog"
url = "{url}"
secret = "{secret}"
concurrency = 1

[providers.other]
kind = "cog"
url = "{other_url}"
secret = "{other_secret}"

[providers.gone]
kind = "cog"
url = "{gone_url}"
secret = "{other_secret}"

[defaults]
modality = "image"
type = "async"
created = "2026-11-01"
pricing = {{ mode = "per_image", unit_price = "1.00" }}
units = {{ n = "n" }}
hosting = {{ content_types = ["image/png"], bytes_max = {bytes_max} }}

[defaults.input_schema]
type = "object"
required = ["prompt"]
[defaults.input_schema.properties]
prompt = {{ type = "string" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}

[[models]]
id = "hand/image"
upstream = {{ provider = "scripted" }}

[[models]]
id = "hand/clip"
upstream = {{ provider = "scripted" }}
pricing = {{ mode = "per_second", unit_price = "0.10" }}
units = {{ seconds = "seconds" }}
[models.input_schema]
type = "object"
[models.input_schema.properties]
prompt = {{ type = "string" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}
seconds = {{ type = "integer", minimum = 1, maximum = 10, default = 10 }}

[[models]]
id = "hand/timed"
upstream = {{ provider = "scripted" }}
pricing = {{ mode = "per_second", unit_price = "0.10" }}
units = {{ seconds = "seconds", typical = 4 }}
hosting = {{ content_types = ["audio/wav", "video/webm", "video/mp4"] }}
[models.input_schema]
type = "object"
[models.input_schema.properties]
prompt = {{ type = "string" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}
seconds = {{ type = "integer", minimum = 1, maximum = 90 }}

[[models]]
id = "hand/doubted"
upstream = {{ provider = "scripted" }}
pricing = {{ mode = "per_second", unit_price = "0.10" }}
units = {{ seconds = "seconds", typical = 4 }}
hosting = {{ content_types = ["audio/wav"] }}
charge = {{ tolerance_percent = 10, on_mismatch = "review" }}
[models.input_schema]
type = "object"
[models.input_schema.properties]
prompt = {{ type = "string" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}
seconds = {{ type = "integer", minimum = 1, maximum = 90 }}

[[models]]
id = "hand/link"
upstream = {{ provider = "scripted" }}
hosting = {{ mode = "passthrough" }}

[[models]]
id = "hand/hasty"
upstream = {{ provider = "scripted" }}
deadlines = {{ run_s = 1, silence_s = 1 }}

[[models]]
id = "hand/doubtful"
upstream = {{ provider = "scripted" }}
deadlines = {{ dispatch_s = 1 }}

[[models]]
id = "hand/gone"
upstream = {{ provider = "gone" }}
deadlines = {{ dispatch_s = 1 }}

[[models]]
id = "hand/narrow"
upstream = {{ provider = "narrow" }}

[[models]]
id = "hand/brief"
upstream = {{ provider = "scripted" }}
deadlines = {{ review_s = 1 }}

[[models]]
id = "hand/polled"
upstream = {{ provider = "scripted" }}
deadlines = {{ silence_s = 1 }}

[[models]]
id = "hand/storing"
upstream = {{ provider = "scripted" }}
deadlines = {{ hosting_s = 1, overall_s = 6 }}
"""


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "teal").save(file, "PNG")
    return file.getvalue()


PICTURE = _picture()


class Exchange(BaseHTTPRequestHandler):
    """One request and its response."""

    server: _Server

    def do_GET(self) -> None:
        """Let the server find the response."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.answer(self)(self)

    def do_PUT(self) -> None:
        """Handle it like the others."""
        self.do_GET()

    def do_POST(self) -> None:
        """Handle it like the others."""
        self.do_GET()

    def begin(self, status: int, **headers: object) -> None:
        """Send a status and headers; underscores in header names stand for hyphens."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


Answer: TypeAlias = Callable[[Exchange], None]


class _Server(ThreadingHTTPServer):
    """A server that hands each exchange to ``answer`` and ignores lost connections."""

    request_queue_size = 256
    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Callable[[Exchange], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answer = answer
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def _served(answer: Callable[[Exchange], Answer]) -> Iterator[_Server]:
    server = _Server(answer)
    with serving(server):
        try:
            yield server
        finally:
            server.is_over.set()


# --------------------------------------------------------------------------------------------------------- files


def noise(side: int) -> bytes:
    """Return a picture that does not compress."""
    file = io.BytesIO()
    Image.effect_noise((side, side), 90).save(file, "PNG")
    return file.getvalue()


def data_url(content: bytes) -> str:
    """Return a picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


# ------------------------------------------------------------------------------------------------------- answers


def says(status: int, body: bytes | object, content_type: str = "application/json", **headers: object) -> Answer:
    """Respond with a whole body; anything but bytes is rendered as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(exchange: Exchange) -> None:
        exchange.begin(status, **{"Content_Type": content_type, "Content_Length": len(content), **headers})
        exchange.wfile.write(content)

    return answer


def prediction(status: str, **fields: object) -> Answer:
    """Respond with a prediction of this status."""
    return says(200, {"status": status, **fields})


def finished(*names: object, **fields: object) -> Answer:
    """Respond with a succeeded prediction with these outputs."""
    return prediction("succeeded", output=list(names), **fields)


def is_file(content: bytes, content_type: str = "image/png", **headers: object) -> Answer:
    """Respond with a file."""
    return says(200, content, content_type, **headers)


def hangs(exchange: Exchange) -> None:
    """Never respond."""
    exchange.server.is_over.wait()


def cuts(exchange: Exchange) -> None:
    """Close the connection without a response."""
    exchange.connection.shutdown(socket.SHUT_RDWR)


def waits(gate: threading.Event, answer: Answer) -> Answer:
    """Respond once the test opens the gate."""

    def held(exchange: Exchange) -> None:
        while not gate.wait(0.05) and not exchange.server.is_over.is_set():
            pass
        answer(exchange)

    return held


def in_turn(*answers: Answer) -> Answer:
    """Respond to each request with the next answer; the last one repeats."""
    left = list(answers)

    def answer(exchange: Exchange) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return answer


def drips(every_s: float) -> Answer:
    """Respond with a file whose end comes byte by byte."""

    def answer(exchange: Exchange) -> None:
        exchange.begin(200, Content_Type="image/png", Content_Length=len(PICTURE) + 10_000)
        exchange.wfile.write(PICTURE)
        while not exchange.server.is_over.wait(every_s):
            exchange.wfile.write(b"\0")

    return answer


def pours(size_bytes: int, poured: list[int], *, declared: bool) -> Answer:
    """Respond with a file of that size, with or without Content-Length; ``poured`` receives the bytes sent."""

    def answer(exchange: Exchange) -> None:
        sent, block = 0, bytes(POUR_BLOCK_BYTES)
        exchange.protocol_version = "HTTP/1.1"
        length = {"Content_Length": size_bytes} if declared else {"Transfer_Encoding": "chunked"}
        exchange.begin(200, Content_Type="image/png", **length)
        try:
            while sent < size_bytes:
                exchange.wfile.write(block if declared else b"%x\r\n%b\r\n" % (len(block), block))
                sent += len(block)
        finally:
            poured.append(sent)

    return answer


def redirects(location: str) -> Answer:
    """Respond with a redirect."""
    return says(302, b"", "text/plain", Location=location)


TAKEN = says(201, {"status": "starting"})
WORKING = prediction("processing")
STOPPED = prediction("canceled")


# ------------------------------------------------------------------------------------------------------ provider


@dataclass
class Script:
    """The responses for one scenario's jobs: to the submission, to polls, to a cancel."""

    put: Answer = TAKEN
    get: Answer = WORKING
    cancel: Answer = STOPPED


@dataclass
class ScriptedProvider:
    """The provider's address, its scripts, and the requests it received.

    ``calls`` has a line for each call about a job; ``visits`` one for each request at the other listeners, of
    which one is another configured provider (``other_url``) and one is not configured (``trap_url``).
    """

    url: str
    other_url: str
    trap_url: str
    gone_url: str
    scripts: dict[str, Script] = field(default_factory=dict)
    files: dict[str, Answer] = field(default_factory=dict)
    scenarios: dict[str, str] = field(default_factory=dict)
    calls: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    visits: list[str] = field(default_factory=list)

    def write_catalog(self, folder: Path) -> Path:
        """Write a catalog of models for all kinds of trouble, most at 1.00 per picture."""
        path = folder / "catalog.toml"
        text = CATALOG.format(
            url=self.url,
            secret=SECRET,
            old_secret=OLD_SECRET,
            other_url=self.other_url,
            other_secret=OTHER_SECRET,
            gone_url=self.gone_url,
            bytes_max=FILE_BYTES_MAX,
        )
        path.write_text(text)
        return path

    def file(self, name: str, answer: Answer | None = None) -> str:
        """Return the URL of a file with this response; by default a small picture."""
        self.files[f"/files/{name}"] = answer or is_file(PICTURE)
        return f"{self.url}/files/{name}"

    def answer(self, exchange: Exchange) -> Answer:
        """Find the scenario's response."""
        if exchange.path.startswith("/files/"):
            return self.files.get(exchange.path, says(404, {}))
        job, _, action = exchange.path.removeprefix("/predictions/").partition("/")
        if exchange.command == "PUT":
            self.scenarios[job] = json.loads(exchange.body)["input"]["prompt"]
        script = self.scripts.get(self.scenarios.get(job, ""))
        self.calls[job].append(action or exchange.command)
        if script is None:
            return says(404, {})
        if action == "cancel":
            return script.cancel
        return script.put if exchange.command == "PUT" else script.get


def signed(body: bytes, *, name: str | None = NAME, secret: str = SECRET) -> dict[str, str]:
    """Return the headers of a signed callback."""
    header = sign(secret, body, at=int(time.time()), key_name=name)
    return {"X-Callback-Signature": header, "Content-Type": "application/json"}


@contextmanager
def scripted_provider() -> Iterator[ScriptedProvider]:
    """Run the provider on loopback, with two listeners that must not be called and an unused address."""

    def visited(exchange: Exchange) -> Answer:
        provider.visits.append(f"{exchange.command} {exchange.headers.get('Host')}{exchange.path}")
        return is_file(PICTURE)

    def other_visited(exchange: Exchange) -> Answer:
        # Only the health probe of a configured provider may come here.
        return says(200, {}) if exchange.path == "/health-check" else visited(exchange)

    with ExitStack() as stack:
        main = stack.enter_context(_served(lambda exchange: provider.answer(exchange)))  # noqa: PLW0108 - bound late
        other, trap = (stack.enter_context(_served(answer)) for answer in (other_visited, visited))
        # Bound and not listening: connections are refused, and no other process can take the port.
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        gone_url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        provider = ScriptedProvider(main.url, other.url, trap.url, gone_url)
        yield provider
