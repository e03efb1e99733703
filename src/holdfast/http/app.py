"""The web application: every route of the house on one quart-trio app, and what surrounds each request."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Final

import trio
from prometheus_client import Histogram
from quart import Request, Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound

from holdfast import metrics
from holdfast.http.endpoints import catalog as catalog_listing
from holdfast.http.endpoints.control import account, sign_in, statement
from holdfast.http.endpoints.interface_pages import interface_pages
from holdfast.http.endpoints.operators import health as ops
from holdfast.http.endpoints.operators import payments as operator_payments
from holdfast.http.endpoints.operators import reviews as operator_reviews
from holdfast.http.endpoints.payments import card, orders, sandbox
from holdfast.http.endpoints.tasks import (
    asset_files,
    callbacks,
    events,
    media_tasks,
    usage_log,
)
from holdfast.http.endpoints.tasks import (
    provider_webhooks as provider_hooks,
)
from holdfast.http.kit.answers import answer_call, render_fault, render_refusal
from holdfast.http.kit.bounded_body import HoldfastRequest
from holdfast.http.kit.connection import HoldfastConnection
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import refusal_of_http
from holdfast.http.kit.routes import OrderIdConverter, Route, TaskIdConverter
from holdfast.http.kit.tracing import start_trace

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

HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})


def is_for_operators(route: Route) -> bool:
    """Whether a route is for those who run the service, and so belongs on a listener of their own."""
    return route.path == "/metrics" or route.path.startswith("/ops/")


PUBLIC_ROUTES: Final = tuple(route for route in ROUTES if not is_for_operators(route))
OPERATORS_ROUTES: Final = tuple(route for route in ROUTES if is_for_operators(route) or route.path in HEALTH_PATHS)


class HoldfastApp(QuartTrio):
    """Quart on trio, with our answer to everything that goes wrong around a handler."""

    deps: Dependencies
    asgi_http_class = HoldfastConnection  # type: ignore[assignment]  # one task a call instead of quart-trio's three
    request_class = HoldfastRequest

    def prepare_routing(self, routes: Sequence[Route]) -> None:
        """Bind the routes once; they hang on path and method alone, never on what a request says its host is."""
        for route in routes:
            self.add_url_rule(route.rule, route.name, methods=[route.method])
        self._adapter = self.url_map.bind("holdfast")
        self._views: dict[str, Route] = {route.name: route for route in routes}
        self._meters: dict[tuple[str, int], Histogram] = {}

    async def handle_request(self, request: Request) -> Response:
        """Answer one request. Every answer has a request id, and every failure the one error shape."""
        started_s = time.perf_counter()
        request_id = start_trace()
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
            if not is_normal_path(request.scope["raw_path"]):
                raise NotFound
            rule, path = self._adapter.match(request.path, request.method, return_rule=True, websocket=False)
            name = rule.endpoint
            if request.method == "OPTIONS":
                return name, self._options(request.path)
            assert isinstance(request, HoldfastRequest)
            return name, await answer_call(self.deps, self._views[name], request, dict(path))
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


def create_app(deps: Dependencies, routes: Sequence[Route] = ROUTES) -> HoldfastApp:
    """The application that serves ``routes``. It owns no task and no nursery: handlers only ask and read."""
    app = HoldfastApp(__name__, static_folder=None)
    app.deps = deps
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.url_map.merge_slashes = False
    app.url_map.converters["task"] = TaskIdConverter
    app.url_map.converters["order"] = OrderIdConverter
    app.prepare_routing(routes)
    return app


_MODELS: Final = b"/v1/models/"
_UNRESERVED: Final = re.compile(rb"%(?:2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])", re.IGNORECASE)
_DOTS: Final = re.compile(rb"/\.\.?(?:/|$)")


def is_normal_path(raw_path: bytes) -> bool:
    """Whether a path is in its one normal form (RFC 3986, 6.2.2), so that a proxy's rules speak of the same path.

    No empty and no dot segments, nothing percent-encoded that need not be, and an encoded slash only inside a
    model's id.
    """
    if b"//" in raw_path or (b"/." in raw_path and _DOTS.search(raw_path)):
        return False
    if b"%" not in raw_path:
        return True
    if _UNRESERVED.search(raw_path):
        return False
    return b"%2f" not in raw_path.lower() or raw_path.startswith(_MODELS)


def _framework_refusal(error: HTTPException) -> Response:
    refusal, headers = refusal_of_http(error)
    return render_refusal(refusal, headers)


def _without_body(response: Response) -> Response:
    """The same answer without its body; the length it would have had stays told."""
    headers: dict[str, Any] = {name: value for name, value in response.headers if name != "Content-Length"}
    bare = Response(b"", status=response.status_code, headers=headers)
    if "Content-Length" in response.headers:
        bare.headers["Content-Length"] = response.headers["Content-Length"]
    return bare


__all__ = ["OPERATORS_ROUTES", "PUBLIC_ROUTES", "ROUTES", "HoldfastApp", "create_app", "is_normal_path"]
