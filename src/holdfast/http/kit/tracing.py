"""The request id: in the response, in every log line, and as the trace id of every message."""

from __future__ import annotations

import structlog

from holdfast.actors.runtime.trace import trace_id
from holdfast.ledger.ids import new_id


def current_request_id() -> str:
    """Return the id of the current request, or a new id outside of a request."""
    return trace_id.get() or new_id("req")


def start_trace() -> str:
    """Create the id of the current request; an id sent by the caller is ignored.

    It ends with the context of its task, or with the next request of the same connection.
    """
    request_id = new_id("req")
    trace_id.set(request_id)
    structlog.contextvars.bind_contextvars(trace_id=request_id)
    return request_id
