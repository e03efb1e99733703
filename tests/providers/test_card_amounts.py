"""From micro-credits to minor units, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.card.base import minor_decimals, minor_from_micro

MICRO_PER_MINOR = {"USD": 10_000, "eur": 10_000, "JPY": 1_000_000, "krw": 1_000_000, "KWD": 1000, "HUF": 10_000}


@pytest.mark.parametrize(
    ("amount_micro", "currency", "amount_minor"),
    [(10_000_000, "USD", 1000), (10_000, "usd", 1), (5_000_000, "JPY", 5), (1_234_000, "KWD", 1234), (0, "USD", 0)],
)
def test_amounts_are_counted_in_minor_units(amount_micro: int, currency: str, amount_minor: int) -> None:
    assert minor_from_micro(amount_micro, currency) == amount_minor


@pytest.mark.parametrize(("amount_micro", "currency"), [(2_500, "USD"), (500_000, "JPY"), (1, "KWD")])
def test_amounts_below_the_minor_unit_are_refused(amount_micro: int, currency: str) -> None:
    with pytest.raises(ValueError, match="not whole minor units"):
        minor_from_micro(amount_micro, currency)


@given(amount_minor=st.integers(-(10**15), 10**15), currency=st.sampled_from(sorted(MICRO_PER_MINOR)))
def test_every_whole_number_of_minor_units_is_exact(amount_minor: int, currency: str) -> None:
    assert minor_from_micro(amount_minor * MICRO_PER_MINOR[currency], currency) == amount_minor


def test_an_unknown_currency_has_two_decimals() -> None:
    assert minor_decimals("XXZ") == 2
