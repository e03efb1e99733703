"""The web application: every route of the house on one quart-trio app, and what surrounds each request."""

from __future__ import annotations

import time
from typing import Any, Final

import trio
from prometheus_client import Histogram
from quart import Request, Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from holdfast import metrics
from holdfast.http import catalog_listing, ops
from holdfast.http.answers import answer_call, render_fault, render_refusal
from holdfast.http.bounded_body import FrontRequest
from holdfast.http.connection import FrontConnection
from holdfast.http.control import account, sign_in, statement
from holdfast.http.errors import refusal_of_http
from holdfast.http.front import Front
from holdfast.http.interface_pages import interface_pages
from holdfast.http.operators import payments as operator_payments
from holdfast.http.operators import reviews as operator_reviews
from holdfast.http.payments import card, orders, sandbox
from holdfast.http.routes import OrderIdConverter, Route, TaskIdConverter
from holdfast.http.tasks import asset_files, callbacks, events, media_tasks, provider_hooks, usage_log
from holdfast.http.tracing import begin_trace
from holdfast.ledger.refusals import Refusal

ROUTES: Final[tuple[Route, ...]] = (
    *sign_in.route.routes,
    *account.route.routes,
    *statement.route.routes,
    *sandbox.route.routes,
    *card.route.routes,
    *orders.route.routes,
    *catalog_listing.route.routes,
    *media_tasks.route.routes,
    *events.route.routes,
    *callbacks.route.routes,
    *provider_hooks.route.routes,
    *usage_log.route.routes,
    *asset_files.route.routes,
    *operator_reviews.route.routes,
    *operator_payments.route.routes,
    *ops.route.routes,
    *interface_pages(lambda: ROUTES).routes,
)

_HEADS_TOO_LARGE = Refusal(code="headers_too_large", message="The request's headers are too large.")


class FrontApp(QuartTrio):
    """Quart on trio, with our answer to everything that goes wrong around a handler."""

    front: Front
    asgi_http_class = FrontConnection
    request_class = FrontRequest

    def prepare_routing(self) -> None:
        """Bind the routes once; they hang on path and method alone, never on what a request says its host is."""
        self._adapter = self.url_map.bind("holdfast")
        self._views: dict[str, Route] = {route.name: route for route in ROUTES}
        self._meters: dict[tuple[str, int], Histogram] = {}

    async def handle_request(self, request: Request) -> Response:
        """Answer one request. Every answer has a request id, and every failure the one error shape."""
        started_s = time.perf_counter()
        request_id = begin_trace()
        name, response = await self._answer(request)
        headers = response.headers
        headers["X-Request-Id"] = request_id
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cache-Control", "no-store")
        self._meter(name, response.status_code).observe(time.perf_counter() - started_s)
        return _without_body(response) if request.method == "HEAD" else response

    async def _answer(self, request: Request) -> tuple[str, Response]:
        """The route's name and its answer.

        The handlers work on what they are handed, so none of Quart's request context (globals, sessions,
        signals) is set up around them.
        """
        name = "none"
        try:
            if _heads_too_large(self.front, request):
                return name, render_refusal(_HEADS_TOO_LARGE)
            rule, path = self._adapter.match(request.path, request.method, return_rule=True, websocket=False)
            name = rule.endpoint
            if request.method == "OPTIONS":
                return name, self._options(request.path)
            return name, await answer_call(self.front, self._views[name], request, dict(path))
        except trio.Cancelled:
            raise
        except HTTPException as error:
            return name, _framework_refusal(error)
        except Exception as fault:  # the last place where it can become an answer
            return name, render_fault(fault)

    def _options(self, path: str) -> Response:
        """OPTIONS has no body; ``Allow`` says everything."""
        allowed = self._adapter.allowed_methods(path)
        return Response(b"", status=204, headers={"Allow": ", ".join(sorted(allowed))})

    def _meter(self, name: str, status: int) -> Histogram:
        meter = self._meters.get((name, status))
        if meter is None:
            meter = self._meters[name, status] = metrics.HTTP_ANSWER_S.labels(name, str(status))
        return meter


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
    app.url_map.converters["order"] = OrderIdConverter
    for route in ROUTES:
        app.add_url_rule(route.rule, route.name, methods=[route.method])
    app.prepare_routing()
    return app


def _framework_refusal(error: HTTPException) -> Response:
    refusal, headers = refusal_of_http(error)
    return render_refusal(refusal, headers)


def _heads_too_large(front: Front, request: Request) -> bool:
    heads: list[tuple[bytes, bytes]] = list(request.scope.get("headers", ()))
    settings = front.settings
    if len(heads) > settings.header_count_max:
        return True
    return sum(len(name) + len(value) for name, value in heads) > settings.header_bytes_max


def _without_body(response: Response) -> Response:
    """The same answer without its body; the length it would have had stays told."""
    headers: dict[str, Any] = {name: value for name, value in response.headers if name != "Content-Length"}
    bare = Response(b"", status=response.status_code, headers=headers)
    if "Content-Length" in response.headers:
        bare.headers["Content-Length"] = response.headers["Content-Length"]
    return bare


__all__ = ["ROUTES", "FrontApp", "create_app"]
