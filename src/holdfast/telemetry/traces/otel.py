"""The export of spans with OpenTelemetry (the extra ``otel``), configured by the standard variables ``OTEL_…``."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind as OtelKind

from holdfast import __version__
from holdfast.telemetry.traces import Attributes, SpanKind, record_spans

CLOSE_S: Final = 2.0
"""How long the end of the process waits for the last spans to be exported."""

_KINDS: Final[Mapping[SpanKind, OtelKind]] = {
    "server": OtelKind.SERVER,
    "client": OtelKind.CLIENT,
    "internal": OtelKind.INTERNAL,
}


class _Ids(RandomIdGenerator):
    """Gives a trace that begins here the id that the log has."""

    def __init__(self) -> None:
        self.next_trace_id: str | None = None

    def generate_trace_id(self) -> int:
        """Return the requested id, or a random one."""
        chosen, self.next_trace_id = self.next_trace_id, None
        return super().generate_trace_id() if chosen is None else int(chosen, 16)


class _Begun:
    """A span of OpenTelemetry, as ours."""

    __slots__ = ("_is_over", "_span", "traceparent")

    def __init__(self, begun: OtelSpan) -> None:
        self._span = begun
        self._is_over = False
        context = begun.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, *, name: str | None = None, attributes: Attributes | None = None, failed: bool = False) -> None:
        """End the span."""
        if self._is_over:
            return
        self._is_over = True
        if name is not None:
            self._span.update_name(name)
        if attributes:
            self._span.set_attributes(attributes)
        if failed:
            # Without a description: the text of an exception may quote anything.
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class OtelRecorder:
    """Records spans with a tracer."""

    def __init__(self, tracer: Tracer, ids: _Ids) -> None:
        self._tracer = tracer
        self._ids = ids

    def start(
        self,
        name: str,
        kind: SpanKind,
        *,
        parent: str | None,
        trace_id: str | None,
        link: str | None,
        attributes: Attributes,
    ) -> _Begun:
        """Begin a span."""
        context = None
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(_context_of(parent)))
        else:
            self._ids.next_trace_id = trace_id
        links = [] if link is None else [Link(_context_of(link))]
        return _Begun(self._tracer.start_span(name, context, _KINDS[kind], dict(attributes), links))


def recorder_to(processor: SpanProcessor, variables: Mapping[str, str]) -> tuple[OtelRecorder, TracerProvider]:
    """Return a recorder whose spans go to ``processor``, and the provider to shut down at the end."""
    named = {} if "OTEL_SERVICE_NAME" in variables else {SERVICE_NAME: "holdfast"}
    ids = _Ids()
    provider = TracerProvider(
        resource=Resource.create({**named, SERVICE_VERSION: __version__}), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return OtelRecorder(provider.get_tracer("holdfast", __version__), ids), provider


def start_exporting(variables: Mapping[str, str]) -> None:
    """Record spans, and export them over OTLP/HTTP until the process ends."""
    # The headers may have a token, which a proxy of the environment would be sent.
    session = requests.Session()
    session.trust_env = False
    recorder, provider = recorder_to(BatchSpanProcessor(OTLPSpanExporter(session=session)), variables)
    record_spans(recorder)

    ending = threading.Event()

    def close() -> None:
        ending.wait()
        provider.shutdown()

    # A thread of its own: a collector that does not answer must not delay the end. It starts here, because an
    # interpreter that ends starts no threads.
    closing = threading.Thread(target=close, name="closes spans", daemon=True)
    closing.start()

    def end() -> None:
        ending.set()
        closing.join(CLOSE_S)

    atexit.register(end)


def _context_of(text: str) -> SpanContext:
    _, trace_id, span_id, flags = text.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
