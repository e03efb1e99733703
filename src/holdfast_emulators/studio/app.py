"""The studio's HTTP API: start, read and cancel predictions by id, and download their files.

Errors are ``{"detail": …}``. A job is named by its caller; submitting it twice starts it once.
"""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import trio
from quart import Response, request, send_file
from quart.typing import ResponseReturnValue
from quart_trio import QuartTrio

from holdfast.telemetry.traces import HEADER, read_traceparent, traceparent
from holdfast_emulators.serving import serve_app
from holdfast_emulators.studio.jobs import Job, Order, describe, usage
from holdfast_emulators.studio.model import content_type_of
from holdfast_emulators.studio.renderer import OrderRefused, Renderer

BODY_MAX_BYTES = 16 * 1024 * 1024
BUSY_RETRY_AFTER_S = 2

_ID = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_WEBHOOK = re.compile(r"https?://[!-~]{1,2000}\Z")
_ORDER = msgspec.json.Decoder(Order)


def create_studio(renderer: Renderer, *, token: str | None = None) -> QuartTrio:
    """Return the application. With a ``token``, predictions require it as a bearer token; files never do."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES

    @app.before_request
    async def admit() -> ResponseReturnValue | None:
        if token is None or request.path.startswith("/files/"):
            return None
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return None if hmac.compare_digest(given, f"Bearer {token}".encode()) else _problem(401, "wrong token")

    @app.put("/predictions/<job_id>")
    async def put(job_id: str) -> ResponseReturnValue:
        if not _ID.match(job_id):
            return _problem(400, "an id has 1 to 200 letters, digits, dots, dashes or underscores")
        try:
            order = _ORDER.decode(await request.get_data())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            return _problem(422, f"the body is not an order: {fault}")
        if order.webhook is not None and not _WEBHOOK.match(order.webhook):
            return _problem(422, "webhook is an http or https URL")
        # Its callbacks continue the caller's trace.
        traceparent.set(read_traceparent(request.headers.getlist(HEADER)))
        try:
            job, new = renderer.submit(job_id, order)
        except OrderRefused as refused:
            response = _problem(refused.status, str(refused))
            if refused.status == 503:
                response.headers["Retry-After"] = str(BUSY_RETRY_AFTER_S)
            return response
        return _json(202 if new else 200, show(renderer, job))

    @app.get("/predictions/<job_id>")
    async def get(job_id: str) -> ResponseReturnValue:
        job = renderer.get(job_id)
        return _problem(404, "no such prediction") if job is None else _json(200, show(renderer, job))

    @app.post("/predictions/<job_id>/cancel")
    async def cancel(job_id: str) -> ResponseReturnValue:
        job = renderer.cancel(job_id)
        return _problem(404, "no such prediction") if job is None else _json(200, show(renderer, job))

    @app.get("/files/<name>")
    async def file(name: str) -> ResponseReturnValue:
        path = renderer.file(name)
        if path is None:
            return _problem(404, "no such file")
        response = await send_file(path, mimetype=content_type_of(path), conditional=True)
        response.headers["Cache-Control"] = "private, no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/health-check")
    async def health() -> ResponseReturnValue:
        return _json(200, {"status": "READY"})

    return app


def show(renderer: Renderer, job: Job) -> Mapping[str, object]:
    """Return a prediction in the protocol's form."""
    done = job.status == "succeeded"
    return {
        "id": job.id,
        "model": job.order.model,
        "status": job.status,
        "output": [describe(file, renderer.link(file)) for file in job.results] if done else None,
        "error": job.error,
        "error_code": job.error_code,
        "progress": {"percent": job.percent, "stage": job.stage, "sequence": job.sequence},
        "metrics": usage(job) if done else {},
    }


def _json(status: int, content: object) -> Response:
    return Response(msgspec.json.encode(content), status=status, content_type="application/json")


def _problem(status: int, detail: str) -> Response:
    return _json(status, {"detail": detail})


async def serve_studio(
    *,
    secret: str,
    files_dir: Path,
    bound: socket.socket | None = None,
    token: str | None = None,
    renderer: Renderer | None = None,
    url: str | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the renderer and its web server until cancelled; reports the port. ``bound`` is as for :func:`serve_app`.

    A given ``renderer`` is used instead of a new one. ``url`` begins the links to its files, by default that of the
    socket. Raises ``RuntimeError`` if the server stops by itself.
    """
    renderer = renderer or Renderer(secret, files_dir)
    async with trio.open_nursery() as nursery:
        await nursery.start(renderer.run)
        serve = partial(serve_app, create_studio(renderer, token=token), bound=bound)
        listening = await nursery.start(serve)
        renderer.base_url = url or listening
        task_status.started(urlsplit(listening).port or 0)
