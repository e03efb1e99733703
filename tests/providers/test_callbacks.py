"""Parsing callbacks: what is accepted and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate, ReportedError, ReportedUsage
from holdfast.providers.media.callbacks import BODY_MAX_BYTES, INLINE_MAX_CHARS, OUTPUTS_MAX_COUNT, parse_callback

LEAST = {"event_id": "evt_01", "request_id": "task_01", "attempt": 1, "status": "processing"}


def read(**changes: Any) -> ProviderUpdate | Refusal:
    return parse_callback("studio", json.dumps({**LEAST, **changes}).encode())


def update(**changes: Any) -> ProviderUpdate:
    result = read(**changes)
    assert isinstance(result, ProviderUpdate), result
    return result


def refusal(**changes: Any) -> Refusal:
    result = read(**changes)
    assert isinstance(result, Refusal), result
    return result


def test_an_event_of_required_fields_is_an_update() -> None:
    assert update() == ProviderUpdate(
        source="callback",
        provider="studio",
        event_id="evt_01",
        request_id="task_01",
        attempt=1,
        status="processing",
    )


def test_full_event_is_carried_over() -> None:
    full = update(
        provider="studio",
        provider_ref="task_01.1",
        sequence=3,
        occurred_at="2026-11-20T18:40:00Z",
        status="succeeded",
        raw_status="done",
        stage="encode",
        message="all well",
        percent=100,
        outputs=[
            {
                "url": "http://127.0.0.1:9/files/a.png?exp=1",
                "content_type": "Image/PNG; charset=x",
                "bytes": 10,
                "sha256": "A" * 64,
                "width": 8,
                "height": 4,
                "duration_s": 1,
            },
            {"data": base64.b64encode(b"hello").decode(), "content_type": "image/webp"},
        ],
        usage={"units": 2, "unit": "image", "provider_cost": 0.25, "provider_ms": 81},
        error={"code": "x", "message": "y", "retryable": True},
        moderation={"flagged": True, "categories": ["violence"]},
        something_else={"deep": [1, 2, 3]},
    )
    assert full.outputs == (
        Output(
            index=0,
            url="http://127.0.0.1:9/files/a.png?exp=1",
            content_type="image/png",
            bytes=10,
            sha256="a" * 64,
            width=8,
            height=4,
            duration_s=1.0,
        ),
        Output(index=1, data=base64.b64encode(b"hello").decode(), content_type="image/webp"),
    )
    assert full.usage == ReportedUsage(units=2, unit="image", provider_cost="0.25", provider_ms=81)
    assert full.error == ReportedError(code="x", message="y", retryable=True)
    assert full.moderation == Moderation(flagged=True, categories=("violence",))
    assert (full.percent, full.sequence, full.stage, full.raw_status) == (100, 3, "encode", "done")


def test_error_may_be_a_plain_string() -> None:
    assert update(status="failed", error="out of paint").error == ReportedError(message="out of paint")


def test_data_url_becomes_inline_data() -> None:
    output = update(outputs=[{"url": "data:image/PNG;base64,aGVsbG8="}]).outputs[0]
    assert (output.url, output.data, output.content_type) == (None, "aGVsbG8=", "image/png")


def test_long_and_dirty_prose_is_cut_and_cleaned() -> None:
    cut = update(message="a\x00b" + "x" * 5000, stage="s" * 500)
    assert cut.message is not None
    assert cut.stage is not None
    assert len(cut.message) == 500
    assert cut.message.startswith("a bx")
    assert cut.message.endswith("…")
    assert len(cut.stage) == 64


@pytest.mark.parametrize("percent", [0, 100, None])
def test_percent_within_bounds_is_an_update(percent: int | None) -> None:
    assert update(percent=percent).percent == percent


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"percent": -1}, "percent"),
        ({"percent": 101}, "percent"),
        ({"percent": "50"}, "percent"),
        ({"percent": True}, "percent"),
        ({"status": "paused"}, "status"),
        ({"status": None}, "status"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": 2**31}, "attempt"),
        ({"sequence": 2**63}, "sequence"),
        ({"event_id": ""}, "event_id"),
        ({"event_id": "a" * 201}, "event_id"),
        ({"event_id": "a\x00"}, "event_id"),
        ({"request_id": "a b"}, "request_id"),
        ({"provider": "other"}, "provider"),
        ({"outputs": [{}]}, "outputs[0]"),
        ({"outputs": [{"url": "http://a/b", "data": "aGk="}]}, "outputs[0]"),
        ({"outputs": [{"url": "file:///etc/passwd"}]}, "outputs[0].url"),
        ({"outputs": [{"url": "http://a/\nb"}]}, "outputs[0].url"),
        ({"outputs": [{"url": "data:text/plain,hello"}]}, "outputs[0].url"),
        ({"outputs": [{"data": "***"}]}, "outputs[0].data"),
        ({"outputs": [{"data": "A" * (INLINE_MAX_CHARS + 4)}]}, "outputs[0].data"),
        ({"outputs": [{"url": "http://a/b", "sha256": "abc"}]}, "outputs[0].sha256"),
        ({"outputs": [{"url": "http://a/b"}] * (OUTPUTS_MAX_COUNT + 1)}, "outputs"),
        ({"outputs": [{"url": "http://a/b", "index": 1}] * 2}, "outputs"),
    ],
)
def test_what_is_out_of_shape_is_an_invalid_event(changes: dict[str, Any], param: str) -> None:
    assert refusal(**changes).code == "invalid_event"
    assert refusal(**changes).param == param


@pytest.mark.parametrize("missing", sorted(LEAST))
def test_required_fields_are_required(missing: str) -> None:
    body = json.dumps({name: value for name, value in LEAST.items() if name != missing}).encode()
    result = parse_callback("studio", body)
    assert isinstance(result, Refusal)
    assert result.code == "invalid_event"
    assert missing in result.message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"event_id":"\xff"}', b'{"x":' + b"[" * 100_000, b"{} {}"],
)
def test_what_is_not_a_json_object_is_an_invalid_event(body: bytes) -> None:
    result = parse_callback("studio", body)
    assert isinstance(result, Refusal)
    assert result.code == "invalid_event"


def test_size_is_bounded() -> None:
    body = json.dumps(LEAST).encode()
    assert isinstance(parse_callback("studio", body + b" " * (BODY_MAX_BYTES - len(body))), ProviderUpdate)
    too_large = parse_callback("studio", body + b" " * BODY_MAX_BYTES)
    assert isinstance(too_large, Refusal)
    assert too_large.code == "request_too_large"


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = ["outputs", "usage", "error", "moderation", "percent", "message", "sequence", "provider_ref", "stage"]


@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES))
def test_no_value_raises_or_results_in_an_unstorable_update(changes: dict[str, Any]) -> None:
    result = read(**changes)
    assert b"\\u0000" not in msgspec.json.encode(result)
    assert isinstance(result, ProviderUpdate) or result.code == "invalid_event"


@given(st.binary(max_size=400))
def test_no_bytes_raise(body: bytes) -> None:
    assert isinstance(parse_callback("studio", body), Refusal)
