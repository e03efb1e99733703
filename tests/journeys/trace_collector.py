"""A collector of OpenTelemetry spans, as a server that receives OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.threaded_server import serving


@dataclass
class TraceCollector:
    """Its address, all spans that it received, and the bodies as they came."""

    url: str
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> dict[str, list[Span]]:
        """Return the spans of one trace by name."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.trace_id.hex() == trace_id:
                found.setdefault(span.name, []).append(span)
        return found


@contextmanager
def trace_collector() -> Iterator[TraceCollector]:
    """Run a collector on loopback."""
    collector = TraceCollector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.bodies.append(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    collector.spans += scope.spans
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        collector.url = url
        yield collector
