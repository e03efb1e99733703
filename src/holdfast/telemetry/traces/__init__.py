"""The trace that current work belongs to, as a W3C ``traceparent``: ``00-<trace id>-<parent span>-<flags>``.

A request begins a trace, or continues its caller's. Messages, links, tasks and events carry it, since their work
runs in other contexts; providers and webhooks get it in the header ``traceparent``. The caller's ``tracestate``
is not kept.

Spans are the timed parts of a trace. They are recorded only while a recorder is set, and cost nothing otherwise.
:mod:`holdfast.telemetry.traces.otel` is the recorder that exports them with OpenTelemetry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, Protocol, TypeAlias

from holdfast.telemetry.scrubbing import has_registered_secret

HEADER: Final = "traceparent"
TRACE_ID_CHARS: Final = 32

traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""The trace of the current work; None outside of any."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current HTTP request; None outside of its own task."""

# Version ff is invalid, and later versions may append fields.
_HEADER: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)
_CHARS_MAX: Final = 256


def read_traceparent(values: list[str]) -> str | None:
    """Return the caller's trace as version 00; None for a header that is absent, invalid or sent twice."""
    if len(values) != 1 or len(values[0]) > _CHARS_MAX:
        return None
    match = _HEADER.fullmatch(values[0])
    if match is None or (match[4] is not None and values[0].startswith("00")):
        return None
    found = f"00-{match[1]}-{match[2]}-{match[3]}"
    return None if has_registered_secret(found) else found


def new_traceparent(digits: str) -> str:
    """Return a new trace, not sampled yet. Its id is ``digits``, the 32 hex digits of a new id."""
    return f"00-{digits}-{digits[16:]}-00"


def trace_id_in(text: str | None) -> str | None:
    """Return the id of the trace that ``text`` names."""
    return None if text is None else text[3 : 3 + TRACE_ID_CHARS]


def trace_id() -> str | None:
    """Return the id of the current trace, 32 hex digits; None outside of any."""
    text = traceparent.get()
    return None if text is None else text[3 : 3 + TRACE_ID_CHARS]


def other_request_id() -> str | None:
    """Return the id of the current HTTP request, unless it is the digits of its trace or there is none."""
    request = request_id.get()
    return None if request is None or request[4:] == trace_id() else request


def trace_header() -> dict[str, str]:
    """Return the header by which another server continues the current trace; empty outside of any."""
    text = traceparent.get()
    return {} if text is None else {HEADER: text}


@contextmanager
def within_trace(text: str | None) -> Iterator[None]:
    """Work within the trace ``text`` for the time of the context."""
    token = traceparent.set(text)
    try:
        yield
    finally:
        traceparent.reset(token)


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


class span:  # noqa: N801 - used as a function; a generator would cost each span several calls more
    """A context whose time is recorded as a span of the current trace."""

    __slots__ = ("_attributes", "_begun", "_kind", "_name", "_token")

    def __init__(self, name: str, kind: SpanKind = "internal", attributes: Attributes | None = None) -> None:
        self._name = name
        self._kind = kind
        self._attributes = attributes

    def __enter__(self) -> None:
        self._begun = start_span(self._name, traceparent.get(), self._kind, attributes=self._attributes)
        if self._begun is not None:
            self._token = traceparent.set(self._begun.traceparent)

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if self._begun is not None:
            traceparent.reset(self._token)
            self._begun.end(failed=raised is not None)
