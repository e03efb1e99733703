"""Quotes: refusals in order, hostile inputs, canonical JSON, and ids that cannot be forged."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.ledger import plain_json
from holdfast.ledger.catalog.catalog import load_catalog, parse_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.ledger.catalog.seals import QUOTE_ID_CHARS_MAX, SealedQuote, quote_matches, seal_quote, unseal_quote
from holdfast.ledger.plain_json import canonical_json
from holdfast.ledger.refusals import CLAUSE_CHARS_MAX, MESSAGE_CHARS_MAX, PARAM_CHARS_MAX, VIOLATIONS_MAX, Refusal
from holdfast.ledger.values import new_id
from holdfast.providers.media.kinds import kind_rules

CATALOG = load_catalog(None, kind_rules())
KEY = b"a key of thirty-two bytes, or so"
NOW = datetime(2026, 11, 20, 18, 40, tzinfo=UTC)
IMAGE = {"prompt": "a lighthouse at dusk"}

LOOSE = """
[providers.studio]
kind = "studio"
[[models]]
id = "loose"
modality = "image"
type = "async"
created = "2026-11-01"
pricing = { mode = "per_request", unit_price = "1" }
upstream = { provider = "studio" }
input_schema = { type = "object" }
"""


def loose() -> Catalog:
    """Return a catalog whose one model accepts any object."""
    return parse_catalog(LOOSE, read_schema=lambda name: "{}", kinds=kind_rules())


def accepted(input: object, model: str = "studio/image-1") -> PricedInput:  # noqa: A002 - the API's name
    priced = quote_input(CATALOG, model, input)
    assert isinstance(priced, PricedInput), priced
    return priced


def refused(answer: object, code: str, param: str | None) -> Refusal:
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.param) == (code, param)
    assert len(answer.message) <= 1001
    return answer


def sealed(**changes: object) -> SealedQuote:
    quote = SealedQuote(
        quote_id=new_id("quo"),
        terms=accepted(IMAGE).terms,
        account_id=None,
        brand_id="holdfast",
        expires_at=NOW + timedelta(minutes=15),
    )
    return msgspec.structs.replace(quote, **changes)


def test_an_input_is_priced_with_its_defaults_filled_in() -> None:
    given_input = {"prompt": "x", "n": 2.0}
    priced = accepted(given_input)
    assert priced.input == {
        "prompt": "x",
        "n": 2,
        "width": 1024,
        "height": 1024,
        "style": "gradient",
    }
    input_json = canonical_json(priced.input)
    assert input_json == b'{"height":1024,"n":2,"prompt":"x","style":"gradient","width":1024}'
    assert priced.terms.input_hash == hashlib.sha256(input_json).hexdigest()
    assert priced.terms.hold_micro == 24_000
    assert priced.terms.catalog_version == CATALOG.version
    assert (priced.terms.provider, priced.terms.upstream_model) == ("studio", "poster")
    assert given_input == {"prompt": "x", "n": 2.0}


def test_an_explicit_default_makes_no_difference() -> None:
    assert accepted({**IMAGE, "n": 1, "style": "gradient"}).terms == accepted(IMAGE).terms
    assert accepted({**IMAGE, "n": 2}).terms.input_hash != accepted(IMAGE).terms.input_hash


def test_an_unknown_model_is_refused_first() -> None:
    assert "'nope'" in refused(quote_input(CATALOG, "nope", 7), "model_not_found", "model").message
    long = refused(quote_input(CATALOG, "m" * 100_000, {}), "model_not_found", "model")
    assert "mm" not in long.message
    assert len(long.message) < 300


def test_a_disabled_model_is_refused_before_its_input_is_validated() -> None:
    catalog = parse_catalog(LOOSE + 'status = "disabled"\n', read_schema=lambda name: "{}", kinds=kind_rules())
    refused(quote_input(catalog, "loose", 7), "model_not_available", "model")


def test_a_deprecated_model_is_still_priced() -> None:
    catalog = parse_catalog(LOOSE + 'status = "deprecated"\n', read_schema=lambda name: "{}", kinds=kind_rules())
    assert isinstance(quote_input(catalog, "loose", {}), PricedInput)


def test_a_sync_model_is_priced_like_any_other() -> None:
    assert not accepted({"messages": [{"content": "hello"}]}, "gateway/chat-1").terms.exact


@pytest.mark.parametrize("value", [None, 1, "x", [], True, 1.5, ("a",), b"x"])
def test_an_input_is_an_object(value: object) -> None:
    refused(quote_input(CATALOG, "studio/image-1", value), "invalid_input", "input")


@pytest.mark.parametrize(
    ("given_input", "param", "text"),
    [
        ({}, "input.prompt", "input.prompt is required"),
        ({"prompt": "x", "n": 5}, "input.n", "input.n must be at most 4"),
        ({"prompt": "x", "n": True}, "input.n", "input.n must be of type integer"),
        ({"prompt": "   "}, "input.prompt", "input.prompt must not be blank"),
        ({"prompt": "x", "style": "oil"}, "input.style", "must be one of gradient, mosaic, plasma"),
        ({"prompt": "x", "colour": "red"}, "input.colour", "is not a known field"),
        ({"prompt": "x" * 2001}, "input.prompt", "must have at most 2000 characters"),
        ({"prompt": "x", "seed": 1.5}, "input.seed", "must be of type integer"),
    ],
)
def test_an_input_that_violates_the_schema_is_refused(
    given_input: dict[str, object], param: str, text: str
) -> None:
    assert text in refused(quote_input(CATALOG, "studio/image-1", given_input), "invalid_input", param).message


def test_all_violations_are_listed_in_one_refusal() -> None:
    answer = quote_input(CATALOG, "studio/image-1", {"n": 9, "style": "oil", "seed": -1})
    assert isinstance(answer, Refusal)
    for place in ("input.prompt", "input.n", "input.style", "input.seed"):
        assert place in answer.message
    listed = {each.param: each.clause for each in answer.violations}
    assert listed == {
        "input.prompt": "input.prompt is required",
        "input.n": "input.n must be at most 4",
        "input.style": "input.style must be one of gradient, mosaic, plasma",
        "input.seed": "input.seed must be at least 0",
    }


def test_an_empty_text_is_one_violation() -> None:
    answer = quote_input(CATALOG, "studio/image-1", {"prompt": ""})
    assert isinstance(answer, Refusal)
    assert (answer.message, len(answer.violations)) == ("input.prompt must not be blank.", 1)


def test_what_a_refusal_lists_is_bounded() -> None:
    value = {f"{number} {'x' * 5000}": "y" * 5000 for number in range(100)}
    answer = quote_input(CATALOG, "studio/image-1", value)
    assert isinstance(answer, Refusal)
    assert len(answer.violations) == VIOLATIONS_MAX
    assert len(answer.message) <= MESSAGE_CHARS_MAX + 1
    for each in answer.violations:
        assert len(each.param or "") <= PARAM_CHARS_MAX
        assert len(each.clause) <= CLAUSE_CHARS_MAX


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"a": 10**400}, "input.a"),
        ({"a": -(10**16)}, "input.a"),
        ({"a": float("nan")}, "input.a"),
        ({"a": float("inf")}, "input.a"),
        ({"a": 1e300}, "input.a"),
        ({"a": {"b": [0, "nul \0 inside"]}}, "input.a.b.1"),
        ({"a": "\ud800"}, "input.a"),
        ({"\ud800": 1}, "input"),
        ({"k\0": 1}, "input"),
        ({1: 1}, "input"),
        ({"a": object()}, "input.a"),
        ({"a": "x" * (plain_json.TEXT_BYTES_MAX + 1)}, "input.a"),
        ({"x" * (plain_json.TEXT_BYTES_MAX + 1): 1}, "input"),
        ({"a": "🙂" * (plain_json.TEXT_BYTES_MAX // 4 + 1)}, "input.a"),
    ],
)
def test_a_hostile_input_is_refused(value: object, param: str) -> None:
    refused(quote_input(loose(), "loose", value), "invalid_input", param)


def test_an_input_may_be_nested_up_to_the_limit() -> None:
    assert isinstance(quote_input(loose(), "loose", nested(plain_json.DEPTH_LEVELS_MAX)), PricedInput)
    for levels in (plain_json.DEPTH_LEVELS_MAX + 1, 100_000):
        refusal = quote_input(loose(), "loose", nested(levels))
        assert isinstance(refusal, Refusal)
        assert "nested deeper" in refusal.message


def test_an_input_that_contains_itself_is_refused() -> None:
    value: dict[str, object] = {}
    value["a"] = value
    assert isinstance(quote_input(loose(), "loose", value), Refusal)


def test_an_input_may_have_values_up_to_the_limit() -> None:
    assert isinstance(quote_input(loose(), "loose", {"a": [1] * (plain_json.VALUES_MAX - 2)}), PricedInput)
    refusal = quote_input(loose(), "loose", {"a": [1] * plain_json.VALUES_MAX})
    assert isinstance(refusal, Refusal)


def test_a_path_with_the_callers_keys_is_shortened_and_printable() -> None:
    value = {"k\n" + "x" * 1000: float("nan")}
    refusal = quote_input(loose(), "loose", value)
    assert isinstance(refusal, Refusal)
    assert refusal.param is not None
    assert refusal.param.startswith("input.k?x")
    assert len(refusal.param) == PARAM_CHARS_MAX


json_values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.just("auto"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
field_names = st.sampled_from(["prompt", "n", "width", "duration", "resolution", "messages", "operation", "image"])


@given(
    model=st.sampled_from(sorted(CATALOG.models)),
    value=json_values | st.dictionaries(field_names | st.text(max_size=4), json_values, max_size=6),
)
@example(model="studio/clip-1", value={"prompt": "x", "duration": float("nan")})
def test_any_input_gives_a_price_or_a_refusal(model: str, value: object) -> None:
    answer = quote_input(CATALOG, model, value)
    if isinstance(answer, Refusal):
        assert answer.code in {"invalid_input", "quote_unavailable"}
        msgspec.json.encode(answer)
    else:
        assert answer.terms.maximum_micro == answer.terms.hold_micro


plain_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=5),
    max_leaves=12,
)


def turned(value: object) -> object:
    """Return the value with the keys of every object reversed."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@given(value=plain_values)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: object) -> None:
    assert canonical_json(turned(value)) == canonical_json(value)
    assert json.loads(canonical_json(value)) == value


