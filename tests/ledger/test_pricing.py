"""Prices: exact arithmetic, one rounding up, minimum, tiers, markup, and a charge that stays within its hold."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.catalog.catalog import load_catalog, parse_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.catalog.pricing import PricedInput, charge_for, price_input, price_micro, quote_input
from holdfast.ledger.catalog.terms import Rate, Terms, Units
from holdfast.ledger.refusals import Refusal
from holdfast.providers.media.kinds import kind_rules

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 4},
        "seconds": {"anyOf": [{"type": "number", "minimum": 0.5, "maximum": 9.5}, {"const": "auto"}]},
        "width": {"type": "integer", "minimum": 1, "maximum": 4000},
        "height": {"type": "integer", "minimum": 1, "maximum": 4000},
        "size": {"enum": ["1000x1000", "1000x1001", "2000x2000", "auto"]},
        "text": {"type": "string"},
        "messages": {"type": "array"},
        "max_tokens": {"type": "integer", "minimum": 0, "maximum": 100},
        "resolution": {"enum": ["low", "high", "vast"]},
        "sound": {"type": "boolean"},
        "grade": {"type": "integer"},
    },
}


def catalog_of(pricing: str, units: str = "", markup: str = "1", hold: str = "maximum") -> Catalog:
    text = f"""
