"""The id of a request, and the trace that it begins or continues."""

from __future__ import annotations

from holdfast.http.kit.bounded_body import HoldfastRequest
from holdfast.ledger.ids import new_id
from holdfast.telemetry.traces import HEADER, new_traceparent, read_traceparent, request_id, traceparent
from holdfast.telemetry.traces.spans import start_span

_HEADER = HEADER.encode()
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
"""What asks for these asks every few seconds; it is traced only within its caller's trace."""


def current_request_id() -> str:
    """Return the id of the current request, or a new id outside of a request."""
    return request_id.get() or new_id("req")


def start_trace(request: HoldfastRequest) -> None:
    """Give the request its id, and continue the caller's trace; an id sent by the caller is ignored.

    Without a valid ``traceparent`` a trace begins whose id is the digits of the request's id. Both end with the
    context of the request's task, or with the next request of the same connection.
    """
    request.id = new_id("req")
    request_id.set(request.id)
    sent = [value.decode("latin-1") for name, value in request.scope["headers"] if name == _HEADER]
    continued = request.traceresponse = read_traceparent(sent) if sent else None
    request.span = None
    if continued is not None or request.path not in _UNTRACED:
        request.span = start_span(request.method, continued, "server", trace_id=request.id[4:])
    traceparent.set(request.span.traceparent if request.span else continued or new_traceparent(request.id[4:]))


def end_trace(request: HoldfastRequest, status: int | None) -> None:
    """End the span of a request; ``status`` is None if its client has disconnected."""
    if request.span is None:
        return
    route = request.endpoint or "none"
    attributes: dict[str, str | int] = {"http.request.method": request.method, "http.route": route}
    if status is not None:
        attributes["http.response.status_code"] = status
    request.span.end(name=route, attributes=attributes, failed=status is None or status >= 500)
