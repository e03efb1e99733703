"""What a finished task costs: the work actually done, at the task's own terms, never above its hold.

The work is what the provider reports, else what was measured on the stored outputs, else the estimate. Pictures
are counted on the outputs themselves: a customer never pays for one that cannot be fetched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.ledger.news import ReportedUsage
from holdfast.ledger.pricing import charge_for
from holdfast.ledger.tasks import OutputItem
from holdfast.ledger.terms import Terms, Units

UNITS_MAX = 10**15
"""A provider's number above this is taken as this; it stays inside a BIGINT."""

_BY_OUTPUT = frozenset({"per_image", "per_megapixel", "per_second"})


def charge_micro_of(
    terms: Terms, hold_micro: int, usage: ReportedUsage | None, stored: Sequence[OutputItem], lost: int
) -> tuple[Units, int]:
    """The billable units and the charge for ``stored`` outputs, when ``lost`` more could not be kept.

    Where the units do not count outputs (a request, tokens), lost outputs reduce the charge in proportion.
    """
    mode = terms.rate.mode
    units = _reported(terms, usage)
    measured = measured_units(terms, stored)
    if units is None:
        units = measured or terms.estimated
    if mode in _BY_OUTPUT:
        if measured is not None and (lost or mode == "per_image"):
            units = Units(units=min(units.units, measured.units))
        elif lost:
            units = Units(units=units.units * len(stored) // (len(stored) + lost))
        charge_micro = charge_for(terms, units)
    else:
        charge_micro = charge_for(terms, units) * len(stored) // (len(stored) + lost)
    return units, max(0, min(charge_micro, hold_micro))


def measured_units(terms: Terms, stored: Sequence[OutputItem]) -> Units | None:
    """The units that can be read off the stored outputs, or None where the mode or the outputs do not tell.

    Where a file does not tell its own measure the provider's claim stands in, so these are bounded as well.
    """
    mode = terms.rate.mode
    if not stored:
        return None
    if mode == "per_image":
        return Units(units=len(stored))
    if mode == "per_megapixel":
        sizes = [item.width * item.height for item in stored if item.width and item.height]
        megapixels = sum(-(-size // 1_000_000) for size in sizes)
        return Units(units=_within(megapixels)) if len(sizes) == len(stored) else None
    if mode == "per_second":
        durations = [item.duration_s for item in stored if item.duration_s is not None]
        seconds = sum(math.ceil(round(length, 3)) for length in durations)
        return Units(units=_within(seconds)) if len(durations) == len(stored) else None
    return None


def _reported(terms: Terms, usage: ReportedUsage | None) -> Units | None:
    """The provider's own measure, where it speaks of the unit that is sold; its numbers are not trusted blindly."""
    if usage is None:
        return None
    if terms.rate.mode == "per_token":
        if usage.tokens_in is None and usage.tokens_out is None:
            return None
        return Units(tokens_in=_within(usage.tokens_in or 0), tokens_out=_within(usage.tokens_out or 0))
    if usage.units is None or usage.units < 0 or usage.unit not in {None, terms.rate.unit}:
        return None
    return Units(units=_within(usage.units))


def _within(number: int) -> int:
    return min(UNITS_MAX, max(0, number))
