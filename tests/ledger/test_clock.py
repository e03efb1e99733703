"""Times as text: RFC 3339 in UTC with whole milliseconds, whatever the zone of the value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.values import format_time

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def test_a_time_is_shown_in_utc_to_the_millisecond() -> None:
    assert format_time(datetime(2026, 11, 20, 18, 40, tzinfo=UTC)) == "2026-11-20T18:40:00.000Z"
    there = timezone(timedelta(hours=-5, minutes=-30))
    assert format_time(datetime(2026, 11, 20, 18, 40, 1, 7_999, tzinfo=there)) == "2026-11-21T00:10:01.007Z"


@given(st.integers(-(10**10), 10**11), st.integers(0, 999_999), st.just(UTC) | ZONES)
@settings(max_examples=50)
def test_a_time_is_formatted_as_datetime_does(second: int, microsecond: int, zone: timezone) -> None:
    at = datetime.fromtimestamp(second, zone).replace(microsecond=microsecond)
    assert format_time(at) == at.astimezone(UTC).isoformat("T", "milliseconds").removesuffix("+00:00") + "Z"
