"""The charge of a task whose provider's report differs from the measurement."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.catalog.terms import PricingMode, Rate, Terms, Units
from holdfast.ledger.tasks.charge import Charge, charge_of
from holdfast.ledger.tasks.provider_update import ReportedUsage
from holdfast.ledger.tasks.task import OutputItem

PRICE_MICRO = 100_000


def terms_of(
    *, mode: PricingMode = "per_second", least: int = 1, expected: int = 4, most: int = 12, **changes: Any
) -> Terms:
    """Return terms of an input with an open amount of work, from ``least`` to ``most``."""
    spans: dict[str, Any] = {
        name: Units(tokens_in=count, tokens_out=count) if mode == "per_token" else Units(units=count)
        for name, count in (("smallest", least), ("estimated", expected), ("largest", most))
    }
    hold_micro = PRICE_MICRO * most * (2 if mode == "per_token" else 1)
    return Terms(
        model="m", modality="video", catalog_version="cat_1", input_hash="0", provider="p", upstream_model="m",
        rate=Rate(mode=mode, unit="second", unit_price="0.1", input_price="0.1", output_price="0.1"),
        estimate_micro=PRICE_MICRO * expected, minimum_micro=PRICE_MICRO * least, maximum_micro=hold_micro,
        hold_micro=hold_micro, exact=False, basis="x", provider_quote_hash="0", **spans, **changes,
    )  # fmt: skip


def clip(duration_s: float | None = None, *, claimed: bool = False) -> OutputItem:
    return OutputItem(index=0, asset_id="asset_1", duration_s=duration_s, duration_claimed=claimed)


def charged(units: int | None, *items: OutputItem, lost: int = 0, **terms: Any) -> Charge:
    fixed = terms_of(**terms)
    return charge_of(fixed, fixed.hold_micro, None if units is None else ReportedUsage(units=units), items, lost)


@pytest.mark.parametrize(
    ("reported", "duration_s", "units", "is_mismatch"),
    [
        (None, 3.0, 3, False),
        (3, 3.0, 3, False),
        # Within the tolerance the smaller counts, and there is no mismatch.
        (4, 3.0, 3, False),
        (2, 3.0, 2, False),
        # A report far above, far below, and of zero.
        (10**9, 3.0, 3, True),
        (10**18, 3.0, 3, True),
        (9, 3.0, 3, True),
        (1, 11.0, 1, True),
        (0, 11.0, 11, True),
        # Without a measurement the report counts up to what could be ordered.
        (7, None, 7, False),
        (12, None, 12, False),
        (10**18, None, 4, True),
        (30, None, 4, True),
        (0, None, 4, True),
        (None, None, 4, False),
    ],
)
def test_the_measurement_is_charged_or_a_smaller_report(
    reported: int | None, duration_s: float | None, units: int, is_mismatch: bool
) -> None:
    charge = charged(reported, clip(duration_s))
    assert (charge.units.units, charge.amount_micro) == (units, units * PRICE_MICRO)
    assert (charge.mismatch is not None) == is_mismatch


def test_reported_sizes_and_durations_count_as_a_report() -> None:
    assert charged(None, clip(7.0, claimed=True)).units.units == 7
    beyond = charged(None, clip(1e9, claimed=True))
    assert beyond.units.units == 4
    assert beyond.mismatch == "the provider reported 1000000000 (second); 4 (second) expected"
    assert charged(3, clip(1e9, claimed=True)).units.units == 3


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out", "counted", "is_mismatch"),
    [(10, 2, (10, 2), False), (12, 13, (12, 13), False), (0, 0, (4, 4), True), (5, 10**15, (4, 4), True)],
)
def test_reported_tokens_count_up_to_what_could_be_ordered(
    tokens_in: int, tokens_out: int, counted: tuple[int, int], is_mismatch: bool
) -> None:
    terms = terms_of(mode="per_token")
    usage = ReportedUsage(tokens_in=tokens_in, tokens_out=tokens_out)
    charge = charge_of(terms, terms.hold_micro, usage, [clip()], 0)
    assert ((charge.units.tokens_in, charge.units.tokens_out), charge.mismatch is not None) == (
        counted,
        is_mismatch,
    )


@pytest.mark.parametrize("mode", ["per_request", "per_character"])
def test_a_request_is_measured_by_itself(mode: PricingMode) -> None:
    exact = {"least": 4, "expected": 4, "most": 4}
    assert charged(10**15, clip(), mode=mode, **exact).units.units == 4
    assert charged(0, clip(), mode=mode, **exact).units.units == 4
    assert charged(1, clip(), mode=mode, **exact).units.units == 1


def test_the_tolerance_is_that_of_the_terms() -> None:
    assert charged(60, clip(100.0), most=200).mismatch is not None
    assert charged(60, clip(100.0), most=200, tolerance_percent=50).mismatch is None


def test_only_stored_outputs_are_charged() -> None:
    assert charged(8, clip(4.0), lost=1) == (Units(units=4), 4 * PRICE_MICRO, None)
    assert charged(8, clip(), lost=1).units.units == 4
    # A started unit counts, so that a delivered output is never free.
    assert charged(1, clip(), lost=3).units.units == 1


def test_terms_without_a_tolerance_have_the_default_one() -> None:
    written = msgspec.json.decode(msgspec.json.encode(terms_of()))
    assert not {"tolerance_percent", "on_mismatch"} & written.keys()
    read = msgspec.convert(written, Terms)
    assert (read.tolerance_percent, read.on_mismatch) == (5, "smaller")


@given(
    mode=st.sampled_from(["per_image", "per_megapixel", "per_second", "per_request", "per_character", "per_token"]),
    span=st.lists(st.integers(1, 10**6), min_size=3, max_size=3).map(sorted),
    units=st.none() | st.integers(-5, 10**20) | st.sampled_from([0, 1]),
    tokens=st.none() | st.integers(-5, 10**20),
    items=st.lists(
        st.builds(
            OutputItem,
            index=st.just(0),
            width=st.none() | st.integers(1, 10**9),
            height=st.none() | st.integers(1, 10**9),
            duration_s=st.none() | st.floats(0.001, 1e12),
            size_claimed=st.booleans(),
            duration_claimed=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    lost=st.integers(0, 3),
    on_mismatch=st.sampled_from(["smaller", "review"]),
)
def test_no_report_exceeds_the_hold_or_makes_a_result_free(
    *,
    mode: PricingMode,
    span: list[int],
    units: int | None,
    tokens: int | None,
    items: list[OutputItem],
    lost: int,
    on_mismatch: Literal["smaller", "review"],
) -> None:
    least, expected, most = span if mode not in {"per_request", "per_character"} else span[:1] * 3
    terms = terms_of(mode=mode, least=least, expected=expected, most=most, on_mismatch=on_mismatch)
    usage = ReportedUsage(units=units, tokens_in=tokens, tokens_out=units)
    charge = charge_of(terms, terms.hold_micro, usage, items, lost)
    assert 0 < charge.amount_micro <= terms.hold_micro
    without = charge_of(terms, terms.hold_micro, None, items, lost)
    measurable = mode != "per_token" and not any(item.size_claimed or item.duration_claimed for item in items)
    measurable = measurable and all(item.width and item.height and item.duration_s is not None for item in items)
    if measurable:
        # No report raises the charge above the measurement.
        assert charge.amount_micro <= without.amount_micro
    elif (units or 0) > most * 2 + 10 and mode == "per_second":
        # A report beyond what could be ordered raises nothing; its share of the outputs may still be the smaller.
        assert charge.units.units <= max(without.units.units, most + most * 5 // 100 + 1)
