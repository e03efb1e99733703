"""The header ``traceparent``: what is honoured, what is ignored."""

from __future__ import annotations

import pytest

from holdfast.telemetry.scrubbing import _Registered, register_secrets
from holdfast.telemetry.traces import new_traceparent, read_traceparent, trace_id, trace_id_in, within_trace

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.telemetry.scrubbing._registered", _Registered())


def test_a_valid_header_is_taken_with_its_flags() -> None:
    assert read_traceparent([SENT]) == SENT
    assert trace_id_in(SENT) == TRACE_ID


def test_a_later_version_is_read_as_the_first() -> None:
    assert read_traceparent([f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-brings"]) == SENT


@pytest.mark.parametrize(
    "values",
    [
        [],
        [SENT, SENT],
        [""],
        [SENT.upper()],
        [SENT + "-more"],
        [f" {SENT}"],
        [f"ff-{TRACE_ID}-{SPAN_ID}-01"],
        [f"00-{'0' * 32}-{SPAN_ID}-01"],
        [f"00-{TRACE_ID}-{'0' * 16}-01"],
        [f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01"],
        [f"00-{TRACE_ID}-{SPAN_ID}-01\n"],
        [f"cc-{TRACE_ID}-{SPAN_ID}-01-" + "x" * 256],
        ["sk_live_4eC39HqLyjWDarjtT1zdp7dc"],
    ],
)
def test_an_invalid_header_is_ignored(values: list[str]) -> None:
    assert read_traceparent(values) is None


def test_a_header_that_holds_a_secret_is_ignored() -> None:
    register_secrets([TRACE_ID])
    assert read_traceparent([SENT]) is None


def test_a_new_trace_has_the_digits_of_its_request() -> None:
    begun = new_traceparent(TRACE_ID)
    assert read_traceparent([begun]) == begun
    assert trace_id_in(begun) == TRACE_ID
    assert trace_id() is None
    with within_trace(begun):
        assert trace_id() == TRACE_ID
    assert trace_id() is None
