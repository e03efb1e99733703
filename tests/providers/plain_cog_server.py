"""A plain model container as its public reference tells of it, on loopback: a stand-in for tests.

``PUT /predictions/{id}`` starts a job or finds it running (202), 409 where all slots are taken; there is no GET
(405); ``POST …/cancel`` is 200 or 404. Webhooks carry the prediction and, where a token was given to the container,
show it as a bearer; the last one is repeated until it is taken. Outputs come as data URLs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from tests.threaded_server import serving

SECRET = "container-webhook-token-0123456789"
TERMINAL = ("succeeded", "failed", "canceled")
SENDINGS_MAX = 12
FIRST_RETRY_S = 0.1


@dataclass
class Container:
    """Where it listens, what it runs, and what it was asked."""

    url: str = ""
    token: str | None = SECRET
    slots: int = 16
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)
    gets: list[str] = field(default_factory=list)
    canceled: list[str] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def tell(self, job_id: str, event: str, **fields: Any) -> None:
        """Change a job and post what its webhook's filter asks for."""
        job = self.running[job_id]
        job.update(fields)
        order = self.orders[job_id]
        if job["status"] in TERMINAL:
            del self.running[job_id]
        if "webhook" in order and event in order.get("webhook_events_filter", ("start", "logs", "completed")):
            body = json.dumps(job).encode()
            tries = SENDINGS_MAX if event == "completed" else 1
            threading.Thread(target=self._post, args=(order["webhook"], body, tries), daemon=True).start()

    def finish(self, job_id: str, status: str = "succeeded", **fields: Any) -> None:
        """The job ends."""
        self.tell(job_id, "completed", status=status, metrics={"predict_time": 0.5}, **fields)

    def _post(self, address: str, body: bytes, tries: int) -> None:
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        for number in range(tries):
            status = 0
            with suppress(httpx2.HTTPError):
                status = httpx2.post(address, content=body, headers=headers, timeout=60).status_code
            self.answered.append(status)
            if status != 429 and 0 < status < 500:
                return
            time.sleep(FIRST_RETRY_S * 2**number)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    container: Container

    def do_PUT(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        job_id, box = self.path.rpartition("/")[2], self.container
        box.puts.append(job_id)
        if self.headers.get("Prefer") != "respond-async":
            self._respond(500, {"detail": "these tests only start jobs that run by themselves"})
        elif not isinstance(order.get("input"), dict) or "prompt" not in order["input"]:
            self._respond(422, {"detail": [{"loc": ["body", "input", "prompt"], "msg": "Field required"}]})
        elif job_id not in box.running and len(box.running) >= box.slots:
            self._respond(409, {"detail": "Already running a prediction"})
        else:
            box.orders[job_id] = order
            job = {"id": job_id, "input": order["input"], "status": "starting", "output": None, "logs": ""}
            box.running.setdefault(job_id, job)
            self._respond(202, {"id": job_id, "status": "starting"})

    def do_GET(self) -> None:
        self.container.gets.append(self.path.rpartition("/")[2])
        self._respond(405, {"detail": "Method Not Allowed"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        job_id = self.path.split("/")[2]
        if job_id not in self.container.running:
            self._respond(404, {})
            return
        self.container.canceled.append(job_id)
        self.container.finish(job_id, "canceled")
        self._respond(200, {})

    def _respond(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def plain_container() -> Iterator[Container]:
    """Run one on loopback."""
    container = Container()
    handler = type("Handler", (_Handler,), {"container": container})
    with serving(_Server(("127.0.0.1", 0), handler)) as container.url:
        yield container
