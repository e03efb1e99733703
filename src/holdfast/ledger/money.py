"""Credit amounts: integers of one millionth of a credit internally, plain decimal strings in the API."""

from __future__ import annotations

import re
from typing import Final

MICRO = 1_000_000
"""Micro-credits in one credit (1 credit = 1 USD)."""

AMOUNT_MICRO_MAX = 10**15
"""The largest amount or balance the ledger holds: a billion credits, well within a BIGINT."""

CURRENCY: Final = "USD"

_PLAIN_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,12}))?", re.ASCII)


def parse_amount(text: str, *, decimals_max: int) -> int | None:
    """Parse a plain decimal string as micro-credits; None if it is not one.

    Not accepted: sign, exponent, blanks, leading zeros, more than ``decimals_max`` decimals, zero, and anything
    above ``AMOUNT_MICRO_MAX``. No float is involved.
    """
    match = _PLAIN_DECIMAL.fullmatch(text)
    if match is None:
        return None
    whole, fraction = match.group(1), match.group(2) or ""
    if len(fraction) > decimals_max:
        return None
    amount_micro = int(whole) * MICRO + int(fraction.ljust(6, "0")[:6])
    return amount_micro if 0 < amount_micro <= AMOUNT_MICRO_MAX else None


def format_amount(amount_micro: int) -> str:
    """Format micro-credits as a decimal string with 2 to 6 decimals: 9_760_000 is "9.76", 2_500 is "0.0025"."""
    sign = "-" if amount_micro < 0 else ""
    whole, fraction = divmod(abs(amount_micro), MICRO)
    digits = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"


def format_price(price: str) -> str:
    """Format a plain decimal string with at least 2 decimals: "1" is "1.00".

    A price may be finer than a micro-credit; all its decimals are retained, since rounding would change it.
    """
    whole, _, fraction = price.partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"
