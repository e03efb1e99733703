"""The id of the request being served: on the answer, in every log line, and in every envelope as the trace id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from holdfast.actors.trace import trace_id
from holdfast.ledger.ids import new_id


def current_request_id() -> str:
    """The id of the request being served, or a fresh one outside of any."""
    return trace_id.get() or new_id("req")


@contextmanager
def tracing() -> Iterator[str]:
    """Give the request an id of our own. What the caller sends as one is never trusted as ours."""
    request_id = new_id("req")
    token = trace_id.set(request_id)
    try:
        with structlog.contextvars.bound_contextvars(trace_id=request_id):
            yield request_id
    finally:
        trace_id.reset(token)
