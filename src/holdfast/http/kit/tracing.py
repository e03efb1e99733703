"""The id of a request, and the trace that it begins or continues."""

from __future__ import annotations

from holdfast.http.kit.bounded_body import HoldfastRequest
from holdfast.ledger.ids import new_id
from holdfast.traces import HEADER, new_traceparent, read_traceparent, request_id, traceparent

_HEADER = HEADER.encode()


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
    traceparent.set(continued or new_traceparent(request.id[4:]))
