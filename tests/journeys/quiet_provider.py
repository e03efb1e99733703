"""A media provider that accepts every job and sends nothing: the test sends its callbacks.

Its answers can be held back: a request that comes to a shut gate has had its effect and is not answered.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image
from tests.threaded_server import serving

from holdfast.providers.signatures import sign

MODEL = "quiet/image-1"
SECRET = "quiet-provider-secret-0123456789abcdef"
HELD_MAX_S = 60.0

CATALOG = """
[catalog]
schema = 1
created = "2026-11-01"

[providers.quiet]
kind = "cog"
url = "{url}"
secret = "{secret}"
concurrency = {concurrency}

[[models]]
id = "{model}"
modality = "image"
type = "async"
created = "2026-11-01"
pricing = {{ mode = "per_image", unit_price = "1.00" }}
upstream = {{ provider = "quiet", model = "image" }}
hosting = {{ content_types = ["image/png"] }}

[models.input_schema]
type = "object"
properties = {{ prompt = {{ type = "string" }}, image = {{ type = "string", format = "uri" }} }}

[[models]]
id = "quiet/clip-1"
modality = "video"
type = "async"
created = "2026-11-01"
pricing = {{ mode = "per_request", unit_price = "1.00" }}
upstream = {{ provider = "quiet", model = "clip" }}
hosting = {{ content_types = ["video/webm"] }}

[models.input_schema]
type = "object"
properties = {{ prompt = {{ type = "string" }}, seconds = {{ type = "integer" }} }}
"""


class Gate:
    """Holds back responses while it is closed. ``reached`` counts all requests."""

    def __init__(self) -> None:
        self.reached = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        """Hold back responses from now on."""
        self._open.clear()

    def open(self) -> None:
        """Release every response."""
        self._open.set()

    def wait(self) -> None:
        """Wait while the gate is closed."""
        self.reached += 1
        self._open.wait(HELD_MAX_S)


@dataclass
class QuietProvider:
    """The provider's address, its jobs, and the bodies of its callbacks.

    ``jobs`` are counted once however often they were put; ``puts`` and ``pictures`` hold back the answers to
    jobs and the pictures.
    """

    url: str
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    puts: Gate = field(default_factory=Gate)
    pictures: Gate = field(default_factory=Gate)

    def write_catalog(self, folder: Path, *, concurrency: int = 1000) -> Path:
        """Write a catalog with its one model, at 1.00 per picture."""
        path = folder / "catalog.toml"
        path.write_text(CATALOG.format(url=self.url, secret=SECRET, model=MODEL, concurrency=concurrency))
        return path

    def callback_body(
        self, request_id: str, status: str, *, event_id: str, sequence: int, **fields: object
    ) -> bytes:
        """Return the body of a callback."""
        body = {
            "event_id": event_id,
            "provider": "quiet",
            "request_id": request_id,
            "attempt": 1,
            "status": status,
            "sequence": sequence,
            **fields,
        }
        return json.dumps(body).encode()

    def success(self, request_id: str, *, event_id: str, sequence: int) -> bytes:
        """Return the body of a callback that delivers one picture."""
        outputs = [{"url": f"{self.url}/picture.png", "content_type": "image/png"}]
        return self.callback_body(request_id, "succeeded", event_id=event_id, sequence=sequence, outputs=outputs)


def signed(body: bytes, *, secret: str = SECRET, shift_s: int = 0) -> dict[str, str]:
    """Return the headers of a signed callback, dated ``shift_s`` seconds from now."""
    header = sign(secret, body, at=int(time.time()) + shift_s, key_name="quiet")
    return {"X-Callback-Signature": header, "Content-Type": "application/json"}


@contextmanager
def quiet_provider() -> Iterator[QuietProvider]:
    """Run the provider on loopback."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "teal").save(picture, "PNG")

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            job_id = self.path.rpartition("/")[2]
            length = int(self.headers["Content-Length"])
            provider.jobs.setdefault(job_id, json.loads(self.rfile.read(length)))
            provider.puts.wait()
            self._tell(201, {"id": job_id, "status": "starting"})

        def do_GET(self) -> None:
            if self.path == "/picture.png":
                provider.pictures.wait()
                self._answer(200, "image/png", picture.getvalue())
            elif self.path.rpartition("/")[2] in provider.jobs:
                self._tell(200, {"id": self.path.rpartition("/")[2], "status": "processing"})
            else:
                self._tell(404, {"detail": "unknown"})

        def do_POST(self) -> None:
            self._tell(200, {"id": self.path.split("/")[2], "status": "canceled"})

        def _tell(self, status: int, body: dict[str, Any]) -> None:
            self._answer(status, "application/json", json.dumps(body).encode())

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            # The client may have been killed while the response was held back.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        provider = QuietProvider(url)
        yield provider
