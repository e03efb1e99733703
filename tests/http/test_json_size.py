"""The number of values in a JSON body is known before decoding, whatever its strings contain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.kit import bodies
from holdfast.http.kit.bodies import json_size, parse_object
from holdfast.ledger.refusals import Refusal

MARKS = st.text(st.sampled_from('[{,:"\\]} a\u00e9'), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | MARKS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(MARKS, inner, max_size=6),
    max_leaves=30,
)


def count(value: Any) -> int:
    """How many values there are, the slow way."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, below))


@given(VALUES, st.integers(1, 40), st.booleans())
def test_no_body_has_more_values_than_counted(value: Any, values_max: int, is_spelled_out: bool) -> None:
    raw = json.dumps(value, ensure_ascii=is_spelled_out).encode()
    size = json_size(raw, values_max)
    real = count(value)
    if size is None:
        # Empty lists and objects count for two.
        assert 2 * real > values_max
    else:
        assert real <= values_max
        assert size.containers_count <= raw.count(b"[") + raw.count(b"{")


def test_commas_inside_a_string_do_not_count() -> None:
    prose = 'one, two: [three], {four}, "five\\" \\\\' * 5000
    size = json_size(json.dumps({"input": {"prompt": prose}}).encode(), 100)
    assert size is not None
    assert size.values_count <= 5


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":[' + b"{}," * 349_000 + b"{}]}",
        b'{"a":[' + b'"",' * 300_000 + b'""]}',
        b"{" + b",".join(b'"%d":1' % number for number in range(90_000)) + b"}",
        b'{"a":' + b"[" * 500_000,
        b'{"a":[' + b"1," * 500_000,
        b'{"\\\\":[' + b"{}," * 300_000 + b"{}]}",
    ],
    ids=["objects", "strings", "keys", "depth", "unended", "escaped"],
)
def test_many_small_values_are_refused_before_decoding(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unused:
        def decode(self, text: str) -> object:
            raise AssertionError("decoded")

    monkeypatch.setattr(bodies, "_DECODER", Unused())
    refused = parse_object(raw)
    assert isinstance(refused, Refusal)
    assert (refused.code, "values" in refused.message) == ("invalid_json", True)
