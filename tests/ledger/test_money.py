from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.values import AMOUNT_MICRO_MAX, MICRO, format_amount, format_price, parse_amount

amounts = st.integers(1, AMOUNT_MICRO_MAX)


@given(amounts)
def test_a_formatted_amount_parses_to_itself(amount_micro: int) -> None:
    assert parse_amount(format_amount(amount_micro), decimals_max=6) == amount_micro


@given(st.integers(-AMOUNT_MICRO_MAX, AMOUNT_MICRO_MAX))
def test_an_amount_is_written_exactly_with_two_to_six_decimals(amount_micro: int) -> None:
    text = format_amount(amount_micro)
    assert Decimal(text) * MICRO == amount_micro
    assert re.fullmatch(r"-?[0-9]+\.[0-9]{2,6}", text)
    assert not re.search(r"\.[0-9]{2,}0$", text)


@pytest.mark.parametrize(
    ("price", "written"),
    [("1", "1.00"), ("0.5", "0.50"), ("0.012", "0.012"), ("1.80", "1.80"), ("10.2500", "10.25"),
     ("0.00000025", "0.00000025")],
)  # fmt: skip
def test_a_price_is_written_like_an_amount_and_never_rounded(price: str, written: str) -> None:
    assert format_price(price) == written
    assert Decimal(written) == Decimal(price)


@given(st.decimals(0, 10**9, places=6), st.integers(0, 12))
def test_too_many_decimals_are_refused_even_if_they_are_zeros(value: Decimal, decimals_max: int) -> None:
    text = f"{value:.6f}"
    exact = int(value * MICRO)
    assert parse_amount(text, decimals_max=decimals_max) == (exact if decimals_max >= 6 and exact > 0 else None)


@given(st.text())
def test_any_text_is_either_refused_or_a_plain_decimal_of_that_value(text: str) -> None:
    amount_micro = parse_amount(text, decimals_max=6)
    if amount_micro is not None:
        assert text.isascii()
        assert amount_micro == Decimal(text) * MICRO


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "0", "0.00", "-1", "+1", "01", "00.5", ".5", "5.", "1e3", "1E3", "1_000", "1,000", "1 ", " 1",
        "1\n", "\u0661", "\uff11", "1.\u0660", "NaN", "Infinity", "0x10", "1.0000001", "1000000000.01", "9" * 40,
        "1\x00",
    ],
)  # fmt: skip
def test_anything_but_a_plain_amount_above_zero_is_refused(text: str) -> None:
    assert parse_amount(text, decimals_max=6) is None


@pytest.mark.parametrize(
    ("text", "amount_micro"),
    [("10", 10_000_000), ("9.76", 9_760_000), ("0.0025", 2_500), ("0.000001", 1), ("1000000000", 10**15)],
)
def test_known_amounts(text: str, amount_micro: int) -> None:
    assert parse_amount(text, decimals_max=6) == amount_micro


def test_decimals_beyond_the_sixth_never_count() -> None:
    assert parse_amount("1.0000009", decimals_max=12) == 1_000_000