def test_canonical_json_distinguishes_values() -> None:
    assert canonical_json({"b": [1, "1", None], "a": "é"}) == '{"a":"é","b":[1,"1",null]}'.encode()
    assert canonical_json({"a": 1}) != canonical_json({"a": "1"})
    assert canonical_json({"a": True}) != canonical_json({"a": 1})


@given(
    prompt=st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()) and "\0" not in text),
    n=st.integers(1, 4),
)
def test_equal_inputs_have_equal_terms_however_they_are_written(prompt: str, n: int) -> None:
    assert accepted({"prompt": prompt, "n": n}) == accepted({"n": float(n), "prompt": prompt})


@given(
    account_id=st.none() | st.text(max_size=20),
    brand_id=st.text(max_size=20),
    key=st.binary(min_size=1, max_size=80),
    minutes=st.integers(1, 10_000),
)
def test_a_sealed_quote_unseals_to_itself(account_id: str | None, brand_id: str, key: bytes, minutes: int) -> None:
    quote = sealed(account_id=account_id, brand_id=brand_id, expires_at=NOW + timedelta(minutes=minutes))
    assert unseal_quote(seal_quote(quote, key), [key], NOW) == quote


PUBLIC_ID = seal_quote(sealed(), KEY)


def test_a_quote_id_is_short_enough_and_fits_a_url() -> None:
    assert PUBLIC_ID.startswith("quo_")
    assert len(PUBLIC_ID) < QUOTE_ID_CHARS_MAX // 4
    assert set(PUBLIC_ID) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


