"""Spans, as an exporter in memory receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog.testing
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, TrioFuture
from holdfast.telemetry.traces import record_spans, span, start_span, trace_header, traceparent, within_trace
from holdfast.telemetry.traces.export import export_traces
from holdfast.telemetry.traces.otel import recorder_to

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-01"

Finished = Callable[[], list[ReadableSpan]]


@pytest.fixture
def finished() -> Iterator[Finished]:
    """Record spans for one test; return those that have ended."""
    exporter = InMemorySpanExporter()
    recorder, provider = recorder_to(SimpleSpanProcessor(exporter), {})
    record_spans(recorder)
    yield lambda: list(exporter.get_finished_spans())
    record_spans(None)
    provider.shutdown()


class Traced(TrioActor):
    """Replies with the header that a call to a provider would have; its trace may be another than the message's."""

    def __init__(self, mailbox: Mailbox, own: str | None = None) -> None:
        super().__init__(mailbox)
        self._own = own

    def trace_of(self, envelope: Envelope) -> str | None:
        return self._own or envelope.traceparent

    def on_receive(self, message: object) -> object:
        return trace_header()


async def ask(actor: Traced, trace: str | None) -> dict[str, str]:
    """Let the actor handle one message."""
    reply: TrioFuture[object] = TrioFuture()
    actor.actor_inbox.put(Envelope("hello", reply, traceparent=trace))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.serve)
        found = await reply.wait()
        nursery.cancel_scope.cancel()
    assert isinstance(found, dict)
    return found


def ids(found: ReadableSpan) -> tuple[str, str]:
    """Return a span's trace and its parent."""
    assert found.context is not None
    return f"{found.context.trace_id:032x}", f"{found.parent.span_id:016x}" if found.parent else ""


def test_a_span_is_the_parent_of_what_happens_within(finished: Finished) -> None:
    with within_trace(SAMPLED), span("outer"), span("inner", "client"):
        sent = trace_header()["traceparent"]
    inner, outer = finished()
    assert outer.context is not None
    assert ids(outer) == (TRACE_ID, SPAN_ID)
    assert ids(inner) == (TRACE_ID, f"{outer.context.span_id:016x}")
    assert sent == f"00-{TRACE_ID}-{inner.context.span_id:016x}-01" if inner.context else False


def test_a_new_trace_has_the_requested_id(finished: Finished) -> None:
    begun = start_span("GET", None, "server", trace_id=TRACE_ID)
    assert begun is not None
    begun.end(name="GET /v1/models", attributes={"http.response.status_code": 200})
    begun.end()
    (found,) = finished()
    assert (found.name, ids(found)) == ("GET /v1/models", (TRACE_ID, ""))


def test_a_caller_that_records_nothing_is_followed(finished: Finished) -> None:
    with within_trace(f"00-{TRACE_ID}-{SPAN_ID}-00"), span("outer"):
        assert trace_header()["traceparent"].endswith("-00")
    assert finished() == []


def test_a_fault_marks_the_span_without_its_text(finished: Finished) -> None:
    with within_trace(SAMPLED), pytest.raises(ValueError), span("outer"):
        raise ValueError("password=hunter2")
    (found,) = finished()
    assert not found.status.is_ok
    assert "hunter2" not in found.to_json()


async def test_a_turn_is_a_span_of_its_own_trace_linked_to_the_senders(finished: Finished) -> None:
    sent = await ask(Traced(Mailbox(10), own=SAMPLED), OTHER)
    (turn,) = finished()
    assert (turn.name, ids(turn)) == ("turn str", (TRACE_ID, SPAN_ID))
    assert [f"{link.context.trace_id:032x}" for link in turn.links] == ["1" * 32]
    assert sent["traceparent"].split("-")[1] == TRACE_ID


async def test_work_outside_of_any_trace_is_not_recorded(finished: Finished) -> None:
    assert await ask(Traced(Mailbox(10)), None) == {}
    assert finished() == []


def test_without_a_recorder_a_trace_is_passed_on_as_it_is() -> None:
    with within_trace(SAMPLED), span("outer"):
        assert traceparent.get() == SAMPLED


@pytest.mark.parametrize(
    "variables", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}]
)
def test_nothing_is_exported_unless_it_is_wanted(variables: dict[str, str]) -> None:
    export_traces(variables)
    assert start_span("x", SAMPLED) is None


def test_a_missing_library_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(__import__("sys").modules, "holdfast.telemetry.traces.otel")
    with structlog.testing.capture_logs() as lines:
        export_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert [line["log_level"] for line in lines] == ["warning"]
    assert start_span("x", SAMPLED) is None


def test_only_the_exporter_imports_the_library() -> None:
    source = Path(__file__).parents[2] / "src" / "holdfast"
    found = [
        path.name
        for path in source.rglob("*.py")
        if "import opentelemetry" in (text := path.read_text()) or "from opentelemetry" in text
    ]
    assert found == ["otel.py"]
