"""What a finished task costs: the work actually done, at the task's own terms, never above its hold.

Two things tell the work: the measure of what was stored, and what the provider reports. Where both do, the smaller
is charged, and a difference beyond the terms' tolerance is told. A report alone is believed up to what could be
ordered; a report of nothing for a result, or of more than that, says nothing, and the estimate stands. Pictures are
counted on the outputs themselves, what a whole request asks for on the request.
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
"""A provider's number above this is taken as this; it stays inside a BIGINT."""

TOLERANCE_UNITS = 1
"""What a report and a measure may differ by in any case: the two round differently."""

_BY_OUTPUT = frozenset({"per_image", "per_megapixel", "per_second"})
_BY_REQUEST = frozenset({"per_request", "per_character"})


class Charge(NamedTuple):
    """The billable units and their price; ``mismatch`` says how the provider's report differs, if widely."""

    units: Units
    amount_micro: int
    mismatch: str | None


def charge_of(
    terms: Terms, hold_micro: int, usage: ReportedUsage | None, stored: Sequence[OutputItem], lost: int
) -> Charge:
    """The charge for ``stored`` outputs, when ``lost`` more could not be kept.

    Where the units do not count outputs (a request, tokens), lost outputs reduce the charge in proportion.
    """
    by_output = terms.rate.mode in _BY_OUTPUT
    kept, made = (len(stored), len(stored) + lost) if by_output else (1, 1)
    measured = terms.estimated if terms.rate.mode in _BY_REQUEST else measured_units(terms, stored)
    reported = _reported(terms, usage, kept, made) or claimed_units(terms, stored)
    units, mismatch = _decided(terms, measured, reported, _part(terms.estimated, kept, made))
    amount_micro = charge_for(terms, units)
    if not by_output:
        amount_micro = amount_micro * len(stored) // (len(stored) + lost)
    return Charge(units, max(0, min(amount_micro, hold_micro)), None if lost else mismatch)


def measured_units(terms: Terms, stored: Sequence[OutputItem]) -> Units | None:
    """The units that were read off the stored outputs, or None where the mode or the outputs do not tell."""
    if not stored or terms.rate.mode not in _BY_OUTPUT:
        return None
    if terms.rate.mode == "per_image":
        return Units(units=len(stored))
    claimed = [
        item.size_claimed if terms.rate.mode == "per_megapixel" else item.duration_claimed for item in stored
    ]
    return None if any(claimed) else _sum_of(terms, stored)


def claimed_units(terms: Terms, stored: Sequence[OutputItem]) -> Units | None:
    """The units by what the provider says of its outputs: a report, not a measure."""
    return _sum_of(terms, stored) if stored else None


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


def _reported(terms: Terms, usage: ReportedUsage | None, kept: int, made: int) -> Units | None:
    """The provider's own measure, where it speaks of the unit that is sold; of ``kept`` outputs of ``made``."""
    if usage is None:
        return None
    if terms.rate.mode == "per_token":
        if usage.tokens_in is None and usage.tokens_out is None:
            return None
        return Units(tokens_in=_within(usage.tokens_in or 0), tokens_out=_within(usage.tokens_out or 0))
    if usage.units is None or usage.units < 0 or usage.unit not in {None, terms.rate.unit}:
        return None
    return _part(Units(units=_within(usage.units)), kept, made)


def _decided(
    terms: Terms, measured: Units | None, reported: Units | None, estimated: Units
) -> tuple[Units, str | None]:
    """The units that count, and the difference that is told."""
    if reported is None:
        return measured or estimated, None
    if measured is None:
        if _could_be(terms, reported):
            return reported, None
        return estimated, f"the provider reported {_said(terms, reported)}; {_said(terms, estimated)} expected"
    differ = abs(reported.units - measured.units) * 100
    allowed = TOLERANCE_UNITS * 100 + measured.units * terms.tolerance_percent
    told = f"the provider reported {_said(terms, reported)}; {_said(terms, measured)} measured"
    is_less = 0 < reported.units < measured.units
    mismatch = told if differ > allowed or (measured.units and not reported.units) else None
    return reported if is_less else measured, mismatch


def _could_be(terms: Terms, reported: Units) -> bool:
    """Whether the work was something, and not more than could be ordered."""
    pairs = [(getattr(reported, name), getattr(terms.largest, name)) for name in Units.__struct_fields__]
    return any(told for told, _ in pairs) and all(
        told * 100 <= most * (100 + terms.tolerance_percent) + TOLERANCE_UNITS * 100 for told, most in pairs
    )


def _said(terms: Terms, units: Units) -> str:
    if terms.rate.mode == "per_token":
        return f"{units.tokens_in} tokens in and {units.tokens_out} out"
    return f"{units.units} ({terms.rate.unit})"


def _part(units: Units, kept: int, made: int) -> Units:
    """The units of some outputs where all are alike; a started unit counts."""
    return units if kept == made else Units(units=-(-units.units * kept // made))


def _within(number: int) -> int:
    return min(UNITS_MAX, max(0, number))
