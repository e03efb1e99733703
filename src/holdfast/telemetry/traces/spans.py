"""Spans: the timed parts of a trace. They are recorded only while a recorder is set, and cost nothing otherwise.

:mod:`holdfast.telemetry.traces.otel` is the recorder that exports them with OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

from holdfast.telemetry.traces import traceparent

SpanKind = Literal["server", "client", "internal"]
Attributes: TypeAlias = Mapping[str, str | int]
"""Our own ids, names and numbers, never a text from outside."""


class Span(Protocol):
    """A part of a trace that has begun. ``traceparent`` names it as the parent of what it causes."""

    @property
    def traceparent(self) -> str: ...

    def end(self, *, name: str | None = None, attributes: Attributes | None = None, failed: bool = False) -> None:
        """End the span, once; later calls change nothing. ``name`` replaces its name."""
        ...


class Recorder(Protocol):
    """Records spans."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        *,
        parent: str | None,
        trace_id: str | None,
        link: str | None,
        attributes: Attributes,
    ) -> Span:
        """Begin a span below ``parent``, or without one the trace ``trace_id``. ``link`` is a related span."""
        ...


class _Recording:
    recorder: Recorder | None = None


def record_spans(recorder: Recorder | None) -> None:
    """Record spans from now on, or no longer."""
    _Recording.recorder = recorder


def start_span(
    name: str,
    parent: str | None,
    kind: SpanKind = "internal",
    *,
    trace_id: str | None = None,
    link: str | None = None,
    attributes: Attributes | None = None,
) -> Span | None:
    """Begin a span; None while nothing is recorded, and outside of any trace. See :meth:`Recorder.start`."""
    recorder = _Recording.recorder
    if recorder is None or (parent is None and trace_id is None):
        return None
    return recorder.start(
        name, kind, parent=parent, trace_id=trace_id, link=link, attributes={} if attributes is None else attributes
    )


@contextmanager
def span(name: str, kind: SpanKind = "internal", attributes: Attributes | None = None) -> Iterator[None]:
    """Record the time of the context as a span of the current trace."""
    begun = start_span(name, traceparent.get(), kind, attributes=attributes)
    if begun is None:
        yield
        return
    token = traceparent.set(begun.traceparent)
    failed = True
    try:
        yield
        failed = False
    finally:
        traceparent.reset(token)
        begun.end(failed=failed)
