"""The web application: all routes on one Quart application, and the steps before and after each request."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Sequence
from typing import Final

from quart import Request, Response
from quart.typing import ResponseTypes
from quart_trio import QuartTrio
from werkzeug.exceptions import MethodNotAllowed, NotFound

from holdfast.http.endpoints import all_routes
from holdfast.http.endpoints.api_docs import PAGES
from holdfast.http.kit.calls import origin_of_request
from holdfast.http.kit.credentials import key_prefix_sent
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import RefusalResponse
from holdfast.http.kit.extensions import ServedPage, installed_extensions
from holdfast.http.kit.forwarding import serve_in_cells
from holdfast.http.kit.requests import HoldfastConnection, HoldfastRequest, end_trace, keep_request, start_trace
from holdfast.http.kit.responses import exception_response, refusal_response, serve_call
from holdfast.http.kit.router import Router, Served
from holdfast.http.kit.routes import HEALTH_PATHS, is_for_operators
from holdfast.http.kit.values import shown
from holdfast.ledger.refusals import Refusal
from holdfast.telemetry import metrics
from holdfast.telemetry.costs import costs
from holdfast.telemetry.logs import levels, log_raised
from holdfast.telemetry.logs.raised import about
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram
from holdfast.telemetry.traces import trace_id

EXTENSIONS: Final = installed_extensions()
ROUTES: Final = (*all_routes(), *(route for each in EXTENSIONS for route in each.routes))
"""The endpoints of the core and its extensions."""
SERVED: Final[tuple[Served, ...]] = (*ROUTES, *PAGES, *(page for each in EXTENSIONS for page in each.pages))
"""All endpoints and pages."""

BASES: Final = ("", "/v1", "/v2", *(base for each in EXTENSIONS for base in each.bases))
"""What the base URLs of clients end in."""
_SEGMENTS: Final = "|".join(sorted({segment for base in BASES for segment in base.split("/") if segment}))
_BASE: Final = re.compile(rf"^(?:/(?:{_SEGMENTS}))+(?=/)")
_ERROR_FORMS: Final = tuple(each.error_form for each in EXTENSIONS if each.error_form is not None)

PAGE_PATHS: Final = frozenset(page.path for each in EXTENSIONS for page in each.pages)

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
UNKEPT: Final = frozenset(route.name for route in ROUTES if not route.is_kept)

PUBLIC_ROUTES: Final = tuple(route for route in SERVED if not is_for_operators(route.path))
OPERATORS_ROUTES: Final[tuple[Served, ...]] = (
    *(route for route in SERVED if is_for_operators(route.path) or route.path in HEALTH_PATHS),
    *(page for each in EXTENSIONS for page in each.operators_pages),
)


class HoldfastApp(QuartTrio):
    """The Quart application of one listener. Routing depends on path and method alone, never on the Host header.

    A request's route is found by :class:`Router`, and its handler is called directly. Overridden of Quart, all of
    it here and in :mod:`holdfast.http.kit.requests` and ``responses``: ``handle_request``, whose request context,
    hooks and signals add 11 to 17 % to a create's CPU (docs/decisions.md); the class of a connection, which would
    run three tasks for each request; that of a request, which would buffer the body; the constructor of a JSON
    response.
    """

    asgi_http_class = HoldfastConnection  # type: ignore[assignment]  # one task per request instead of three

    def __init__(self, deps: Dependencies, routes: Sequence[Served]) -> None:
        super().__init__(__name__, static_folder=None)
        self.deps = deps
        self.config["PROPAGATE_EXCEPTIONS"] = False
        self._router = Router(routes)

    async def handle_request(self, request: Request) -> ResponseTypes:
        """Answer one request. Every response has a request id, and every failure the one error format."""
        assert isinstance(request, HoldfastRequest)
        try:
            _begin(request)
            served, path = self._router.find(request.path)
            found = served.get(request.method)
            if found is None:
                raise MethodNotAllowed(served) if served else NotFound
            route, request.endpoint = found
            if request.method == "OPTIONS":
                response = Response(b"", status=204, headers={"Allow": ", ".join(sorted(served))})
            elif self.deps.cells is None:
                response = await _serve(self.deps, route, request, path)
            else:
                serve = functools.partial(_serve, self.deps, route, request, path)
                response = await serve_in_cells(self.deps, route, request, path, serve)
        except Exception as error:
            below = self._below_another_base(request) if isinstance(error, NotFound) else None
            response = exception_response(error, request) if below is None else refusal_response(below)
        except BaseException:
            end_trace(request, None)
            raise
        return _finish(self.deps, request, response)

    def _below_another_base(self, request: HoldfastRequest) -> Refusal | None:
        """Return the refusal of a path that exists with another base, or without a slash at its end."""
        bare = _BASE.sub("", request.path.rstrip("/"))
        paths = {f"{base}{bare}": None for base in BASES}
        page = request.path.rstrip("/")
        if page != request.path and page in PAGE_PATHS and self._router.find(page)[0]:
            message = f"The path {shown(request.path)} does not exist, but {shown(page)} does."
            return Refusal(code="route_not_found", message=message)
        # Not the pages: a client whose base URL lacks /v1 finds none at /models.
        known = [each for each in paths if each not in PAGE_PATHS and self._router.find(each)[0]]
        if not known or request.path in known:
            return None
        does = "does" if len(known) == 1 else "do"
        message = f"The path {shown(request.path)} does not exist, but {' and '.join(map(shown, known))} {does}."
        return Refusal(code="route_not_found", message=f"{message} Look at the base URL of the client.")


def _serve(
    deps: Dependencies, route: Served, request: HoldfastRequest, path: dict[str, str]
) -> Awaitable[Response]:
    if isinstance(route, ServedPage):
        return route.serve(deps, request, path)
    return serve_call(deps, route, request, path)


def _begin(request: HoldfastRequest) -> None:
    """Give the request its id, and refuse a path that is not in its normal form."""
    request.started_s = time.perf_counter()
    start_trace(request)
    if levels.any:
        about.set((request.path,))
    if not is_normal_path(request.scope["raw_path"]):
        raise NotFound


def _finish(deps: Dependencies, request: HoldfastRequest, response: Response) -> Response:
    """Record the response's duration, count a refusal, and give it the form that the path's clients read."""
    duration_s = time.perf_counter() - request.started_s
    if response.status_code == 204:
        response.headers.pop("Content-Type", None)
    if isinstance(response, RefusalResponse):
        form = next((each for each in _ERROR_FORMS if request.path.startswith(each.below)), None)
        response = response if form is None else form.convert(response)
        _count_refused(deps, request, response)
    elif request.method not in READING and request.endpoint not in UNKEPT:
        keep_request(request, response.status_code)
    if levels.any:
        _log_request(request, response.status_code, duration_s)
    _count_costs(request)
    end_trace(request, response.status_code)
    _histogram(request.endpoint or "none", response.status_code).observe(duration_s)
    return response


def _count_costs(request: HoldfastRequest) -> None:
    """Count a request by its route and, if its credential is an account's, by that and its key."""
    account = request.caller if request.caller and request.caller.startswith("acct_") else None
    key = None if account is None else request.key_prefix
    costs.add_each(("route", "account", "key"), (request.endpoint or "none", account, key))


