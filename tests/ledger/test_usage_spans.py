"""How the totals of any time are put together: against the usage itself, one task at a time."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.tasks.usage_totals import SPANS_S, days_of, pieces_of
from holdfast.ledger.values import midnight

DAY = timedelta(days=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 4), timezones=st.just(UTC))  # noqa: DTZ001 - as UTC


def begin_of(at: datetime, span_s: int) -> datetime:
    """Return when the stored total begins in which a task of this time is counted."""
    return datetime.fromtimestamp(at.timestamp() // span_s * span_s, UTC)


@given(st.lists(TIMES, min_size=2, max_size=6, unique=True).map(sorted), st.lists(TIMES, max_size=40))
@settings(max_examples=100)
def test_the_pieces_of_a_time_count_each_task_in_it_once(bounds: list[datetime], times: list[datetime]) -> None:
    times = [*times, *bounds]
    counted: Counter[int] = Counter()
    for span_s, since, until, added_to, taken_from in pieces_of(bounds):
        for at in times:
            if since <= (begin_of(at, span_s) if span_s else at) < until:
                counted[added_to] += 1
                counted[taken_from] -= 1
    for part, (since, until) in enumerate(pairwise(bounds), start=1):
        assert counted[part] == sum(since <= at < until for at in times)


def test_a_day_of_utc_is_one_stored_total_and_any_other_day_a_few() -> None:
    def spans(zone: str) -> list[int]:
        begins = midnight(date(2026, 1, 15), ZoneInfo(zone))
        return [
            (piece.until - piece.since) // timedelta(seconds=piece.span_s)
            for piece in pieces_of([begins, begins + DAY])
        ]

    assert spans("UTC") == [1]
    assert spans("Europe/Berlin") == [1, 1, 1]
    assert sorted(spans("Asia/Kathmandu")) == [1, 1, 1, 6, 6]
    assert max(sum(spans(zone)) for zone in available_timezones()) <= 1 + 2 * (12 + 2)


def test_days_of_a_zone_have_the_dates_that_its_clocks_show() -> None:
    dice = random.Random(1)
    for name in sorted(available_timezones())[::5]:
        zone = ZoneInfo(name)
        since = datetime(dice.choice((1994, 2011, 2026)), 1, 1, tzinfo=UTC) + dice.random() * DAY
        until = since + 364 * DAY
        days, bounds = days_of(since, until, zone)
        assert bounds == sorted({*bounds})
        assert (bounds[0], bounds[-1], len(bounds)) == (since, until, len(days) + 1)
        assert days == sorted({*days})
        for day, begins, ends in zip(days, bounds, bounds[1:], strict=False):
            for at in (begins, begins + dice.random() * (ends - begins), ends - timedelta(microseconds=1)):
                assert day == at.astimezone(zone).date(), (name, at)


def test_a_day_that_a_zone_skipped_has_no_part() -> None:
    days, bounds = days_of(
        datetime(2011, 12, 29, 12, tzinfo=UTC), datetime(2011, 12, 31, 12, tzinfo=UTC), ZoneInfo("Pacific/Apia")
    )
    assert days == [date(2011, 12, 29), date(2011, 12, 31), date(2012, 1, 1)]
    assert len(bounds) == 4


def test_each_span_is_a_multiple_of_the_next() -> None:
    assert [longer % shorter for longer, shorter in pairwise(SPANS_S)] == [0] * (len(SPANS_S) - 1)
