"""The charge for a finished task: the work done, at the task's own terms, never above its hold.

The work is measured on the stored outputs, or on the request where the price is for a request, and the provider may
report it. If there are both, the smaller is charged, and a difference beyond the terms' tolerance is a mismatch. A
report alone counts up to the most that could be ordered; above that, or if it is zero, the estimate is charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.ledger.catalog.pricing import charge_for
from holdfast.ledger.catalog.terms import Terms, Units
from holdfast.ledger.tasks.provider_update import ReportedUsage
from holdfast.ledger.tasks.task import OutputItem

UNITS_MAX = 10**15
"""A higher number from a provider counts as this; it fits a BIGINT."""

TOLERANCE_UNITS = 1
"""The difference between report and measurement that is always tolerated, since the two round differently."""

_BY_OUTPUT = frozenset({"per_image", "per_megapixel", "per_second"})
_BY_REQUEST = frozenset({"per_request", "per_character"})


class Charge(NamedTuple):
    """The billable units and their price; ``mismatch`` describes a difference beyond the tolerance."""

    units: Units
    amount_micro: int
    mismatch: str | None


def charge_of(
    terms: Terms, hold_micro: int, usage: ReportedUsage | None, stored: Sequence[OutputItem], lost: int
) -> Charge:
    """Return the charge for ``stored`` outputs if ``lost`` more could not be stored.

    Where the units do not count outputs (a request, tokens), lost outputs reduce the charge in proportion.
    """
    by_output = terms.rate.mode in _BY_OUTPUT
    count, total = (len(stored), len(stored) + lost) if by_output else (1, 1)
    measured = terms.estimated if terms.rate.mode in _BY_REQUEST else measured_units(terms, stored)
    reported = _reported(terms, usage, count, total) or (_sum_of(terms, stored) if stored else None)
    units, mismatch = _charged_units(terms, measured, reported, _share(terms.estimated, count, total))
    amount_micro = charge_for(terms, units)
    if not by_output:
        amount_micro = amount_micro * len(stored) // (len(stored) + lost)
    return Charge(units, max(0, min(amount_micro, hold_micro)), None if lost else mismatch)


def measured_units(terms: Terms, stored: Sequence[OutputItem]) -> Units | None:
    """Return the units measured on the stored outputs; None if the mode or the outputs do not allow it."""
    if not stored or terms.rate.mode not in _BY_OUTPUT:
        return None
    if terms.rate.mode == "per_image":
        return Units(units=len(stored))
    claimed = [
        item.size_claimed if terms.rate.mode == "per_megapixel" else item.duration_claimed for item in stored
    ]
    return None if any(claimed) else _sum_of(terms, stored)


def _sum_of(terms: Terms, stored: Sequence[OutputItem]) -> Units | None:
    if terms.rate.mode == "per_megapixel":
        sizes = [item.width * item.height for item in stored if item.width and item.height]
        megapixels = sum(-(-size // 1_000_000) for size in sizes)
        return Units(units=_within(megapixels)) if len(sizes) == len(stored) else None
    if terms.rate.mode == "per_second":
        durations = [item.duration_s for item in stored if item.duration_s is not None]
        seconds = sum(math.ceil(round(length, 3)) for length in durations)
        return Units(units=_within(seconds)) if len(durations) == len(stored) else None
    return None


def _reported(terms: Terms, usage: ReportedUsage | None, count: int, total: int) -> Units | None:
    """Return the reported units if they are in the unit that is sold, for ``count`` of ``total`` outputs."""
    if usage is None:
        return None
    if terms.rate.mode == "per_token":
        if usage.tokens_in is None and usage.tokens_out is None:
            return None
        return Units(tokens_in=_within(usage.tokens_in or 0), tokens_out=_within(usage.tokens_out or 0))
    if usage.units is None or usage.units < 0 or usage.unit not in {None, terms.rate.unit}:
        return None
    return _share(Units(units=_within(usage.units)), count, total)


def _charged_units(
    terms: Terms, measured: Units | None, reported: Units | None, estimated: Units
) -> tuple[Units, str | None]:
    """Return the units to charge, and the description of a mismatch."""
    if reported is None:
        return measured or estimated, None
    if measured is None:
        if _is_plausible(terms, reported):
            return reported, None
        return estimated, f"the provider reported {_format(terms, reported)}; {_format(terms, estimated)} expected"
    differ = abs(reported.units - measured.units) * 100
    allowed = TOLERANCE_UNITS * 100 + measured.units * terms.tolerance_percent
    is_less = 0 < reported.units < measured.units
    mismatch = None
    if differ > allowed or (measured.units and not reported.units):
        mismatch = f"the provider reported {_format(terms, reported)}; {_format(terms, measured)} measured"
    return reported if is_less else measured, mismatch


def _is_plausible(terms: Terms, reported: Units) -> bool:
    """Whether the report is above zero and at most what could be ordered."""
    pairs = [(getattr(reported, name), getattr(terms.largest, name)) for name in Units.__struct_fields__]
    return any(units for units, _ in pairs) and all(
        units * 100 <= most * (100 + terms.tolerance_percent) + TOLERANCE_UNITS * 100 for units, most in pairs
    )


def _format(terms: Terms, units: Units) -> str:
    if terms.rate.mode == "per_token":
        return f"{units.tokens_in} tokens in and {units.tokens_out} out"
    return f"{units.units} ({terms.rate.unit})"


def _share(units: Units, count: int, total: int) -> Units:
    """Return the share of ``count`` of ``total`` equal outputs, rounded up to whole units."""
    return units if count == total else Units(units=-(-units.units * count // total))


def _within(number: int) -> int:
    return min(UNITS_MAX, max(0, number))