def _log_request(request: HoldfastRequest, status: int, duration_s: float) -> None:
    """Log a request if its path or its caller is raised."""
    caller = request.caller or ""
    fields = {"route": request.endpoint or "none", "status": status, "caller": caller or None}
    log_raised("request", (request.path, caller), {**fields, "took_s": round(duration_s, 6)})


def _count_refused(deps: Dependencies, request: HoldfastRequest, response: RefusalResponse) -> None:
    """Count a refused request. Its credential is named as far as its owner may see it."""
    deps.operating.refused.count(
        status=response.status_code,
        code=response.code,
        is_of_share=response.is_of_share,
        route=request.endpoint or "none",
        request_id=request.id,
        trace_id=trace_id(),
        caller=request.caller,
        key_prefix=key_prefix_sent(request.sent.get(b"authorization", [])),
        origin=origin_of_request(request, deps.settings),
    )


@functools.cache
def _histogram(endpoint: str, status: int) -> BatchedHistogram:
    return metrics.HTTP_REQUEST_S.labels(endpoint, str(status))


_MODELS: Final = (b"/v1/models/", b"/ops/models/", b"/ops/api/models/")
_UNRESERVED: Final = re.compile(rb"%(?:2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])", re.IGNORECASE)
_DOTS: Final = re.compile(rb"/\.\.?(?:/|$)")


def is_normal_path(raw_path: bytes) -> bool:
    """Whether a path is in normal form (RFC 3986, 6.2.2), so that a proxy's rules match the path that is routed.

    No empty and no dot segments, no percent-encoding that is not needed, an encoded slash only inside a model's id,
    and no NUL, which no name has and no row can store.
    """
    # Not by "in", which first tries to read what it looks for as a number.
    if raw_path.count(b"//") or (raw_path.count(b"/.") and _DOTS.search(raw_path)):
        return False
    if not raw_path.count(b"%"):
        return True
    if b"%00" in raw_path or _UNRESERVED.search(raw_path):
        return False
    return b"%2f" not in raw_path.lower() or raw_path.startswith(_MODELS)
