"""The id of the request being served: on the answer, in every log line, and in every envelope as the trace id."""

from __future__ import annotations

import structlog

from holdfast.actors.runtime.trace import trace_id
from holdfast.ledger.ids import new_id


def current_request_id() -> str:
    """The id of the request being served, or a fresh one outside of any."""
    return trace_id.get() or new_id("req")


def start_trace() -> str:
    """Give the request an id of our own. What the caller sends as one is never trusted as ours.

    Each request runs in a task of its own, so the id ends with its context.
    """
    request_id = new_id("req")
    trace_id.set(request_id)
    structlog.contextvars.bind_contextvars(trace_id=request_id)
    return request_id
