"""The hosted prediction service as its public reference tells of it, on loopback: a stand-in for tests.

It takes predictions by version and by model, checks the bearer, numbers jobs itself (a second POST is a second
job), and posts signed webhooks, the same message again until a 2xx takes it. What a job comes to is the test's to
say: :meth:`Hosted.start`, :meth:`Hosted.finish`. ``accidents`` befall the next submissions: ``cut`` hangs up after
the job was taken, a number is answered instead of taking it.

The prediction object has the fields of the reference; ``repeats_webhook`` adds the webhook's address, which the
service's own client libraries declare as one that may be there.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from tests.threaded_server import serving

from holdfast.providers.signatures import standard_headers

TOKEN = "r8_0123456789abcdefghijklmnopqrstuvwxyz0"
SECRET = "whsec_" + base64.b64encode(b"a signing key of the service").decode()
VERSION = "5c7d5dc6dd8bf75c1acaa8565735e7986bc5b66206b55cca93cb72c9bf15ccaa"
EVENTS = ("start", "output", "logs", "completed")
SENDINGS_MAX = 5
RESENT_AFTER_S = 0.2
_INPUT_OF = {"prompt": str}


@dataclass
class Hosted:
    """Where it listens and what it has; every change is made under ``lock``."""

    url: str = ""
    predictions: dict[str, dict[str, Any]] = field(default_factory=dict)
    filters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    canceled: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    accidents: list[str | int] = field(default_factory=list)
    deliveries: list[tuple[str, int]] = field(default_factory=list)
    sends_webhooks: bool = True
    repeats_webhook: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def only(self, prompt: str) -> dict[str, Any]:
        """The one job with this prompt."""
        [found] = self.with_prompt(prompt)
        return found

    def with_prompt(self, prompt: str) -> list[dict[str, Any]]:
        """Every job with this prompt."""
        with self.lock:
            return [job for job in self.predictions.values() if job["input"].get("prompt") == prompt]

    def start(self, prediction_id: str) -> None:
        """The job begins to run."""
        self._move(prediction_id, "start", status="processing", started_at=_now())

    def finish(self, prediction_id: str, status: str = "succeeded", **fields: Any) -> None:
        """The job ends."""
        self._move(
            prediction_id,
            "completed",
            status=status,
            completed_at=_now(),
            metrics={"predict_time": 1.25, "total_time": 2.5},
            **fields,
        )

    def shown(self, prediction_id: str) -> dict[str, Any]:
        """Return a prediction as the API shows it."""
        with self.lock:
            shown = dict(self.predictions[prediction_id])
            if self.repeats_webhook and prediction_id in self.hooks:
                shown["webhook"] = self.hooks[prediction_id]
                shown["webhook_events_filter"] = list(self.filters[prediction_id])
            return shown

    def signed(self, prediction_id: str, message_id: str) -> tuple[bytes, dict[str, str]]:
        """The body and headers of a webhook about a job."""
        body = json.dumps(self.shown(prediction_id)).encode()
        return body, {"Content-Type": "application/json", **self.signature(body, message_id)}

    @staticmethod
    def signature(body: bytes, message_id: str, *, age_s: int = 0, secret: str = SECRET) -> dict[str, str]:
        """The three headers over a body."""
        return standard_headers([secret], message_id, int(time.time()) - age_s, body)

    def _move(self, prediction_id: str, event: str, **fields: Any) -> None:
        with self.lock:
            self.predictions[prediction_id].update(fields)
            wanted = self.sends_webhooks and event in self.filters.get(prediction_id, ())
            if not wanted:
                return
            message_id = "msg_" + secrets.token_hex(12)
            body, headers = self.signed(prediction_id, message_id)
            address = self.hooks[prediction_id]
        threading.Thread(target=self._deliver, args=(address, message_id, body, headers), daemon=True).start()

    def _deliver(self, address: str, message_id: str, body: bytes, headers: dict[str, str]) -> None:
        for _ in range(SENDINGS_MAX):
            status = 0
            with suppress(httpx2.HTTPError):
                status = httpx2.post(address, content=body, headers=headers, timeout=60).status_code
            self.deliveries.append((message_id, status))
            if 200 <= status < 300:
                return
            time.sleep(RESENT_AFTER_S)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hosted: Hosted
    files: dict[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        if self.path in self.files:
            content_type, content = self.files[self.path]
            self._answer(200, content, content_type)
        elif self._is_known_caller():
            self._get()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._is_known_caller():
            return
        parts = self.path.strip("/").split("/")
        if parts[-1] == "cancel" and len(parts) == 4:
            self._cancel(parts[2])
        elif parts == ["v1", "predictions"] or (parts[:2] == ["v1", "models"] and parts[4:] == ["predictions"]):
            self._create(parts, json.loads(raw))
        else:
            self._problem(404, "The requested resource could not be found.")

    def _get(self) -> None:
        prediction_id = self.path.rpartition("/")[2]
        self.hosted.asked.append(prediction_id)
        if self.path == "/v1/webhooks/default/secret":
            self._respond(200, {"key": SECRET})
        elif self.path == f"/v1/predictions/{prediction_id}" and prediction_id in self.hosted.predictions:
            self._respond(200, self.hosted.shown(prediction_id))
        else:
            self._problem(404, "The requested resource could not be found.")

    def _create(self, parts: list[str], order: dict[str, Any]) -> None:
        accident = self.hosted.accidents.pop(0) if self.hosted.accidents else None
        if isinstance(accident, int):
            self._problem(accident, "An accident.")
            return
        given = order.get("input")
        if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
            self._problem(422, "- input: prompt is required")
            return
        if parts == ["v1", "predictions"] and "version" not in order:
            self._problem(422, "- version is required")
            return
        if not set(order.get("webhook_events_filter", ())) <= set(EVENTS):
            self._problem(422, "- webhook_events_filter: unknown event")
            return
        prediction_id = secrets.token_hex(13)
        model = "/".join(parts[2:4]) if parts[1] == "models" else "studio/image"
        base = f"{self.hosted.url}/v1/predictions/{prediction_id}"
        prediction = {
            "id": prediction_id,
            "model": model,
            "version": order.get("version", VERSION),
            "input": given,
            "output": None,
            "logs": "",
            "error": None,
            "status": "starting",
            "source": "api",
            "data_removed": False,
            "created_at": _now(),
            "started_at": None,
            "completed_at": None,
            "metrics": {},
            "urls": {"get": base, "cancel": f"{base}/cancel"},
        }
        with self.hosted.lock:
            self.hosted.predictions[prediction_id] = prediction
            if "webhook" in order:
                self.hosted.hooks[prediction_id] = order["webhook"]
                self.hosted.filters[prediction_id] = tuple(order.get("webhook_events_filter", EVENTS))
        if accident == "cut":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._respond(201, self.hosted.shown(prediction_id))

    def _cancel(self, prediction_id: str) -> None:
        if prediction_id not in self.hosted.predictions:
            self._problem(404, "The requested resource could not be found.")
            return
        self.hosted.canceled.append(prediction_id)
        if self.hosted.predictions[prediction_id]["status"] in ("starting", "processing"):
            self.hosted.finish(prediction_id, "canceled")
        self._respond(200, self.hosted.shown(prediction_id))

    def _is_known_caller(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._problem(401, "You did not pass a valid authentication token")
        return False

    def _problem(self, status: int, detail: str) -> None:
        self._respond(status, {"title": "Problem", "detail": detail, "status": status})

    def _respond(self, status: int, content: dict[str, Any]) -> None:
        self._answer(status, json.dumps(content).encode(), "application/json")

    def _answer(self, status: int, content: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        with suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def hosted_service(files: dict[str, tuple[str, bytes]] | None = None) -> Iterator[Hosted]:
    """Run one on loopback; ``files`` are served without a bearer, as the service's delivery addresses are."""
    hosted = Hosted()
    handler = type("Handler", (_Handler,), {"hosted": hosted, "files": files or {}})
    with serving(_Server(("127.0.0.1", 0), handler)) as hosted.url:
        yield hosted
