"""Conversion of micro-credits to the minor units used by card providers.

Most currencies have two decimals, some none, a few three. One credit is one unit of the order's currency, so a
micro-credit is a millionth of a unit in every currency.
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


def minor_from_micro(amount_micro: int, currency: str) -> int:
    """Convert micro-credits to minor units. Raises ``ValueError`` unless the amount is a whole number of them."""
    minor, rest = divmod(amount_micro, _micro_per_minor(currency))
    if rest:
        raise ValueError(f"{amount_micro} micro-credits are not whole minor units of {currency.upper()}")
    return minor


def _micro_per_minor(currency: str) -> int:
    return int(MICRO // 10 ** minor_decimals(currency))
