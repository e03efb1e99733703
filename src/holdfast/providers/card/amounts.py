"""Conversion between micro-units and the minor units that card providers count in.

Most currencies have two decimals, some none, a few three; the table is Stripe's, in which UGX has two. One credit
is one unit of the order's currency, so a micro-credit is a millionth of a unit in every currency.
"""

from __future__ import annotations

from typing import Final

from holdfast.ledger.money import MICRO

_ZERO_DECIMALS: Final = frozenset(
    "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF".split()  # noqa: SIM905 - reads as a table
)
_THREE_DECIMALS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
DECIMALS_DEFAULT: Final = 2


def minor_decimals(currency: str) -> int:
    """Return how many decimals the minor unit of ``currency`` (in either case) has."""
    code = currency.upper()
    if code in _ZERO_DECIMALS:
        return 0
    return 3 if code in _THREE_DECIMALS else DECIMALS_DEFAULT


def micro_per_minor(currency: str) -> int:
    """Return how many micro-units one minor unit of ``currency`` is: 10_000 for a cent."""
    return int(MICRO // 10 ** minor_decimals(currency))


def minor_from_micro(amount_micro: int, currency: str) -> int:
    """Convert micro-units to minor units. Raises ``ValueError`` unless the amount is a whole number of them."""
    minor, rest = divmod(amount_micro, micro_per_minor(currency))
    if rest:
        raise ValueError(f"{amount_micro} micro-credits are not whole minor units of {currency.upper()}")
    return minor