[providers.studio]
kind = "studio"
[[models]]
id = "m"
modality = "image"
type = "async"
created = "2026-11-01"
markup_multiplier = "{markup}"
hold = "{hold}"
pricing = {{ {pricing} }}
units = {{ {units} }}
upstream = {{ provider = "studio" }}
input_schema = "s"
"""
    return parse_catalog(text, read_schema=lambda name: json.dumps(SCHEMA), kinds=kind_rules())


def terms_of(catalog: Catalog, given_input: dict[str, object]) -> Terms:
    priced = quote_input(catalog, "m", given_input)
    assert isinstance(priced, PricedInput), priced
    return priced.terms


def amounts(terms: Terms) -> tuple[int, int, int]:
    return terms.minimum_micro, terms.estimate_micro, terms.maximum_micro


def test_a_request_costs_one_unit() -> None:
    terms = terms_of(catalog_of('mode = "per_request", unit_price = "0.5"'), {"text": "anything"})
    assert amounts(terms) == (500_000,) * 3
    assert (terms.exact, terms.basis) == (True, "per_request: 1 x 0.5")


def test_inputs_of_equal_units_differ_in_their_hash_alone() -> None:
    catalog = catalog_of('mode = "per_request", unit_price = "0.5"')
    one, other = (terms_of(catalog, {"text": text}) for text in ("one", "other"))
    assert one.input_hash != other.input_hash
    assert one == msgspec.structs.replace(other, input_hash=one.input_hash)


def test_terms_are_those_of_the_model_that_is_priced_and_its_catalog() -> None:
    cheap, dear = (catalog_of(f'mode = "per_request", unit_price = "{price}"') for price in ("0.5", "1"))
    priced = [price_input(each.models["m"], name, {}) for each in (cheap, dear) for name in ("1st", "2nd")]
    terms = [each.terms for each in priced if isinstance(each, PricedInput)]
    found = [(each.catalog_version, each.hold_micro) for each in terms]
    assert found == [("1st", 500_000), ("2nd", 500_000), ("1st", 1_000_000), ("2nd", 1_000_000)]


@pytest.mark.parametrize(("given_input", "units"), [({}, 1), ({"n": 3}, 3), ({"n": 3.0}, 3)])
def test_images_are_counted(given_input: dict[str, object], units: int) -> None:
    terms = terms_of(catalog_of('mode = "per_image", unit_price = "0.01"', 'n = "n"', "1.20"), given_input)
    assert terms.estimated == terms.smallest == terms.largest == Units(units=units)
    assert amounts(terms) == (12_000 * units,) * 3
    assert terms.basis == f"per_image: {units} x 0.012"
    assert terms.rate.unit_price == "0.012"
    assert terms.exact


@pytest.mark.parametrize(
    ("given_input", "smallest", "estimated", "largest"),
    [
        ({"width": 1000, "height": 1000}, 1, 1, 1),
        ({"width": 1000, "height": 1001}, 2, 2, 2),
        ({"width": 1000, "height": 1001, "n": 2}, 4, 4, 4),
        ({"width": 1000}, 1, 2, 4),
        ({}, 1, 2, 16),
        ({"n": 2}, 2, 4, 32),
        ({"width": 3000, "height": 4000}, 12, 12, 12),
    ],
)
def test_megapixels_round_up_for_each_image(
    given_input: dict[str, object], smallest: int, estimated: int, largest: int
) -> None:
    catalog = catalog_of(
        'mode = "per_megapixel", unit_price = "0.001"', 'n = "n", width = "width", height = "height", typical = 2'
    )
    terms = terms_of(catalog, given_input)
    assert (terms.smallest.units, terms.estimated.units, terms.largest.units) == (smallest, estimated, largest)
    assert terms.exact == (smallest == largest)


@pytest.mark.parametrize(
    ("given_input", "expected"),
    [({"size": "1000x1001"}, (2, 2)), ({"size": "auto"}, (1, 4)), ({}, (1, 4))],
)
def test_a_size_string_is_read(given_input: dict[str, object], expected: tuple[int, int]) -> None:
    terms = terms_of(catalog_of('mode = "per_megapixel", unit_price = "1"', 'size = "size"'), given_input)
    assert (terms.smallest.units, terms.largest.units) == expected


@pytest.mark.parametrize(
    ("given_input", "units"),
    [
        ({"seconds": 4}, (4, 4, 4)),
        ({"seconds": 4.2}, (5, 5, 5)),
        ({"seconds": "auto"}, (1, 3, 10)),
        ({}, (1, 3, 10)),
    ],
)
def test_a_started_second_counts_in_full(given_input: dict[str, object], units: tuple[int, int, int]) -> None:
    catalog = catalog_of('mode = "per_second", unit_price = "0.05"', 'seconds = "seconds", typical = 3', "1.20")
    terms = terms_of(catalog, given_input)
    assert amounts(terms) == tuple(60_000 * each for each in units)
    assert terms.basis == f"per_second: {units[1]} x 0.06"


def test_characters_are_code_points() -> None:
    catalog = catalog_of(
        'mode = "per_character", unit = "1K characters", unit_size = 1000, unit_price = "3"', 'text = "text"'
    )
    terms = terms_of(catalog, {"text": "añ🙂"})
    assert terms.estimated.units == 3
    assert amounts(terms) == (9_000,) * 3
    assert terms.basis == "per_character: 3 x 3 / 1000"
    assert amounts(terms_of(catalog, {})) == (0, 0, 0)


def test_tokens_are_bounded_by_bytes_and_by_the_maximum_output() -> None:
    catalog = catalog_of(
        'mode = "per_token", unit = "1M tokens", unit_size = 1000000, input_price = "1", output_price = "10"',
        'text = "messages", output_tokens = "max_tokens", typical = 20',
    )
    terms = terms_of(catalog, {"messages": [{"content": "ñandú"}, {"content": "hi"}], "max_tokens": 50})
    assert terms.smallest == Units(units=1, tokens_in=1, tokens_out=0)
    assert terms.estimated == Units(units=55, tokens_in=35, tokens_out=20)
    assert terms.largest == Units(units=91, tokens_in=41, tokens_out=50)
    assert amounts(terms) == (1, 235, 541)
    assert not terms.exact
    assert terms.basis == "per_token: 35 in x 1 + 20 out x 10 / 1000000"
    assert charge_for(terms, Units(tokens_in=3, tokens_out=1)) == 13


def test_the_minimum_is_marked_up_and_part_of_the_basis() -> None:
    terms = terms_of(catalog_of('mode = "per_image", unit_price = "0.01", minimum = "0.02"', 'n = "n"', "1.5"), {})
    assert amounts(terms) == (30_000,) * 3
    assert terms.basis == "per_image: 1 x 0.015, at least 0.03"
    assert terms_of(
        catalog_of('mode = "per_image", unit_price = "0.01", minimum = "0.02"', 'n = "n"'), {"n": 2}
    ).basis == ("per_image: 2 x 0.01")


TIERED = (
    'mode = "per_image", unit_price = "1", tiers = ['
    '{ when = { resolution = "low" }, unit_price = "2" }, '
    '{ when = { resolution = "high", sound = true }, unit_price = "4" }, '
    '{ when = { resolution = "high" }, unit_price = "3" }, '
    '{ when = { grade = 1 }, unit_price = "5" }]'
)


@pytest.mark.parametrize(
    ("given_input", "credit"),
    [
        ({}, 1),
        ({"resolution": "low"}, 2),
        ({"resolution": "low", "sound": True}, 2),
        ({"resolution": "high"}, 3),
        ({"resolution": "high", "sound": False}, 3),
        ({"resolution": "high", "sound": True}, 4),
        ({"grade": 1}, 5),
    ],
)
def test_the_first_matching_tier_sets_the_price(given_input: dict[str, object], credit: int) -> None:
    assert terms_of(catalog_of(TIERED), given_input).hold_micro == credit * 1_000_000


@pytest.mark.parametrize("given_input", [{"resolution": "vast"}, {"sound": True}, {"grade": 2}])
def test_an_unknown_tier_is_refused_not_guessed(given_input: dict[str, object]) -> None:
    refusal = quote_input(catalog_of(TIERED), "m", given_input)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "quote_unavailable"
    assert refusal.param == f"input.{next(iter(given_input))}"


def test_the_price_hash_differs_by_tier_and_base_price_not_by_markup() -> None:
    proofs = [
        terms_of(catalog_of(TIERED), {"resolution": "low"}).provider_quote_hash,
        terms_of(catalog_of(TIERED), {"resolution": "high"}).provider_quote_hash,
        terms_of(catalog_of(TIERED.replace('"2"', '"2.5"')), {"resolution": "low"}).provider_quote_hash,
    ]
    assert len(set(proofs)) == 3
    assert terms_of(catalog_of(TIERED, markup="2"), {"resolution": "low"}).provider_quote_hash == proofs[0]


def test_the_worked_example_of_a_clip() -> None:
    catalog = load_catalog(None, kind_rules())
    exact = quote_input(catalog, "studio/clip-1", {"prompt": "a lighthouse at dusk", "duration": 4})
    open_ended = quote_input(catalog, "studio/clip-1", {"prompt": "a lighthouse at dusk", "duration": "auto"})
    assert isinstance(exact, PricedInput)
    assert isinstance(open_ended, PricedInput)
    assert (exact.terms.exact, exact.terms.basis) == (True, "per_second: 4 x 0.06")
    assert amounts(exact.terms) == (240_000, 240_000, 240_000)
    assert amounts(open_ended.terms) == (60_000, 240_000, 720_000)
    assert open_ended.terms.hold_micro == 720_000
    assert open_ended.terms.largest.units == 12


@pytest.mark.parametrize(
    ("units", "charge_micro"),
    [
        (Units(units=0), 0),
        (Units(units=-3), 0),
        (Units(units=1), 60_000),
        (Units(units=12), 720_000),
        (Units(units=13), 720_000),
        (Units(units=10**30), 720_000),
    ],
)
def test_a_charge_follows_the_units_up_to_the_hold(units: Units, charge_micro: int) -> None:
    priced = quote_input(load_catalog(None, kind_rules()), "studio/clip-1", {"prompt": "x", "duration": "auto"})
    assert isinstance(priced, PricedInput)
    assert charge_for(priced.terms, units) == charge_micro


prices = st.decimals(min_value=0, max_value=999_999, places=12, allow_nan=False).map(lambda price: f"{price:f}")


@given(price=prices, units=st.integers(0, 10**9), size=st.integers(1, 10**7), minimum=st.integers(0, 10**9))
def test_a_price_is_exact_and_rounded_up_once(price: str, units: int, size: int, minimum: int) -> None:
    rate = Rate(mode="per_character", unit="u", unit_size=size, unit_price=price, minimum_micro=minimum)
    charged = price_micro(rate, Units(units=units))
    exactly = Fraction(Decimal(price)) * units * 1_000_000 / size
    if units == 0:
        assert charged == 0
    else:
        assert charged >= exactly
        assert charged >= minimum
        assert charged == minimum or charged - exactly < 1


@given(
    data=st.data(),
    price=prices,
    markup=st.decimals(min_value="0.0001", max_value=10, places=4).map(lambda number: f"{number:f}"),
    minimum=st.none() | prices,
)
def test_quotes_are_ordered_and_the_hold_covers_every_charge(
    data: st.DataObject, price: str, markup: str, minimum: str | None
) -> None:
    metered: list[tuple[str, str, st.SearchStrategy[dict[str, object]]]] = [
        ("per_request", "", st.just({})),
        ("per_image", 'n = "n"', st.fixed_dictionaries({}, optional={"n": st.integers(1, 4)})),
        (
            "per_megapixel",
            'n = "n", width = "width", height = "height"',
            st.fixed_dictionaries(
                {},
                optional={
                    "n": st.integers(1, 4),
                    "width": st.integers(1, 4000),
                    "height": st.integers(1, 4000),
                },
            ),
        ),
        (
            "per_second",
            'n = "n", seconds = "seconds", typical = 3',
            st.fixed_dictionaries(
                {}, optional={"n": st.integers(1, 4), "seconds": st.floats(0.5, 9.5) | st.just("auto")}
            ),
        ),
    ]
    mode, units, inputs = data.draw(st.sampled_from(metered))
    least = "" if minimum is None else f', minimum = "{minimum}"'
    catalog = catalog_of(f'mode = "{mode}", unit_price = "{price}"{least}', units, markup)
    terms = terms_of(catalog, data.draw(inputs))
    assert 0 <= terms.minimum_micro <= terms.estimate_micro <= terms.maximum_micro == terms.hold_micro
    assert terms.exact == (terms.minimum_micro == terms.maximum_micro)
    most = catalog.models["m"].meter.most.units
    assert terms.smallest.units <= terms.estimated.units <= terms.largest.units <= most
    done = Units(units=data.draw(st.integers(0, 100)))
    assert 0 <= charge_for(terms, done) <= terms.hold_micro
    assert charge_for(terms, Units()) == 0
    assert charge_for(terms, terms.estimated) == terms.estimate_micro


@given(
    texts=st.lists(st.text(max_size=30), max_size=5),
    most_out=st.none() | st.integers(0, 100),
    input_price=prices,
    output_price=prices,
)
def test_token_quotes_are_ordered_and_bounded(
    texts: list[str], most_out: int | None, input_price: str, output_price: str
) -> None:
    catalog = catalog_of(
        f'mode = "per_token", unit_size = 1000000, input_price = "{input_price}", output_price = "{output_price}"',
        'text = "messages", output_tokens = "max_tokens"',
    )
    messages: list[object] = [{"content": text.replace("\0", "")} for text in texts]
    terms = terms_of(
        catalog, {"messages": messages} if most_out is None else {"messages": messages, "max_tokens": most_out}
    )
    assert 0 <= terms.minimum_micro <= terms.estimate_micro <= terms.maximum_micro == terms.hold_micro
    assert terms.largest.tokens_out == (100 if most_out is None else most_out)
    assert terms.largest.tokens_in >= sum(len(text.encode()) for text in texts if "\0" not in text)


GAPPY = (
    'mode = "per_request", unit_price = "0.05", tiers = [{ when = { resolution = "high" }, unit_price = "0.08" }]'
)


def test_an_input_without_a_tier_has_the_base_price_only_if_configured() -> None:
    refused = quote_input(catalog_of(GAPPY), "m", {"resolution": "low"})
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.param) == ("quote_unavailable", "input.resolution")
    assert terms_of(catalog_of(GAPPY), {}).estimate_micro == 50_000
    base_priced = catalog_of(f'{GAPPY}, otherwise = "base"')
    assert terms_of(base_priced, {"resolution": "low"}).estimate_micro == 50_000
    assert terms_of(base_priced, {"resolution": "high"}).estimate_micro == 80_000


@pytest.mark.parametrize(
    ("tiers", "gaps"),
    [
        ('{ when = { resolution = "high" }, unit_price = "1" }', "resolution = low, resolution = vast"),
        ('{ when = { sound = true }, unit_price = "1" }', "sound = false"),
        (
            '{ when = { grade = 1 }, unit_price = "1" }, { when = { grade = 2 }, unit_price = "1" }',
            "any other grade",
        ),
        (
            '{ when = { sound = true, resolution = "low" }, unit_price = "1" }, '
            '{ when = { resolution = "high" }, unit_price = "1" }, '
            '{ when = { resolution = "vast" }, unit_price = "1" }',
            "resolution = low and sound = false, resolution = low and no sound, no resolution and sound = true, "
            "no resolution and sound = false",
        ),
    ],
)
def test_valid_inputs_without_a_price_are_a_warning(tiers: str, gaps: str) -> None:
    pricing = f'mode = "per_request", unit_price = "0.05", tiers = [{tiers}]'
    (warning,) = catalog_of(pricing).warnings
    assert warning.startswith(f"model m: pricing: no tier has a price for {gaps}: such inputs are refused")
    assert catalog_of(f'{pricing}, otherwise = "base"').warnings == ()


def test_a_price_for_every_value_gives_no_warning() -> None:
    tiers = ", ".join(f'{{ when = {{ resolution = "{r}" }}, unit_price = "1" }}' for r in ("low", "high", "vast"))
    assert catalog_of(f'mode = "per_request", unit_price = "0.05", tiers = [{tiers}]').warnings == ()
    assert load_catalog(None, kind_rules()).warnings == ()


def test_the_hold_is_the_maximum_cost_or_as_configured_the_estimate() -> None:
    pricing, units = 'mode = "per_second", unit_price = "0.05"', 'seconds = "seconds", typical = 4'
    wide = terms_of(catalog_of(pricing, units), {"seconds": "auto"})
    narrow = terms_of(catalog_of(pricing, units, hold="estimate"), {"seconds": "auto"})
    assert amounts(wide) == amounts(narrow) == (50_000, 200_000, 500_000)
    assert (wide.hold_micro, narrow.hold_micro) == (500_000, 200_000)
    assert (charge_for(wide, Units(units=9)), charge_for(narrow, Units(units=9))) == (450_000, 200_000)
    assert terms_of(catalog_of(pricing, units, hold="estimate"), {"seconds": 3}).hold_micro == 150_000
    assert not narrow.exact


def test_the_version_depends_on_what_is_held() -> None:
    pricing = 'mode = "per_request", unit_price = "1"'
    assert catalog_of(pricing).version != catalog_of(pricing, hold="estimate").version
