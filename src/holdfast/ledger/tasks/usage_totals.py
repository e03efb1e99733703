"""How totals of usage over any time are sums of stored totals: of days, hours and quarters of hours of UTC.

The offsets of all time zones are whole quarters of an hour, so a day of any zone is such a sum: a day of UTC, less
what lies outside it at one end, and what is missing at the other. A bound inside a quarter of an hour takes single
entries of the usage log too. So what has to be read for a time depends on its length, and not on the usage in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from holdfast.ledger.values import midnight

UsageGroup = Literal["day", "model", "api_key_id", "status", "end_user"]
"""By what usage is summed."""

SPANS_S: Final = (86_400, 3_600, 900)
"""The lengths of the times whose totals are stored, the longest first."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Piece(NamedTuple):
    """Totals of the length ``span_s`` that begin at ``since`` or later and before ``until``; 0: entries of usage.

    They are added to one part and taken from another; parts are numbered from 1, and 0 is none.
    """

    span_s: int
    since: datetime
    until: datetime
    added_to: int
    taken_from: int


def pieces_of(bounds: Sequence[datetime]) -> list[Piece]:
    """Return what the totals of the parts between ``bounds`` are made of; the bounds are in order."""
    longest_s, *shorter = SPANS_S
    begins = [_nearest(bound, longest_s) for bound in bounds]
    pieces = [
        Piece(longest_s, since, until, part, 0)
        for part, (since, until) in enumerate(pairwise(begins), start=1)
        if since < until
    ]
    for number, (bound, far) in enumerate(zip(bounds, begins, strict=True)):
        # What lies between a bound and the nearest day's begin belongs to the other part than that day.
        before, after = number, (number + 1) % len(bounds)
        for span_s in (*shorter, 0):
            near = _nearest(bound, span_s) if span_s else bound
            if near < far:
                pieces.append(Piece(span_s, near, far, after, before))
            elif far < near:
                pieces.append(Piece(span_s, far, near, before, after))
            far = near  # noqa: PLW2901 - the next span begins where this one ends
    return pieces


def _nearest(at: datetime, span_s: int) -> datetime:
    """Return the beginning of a span that is nearest to ``at``."""
    at_us, span_us = (at - _EPOCH) // _MICROSECOND, span_s * 1_000_000
    return _EPOCH + (at_us + span_us // 2) // span_us * span_us * _MICROSECOND


def days_of(since: datetime, until: datetime, zone: tzinfo) -> tuple[list[date], list[datetime]]:
    """Return the days of ``zone`` in a time, and their bounds, one more: the first and last day may be cut off."""
    day = since.astimezone(zone).date()
    days, bounds = [day], [since]
    while (begins := midnight(day := day + timedelta(days=1), zone)) < until:
        if begins <= bounds[-1]:
            # A zone that has moved across the date line has skipped the day before.
            days[-1] = day
        else:
            days.append(day)
            bounds.append(begins)
    return days, [*bounds, until]