@given(place=st.integers(0, len(PUBLIC_ID) - 1), sign=st.characters())
def test_any_changed_character_is_refused(place: int, sign: str) -> None:
    changed = PUBLIC_ID[:place] + sign + PUBLIC_ID[place + 1 :]
    if changed != PUBLIC_ID:
        refused(unseal_quote(changed, [KEY], NOW), "quote_mismatch", "quote_id")


def test_each_flipped_bit_is_refused() -> None:
    for place, sign in enumerate(PUBLIC_ID):
        for bit in range(7):
            changed = PUBLIC_ID[:place] + chr(ord(sign) ^ (1 << bit)) + PUBLIC_ID[place + 1 :]
            refused(unseal_quote(changed, [KEY], NOW), "quote_mismatch", "quote_id")


@given(garbage=st.text(st.characters(codec=None), max_size=200) | st.from_regex(r"quo_[0-9a-f]{8}\.[\w-]*\.[\w-]*"))
@example(garbage="")
@example(garbage="..")
@example(garbage=PUBLIC_ID + "=")
@example(garbage=PUBLIC_ID + "\n")
@example(garbage=PUBLIC_ID.rpartition(".")[0])
@example(garbage="quo_1.\ud800.x")
@example(garbage="x" * (QUOTE_ID_CHARS_MAX + 1))
def test_garbage_is_not_a_quote(garbage: str) -> None:
    refused(unseal_quote(garbage, [KEY], NOW), "quote_mismatch", "quote_id")


