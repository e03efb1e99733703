"""The trace id of the request being served. It rides in every envelope: an actor's task has its own context."""

from __future__ import annotations

from contextvars import ContextVar

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
