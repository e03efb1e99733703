"""Parsing of bodies: refusals, and fingerprints of values rather than of bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.endpoints.operators.orders import RefundRequest
from holdfast.http.kit.bodies import check_media_type, convert_body, fingerprint, parse_object
from holdfast.http.schemas.common import QuoteRequest, RechargeRequest, VerifyRequest
from holdfast.http.schemas.tasks import CreateTaskRequest
from holdfast.ledger.refusals import Refusal

PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(PLAIN_TEXT, inner),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"", b" ", b"null", b"[]", b'"text"', b"1", b"{", b"{}{}", b"{'a': 1}", b'{"a": 1,}', b"\xff\xfe",
        b"\xef\xbb\xbf{}", b"{}\x0c", b"\xc2\xa0{}",
        b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": -1e999}',
        b'{"a": 1, "a": 2}', b'{"b": {"a": 1, "\\u0061": 2}}', b'{"a": 9223372036854775808}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 65 + b"1" + b"}" * 65, b'{"a": "\\u0000"}', b'{"\\u0000": 1}', b'{"a": "\\ud800"}',
        b'{"a": ["\\udfff"]}',
        b'{"a": "\x00"}', b'{"a": "line\nbreak"}', b'{"a": "\xed\xa0\x80"}', b'{"a": 01}', b'{"a": +1}',
        b'{"a": 1.}',
    ],
)  # fmt: skip
def test_invalid_json_objects_are_refused(raw: bytes) -> None:
    parsed = parse_object(raw)
    assert isinstance(parsed, Refusal)
    assert parsed.code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b' {"a" : [1, 2.5, true, null]} ', {"a": [1, 2.5, True, None]}),
        (b'{"a": "\\\\u0000"}', {"a": "\\u0000"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": -9223372036854775808}', {"a": -(2**63)}),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", {"a": json.loads("[" * 60 + "]" * 60)}),
        (b'{"a": "' + b"[{" * 500 + b'"}', {"a": "[{" * 500}),
    ],
)
def test_valid_json_objects_are_decoded(raw: bytes, value: dict[str, Any]) -> None:
    assert parse_object(raw) == value


@given(st.dictionaries(PLAIN_TEXT, JSON_VALUES))
@pytest.mark.slow
def test_any_valid_object_is_decoded_however_it_is_formatted(value: dict[str, Any]) -> None:
    raw = parse_object(json.dumps(value).encode())
    spelled_out = parse_object(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True).encode())
    assert raw == spelled_out == value
    assert not isinstance(raw, Refusal)
    assert not isinstance(spelled_out, Refusal)
    assert fingerprint("/v2/quote", raw) == fingerprint("/v2/quote", spelled_out)


def test_fingerprints_differ_by_path_and_values_alone() -> None:
    assert fingerprint("/a", {"x": 1, "y": {"a": 1, "b": 2}}) == fingerprint("/a", {"y": {"b": 2, "a": 1}, "x": 1})
    seen = {
        fingerprint("/a", {"x": 1}),
        fingerprint("/b", {"x": 1}),
        fingerprint("/a", {"x": "1"}),
        fingerprint("/a", {"x": 1, "y": None}),
        fingerprint("/a", {}),
    }
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        ("application/merge-patch+json", True),
        (None, False),
        ("", False),
        ("text/plain", False),
        ("text/json", False),
        ("application/jsonp", False),
        ("application/x-www-form-urlencoded", False),
        ("application/json; charset=latin-1", False),
    ],
)
def test_a_body_must_have_the_media_type_json(content_type: str | None, taken: bool) -> None:
    refusal = check_media_type(content_type)
    assert (refusal is None) == taken
    assert refusal is None or refusal.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("shape", "body", "code", "param"),
    [
        (QuoteRequest, {}, "missing_parameter", "model"),
        (QuoteRequest, {"model": "m"}, "missing_parameter", "input"),
        (QuoteRequest, {"model": 5, "input": {}}, "invalid_parameter", "model"),
        (QuoteRequest, {"model": "m", "input": []}, "invalid_parameter", "input"),
        (QuoteRequest, {"model": "m", "input": None}, "invalid_parameter", "input"),
        (RechargeRequest, {"amount": 10}, "invalid_amount", "amount"),
        (RechargeRequest, {"amount": 10.5}, "invalid_amount", "amount"),
        (
            CreateTaskRequest,
            {"model": "m", "input": {}, "metadata": {"ok": "yes", "amount": 1, "b": 2}, "webhook_url": 7},
            "invalid_parameter",
            "metadata.amount",
        ),
        (CreateTaskRequest, {"model": "m", "input": {}, "quote_id": 7}, "invalid_parameter", "quote_id"),
    ],
)
def test_a_wrong_field_is_named(shape: type[msgspec.Struct], body: dict[str, Any], code: str, param: str) -> None:
    refused = convert_body(body, shape)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.param) == (code, param)


@pytest.mark.parametrize("amount", [10, 10.5, -1])
@pytest.mark.parametrize("shape", [RechargeRequest, RefundRequest])
def test_a_number_for_a_decimal_string_is_said_in_words(shape: type[msgspec.Struct], amount: float) -> None:
    refused = convert_body({"amount": amount, "reason": "why"}, shape)
    assert refused == Refusal(
        code="invalid_amount",
        message='The amount must be a decimal string in quotes, such as "10.00", not a JSON number.',
        param="amount",
    )


def test_a_number_for_a_text_is_said_in_words() -> None:
    refused = convert_body({"email": "ada@example.com", "otp_id": "otp_1", "otp": 123456}, VerifyRequest)
    assert isinstance(refused, Refusal)
    assert refused.message == "The otp must be a string in quotes, not a JSON number."


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            {"webhook_events": ["task.done"]},
            "The parameter webhook_events[0] must be one of task.assets_ready, task.canceled, task.failed, "
            "task.processing, task.review, task.succeeded, not 'task.done'.",
        ),
        ({"metadata": []}, "The parameter metadata is not valid: expected object | null, got array."),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_expected(field: dict[str, Any], message: str) -> None:
    refused = convert_body({"model": "m", "input": {}, **field}, CreateTaskRequest)
    assert isinstance(refused, Refusal)
    assert refused.message == message


def test_extra_keys_are_ignored() -> None:
    assert convert_body({"amount": "1", "more": [1]}, RechargeRequest) == RechargeRequest(amount="1")