def test_another_key_unseals_nothing() -> None:
    refused(unseal_quote(PUBLIC_ID, [KEY + b"!"], NOW), "quote_mismatch", "quote_id")
    assert unseal_quote(PUBLIC_ID, [KEY + b"!", KEY], NOW) == unseal_quote(PUBLIC_ID, [KEY], NOW)


def test_parts_of_two_quotes_do_not_make_a_third() -> None:
    first, second = PUBLIC_ID.split("."), seal_quote(sealed(brand_id="other"), KEY).split(".")
    for mixed in (
        [second[0], first[1], first[2]],
        [first[0], second[1], first[2]],
        [first[0], first[1], second[2]],
    ):
        refused(unseal_quote(".".join(mixed), [KEY], NOW), "quote_mismatch", "quote_id")


def test_a_quote_expires_at_its_time() -> None:
    quote = sealed()
    public = seal_quote(quote, KEY)
    assert unseal_quote(public, [KEY], quote.expires_at - timedelta(milliseconds=1)) == quote
    assert refused(unseal_quote(public, [KEY], quote.expires_at), "quote_expired", "quote_id").final


def test_a_changed_expired_quote_is_a_mismatch_not_expired() -> None:
    public = seal_quote(sealed(), KEY)
    late = NOW + timedelta(days=1)
    refused(unseal_quote("x" + public[1:], [KEY], late), "quote_mismatch", "quote_id")


def test_a_quote_is_valid_for_its_model_input_and_account_only() -> None:
    terms = accepted(IMAGE).terms
    anyone, owned = sealed(), sealed(account_id="acct_1")

    def verdict(quote: SealedQuote, **other: str) -> Refusal | None:
        claim = {"model": terms.model, "input_hash": terms.input_hash, "account_id": "acct_1", **other}
        return quote_matches(quote, **claim)

    assert verdict(anyone) is None
    assert verdict(anyone, account_id="acct_2") is None
    assert verdict(owned) is None
    refused(verdict(owned, account_id="acct_2"), "quote_mismatch", "quote_id")
    refused(verdict(anyone, model="studio/clip-1"), "quote_mismatch", "quote_id")
    refused(verdict(anyone, input_hash="0" * 64), "quote_mismatch", "quote_id")
