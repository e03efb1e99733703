"""The web application: every route of the house on one quart-trio app, and what surrounds each request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio
from prometheus_client import Histogram
from quart import Request, Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as WerkzeugResponse

from holdfast.http import (
    account,
    asset_files,
    callbacks,
    catalog_listing,
    interface_pages,
    media_tasks,
    ops,
    sign_in,
    usage_log,
)
from holdfast.http.calls import answer_call, render_fault, render_refusal
from holdfast.http.errors import refusal_of_http
from holdfast.http.front import Front
from holdfast.http.routes import Route, TaskIdConverter
from holdfast.http.tracing import tracing
from holdfast.ledger.refusals import Refusal

ROUTES: Final[tuple[Route, ...]] = (
    *sign_in.route.routes,
    *account.route.routes,
    *catalog_listing.route.routes,
    *media_tasks.route.routes,
    *callbacks.route.routes,
    *usage_log.route.routes,
    *asset_files.route.routes,
    *ops.route.routes,
    *interface_pages.route.routes,
)

ANSWERED_S = Histogram(
    "holdfast_http_answer_seconds",
    "Time from a request's head to its answer, by route and status.",
    ["route", "status"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 15),
)

log = structlog.get_logger("holdfast.http")


class FrontApp(QuartTrio):
    """Quart on trio, with our answer to everything that goes wrong around a handler."""

    front: Front

    async def handle_request(self, request: Request) -> Response | WerkzeugResponse:
        """Answer one request. Every answer has a request id, and every failure the one error shape."""
        started_s = time.perf_counter()
        with tracing() as request_id:
            response = await self._answer(request)
        headers = response.headers
        headers["X-Request-Id"] = request_id
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cache-Control", "no-store")
        route = request.url_rule.endpoint if request.url_rule is not None else "none"
        ANSWERED_S.labels(route, str(response.status_code)).observe(time.perf_counter() - started_s)
        return _without_body(response) if request.method == "HEAD" else response

    async def _answer(self, request: Request) -> Response | WerkzeugResponse:
        try:
            if _heads_too_large(self.front, request):
                return render_refusal(
                    Refusal(code="headers_too_large", message="The request's headers are too large.")
                )
            return await super().handle_request(request)
        except trio.Cancelled:
            raise
        except HTTPException as error:
            return _framework_refusal(error)
        except Exception as fault:  # the last place where it can become an answer
            return render_fault(fault)

    async def make_default_options_response(self) -> Response:
        """OPTIONS has no body; ``Allow`` says everything."""
        response = await super().make_default_options_response()
        response.status_code = 204
        return response


def create_app(front: Front) -> FrontApp:
    """The application that serves ``front``. It owns no task and no nursery: handlers only ask and read."""
    app = FrontApp(__name__, static_folder=None)
    app.front = front
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.config["MAX_CONTENT_LENGTH"] = max(
        front.settings.body_bytes_max, *(route.raw_body_bytes_max or 0 for route in ROUTES)
    )
    app.url_map.merge_slashes = False
    app.url_map.converters["task"] = TaskIdConverter
    app.register_error_handler(HTTPException, _framework_refusal)
    for route in ROUTES:
        app.add_url_rule(route.rule, route.name, _view(app, route), methods=[route.method])
    return app


def _view(app: FrontApp, route: Route) -> Callable[..., Awaitable[Response]]:
    from quart import request

    async def view(**path: str) -> Response:
        return await answer_call(app.front, route, request, path)

    return view


def _framework_refusal(error: HTTPException) -> Response:
    refusal, headers = refusal_of_http(error)
    return render_refusal(refusal, headers)


def _heads_too_large(front: Front, request: Request) -> bool:
    heads: list[tuple[bytes, bytes]] = list(request.scope.get("headers", ()))
    settings = front.settings
    if len(heads) > settings.header_count_max:
        return True
    return sum(len(name) + len(value) for name, value in heads) > settings.header_bytes_max


def _without_body(response: Response | WerkzeugResponse) -> Response:
    """The same answer without its body; the length it would have had stays told."""
    headers: dict[str, Any] = {name: value for name, value in response.headers if name != "Content-Length"}
    bare = Response(b"", status=response.status_code, headers=headers)
    if "Content-Length" in response.headers:
        bare.headers["Content-Length"] = response.headers["Content-Length"]
    return bare


__all__ = ["ROUTES", "FrontApp", "create_app"]
