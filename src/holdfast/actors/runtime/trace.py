"""The trace id of the current request. Envelopes carry it, since an actor's task has a context of its own."""

from __future__ import annotations

from contextvars import ContextVar

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
