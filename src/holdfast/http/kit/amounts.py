"""Amounts that callers send."""

from __future__ import annotations

from typing import Final

from holdfast.http.kit.shown import shown
from holdfast.ledger.money import format_amount, parse_amount
from holdfast.ledger.refusals import Refusal

ORDER_DECIMALS_MAX: Final = 2
"""How many decimals the amount of a payment may have."""


def read_amount(text: str, *, max_micro: int, decimals_max: int = ORDER_DECIMALS_MAX) -> int | Refusal:
    """Parse an amount as micro-credits. Refuses with ``invalid_amount``."""
    amount_micro = parse_amount(text, decimals_max=decimals_max)
    if amount_micro is None:
        rule = f"is not a plain decimal above zero with at most {decimals_max} decimals"
    elif amount_micro > max_micro:
        rule = f"is above the maximum of {format_amount(max_micro)}"
    else:
        return amount_micro
    return Refusal(code="invalid_amount", message=f"The amount {shown(text)} {rule}.", param="amount")
