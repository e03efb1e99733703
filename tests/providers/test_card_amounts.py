"""Between micro-credits and minor units, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.card.amounts import format_minor, micro_from_minor, minor_decimals, minor_from_micro

CURRENCIES = ("USD", "eur", "JPY", "krw", "KWD", "HUF")


@pytest.mark.parametrize(
    ("amount_micro", "currency", "amount_minor"),
    [(10_000_000, "USD", 1000), (10_000, "usd", 1), (5_000_000, "JPY", 5), (1_234_000, "KWD", 1234), (0, "USD", 0)],
)
def test_amounts_convert_both_ways(amount_micro: int, currency: str, amount_minor: int) -> None:
    assert minor_from_micro(amount_micro, currency) == amount_minor
    assert micro_from_minor(amount_minor, currency) == amount_micro


@pytest.mark.parametrize(("amount_micro", "currency"), [(2_500, "USD"), (500_000, "JPY"), (1, "KWD")])
def test_what_no_coin_can_pay_is_refused(amount_micro: int, currency: str) -> None:
    with pytest.raises(ValueError, match="not whole minor units"):
        minor_from_micro(amount_micro, currency)


@given(amount_minor=st.integers(-(10**15), 10**15), currency=st.sampled_from(CURRENCIES))
def test_minor_units_survive_the_way_there_and_back(amount_minor: int, currency: str) -> None:
    assert minor_from_micro(micro_from_minor(amount_minor, currency), currency) == amount_minor


@pytest.mark.parametrize(
    ("amount_minor", "currency", "written"),
    [(976, "USD", "9.76"), (-59, "usd", "-0.59"), (500, "JPY", "500"), (1, "KWD", "0.001"), (0, "USD", "0.00")],
)
def test_minor_units_are_written_in_major_ones(amount_minor: int, currency: str, written: str) -> None:
    assert format_minor(amount_minor, currency) == written


def test_an_unknown_currency_has_two_decimals() -> None:
    assert minor_decimals("XXZ") == 2
