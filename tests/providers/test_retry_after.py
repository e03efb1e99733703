"""The pause a server wishes, in both of its forms and in none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.providers.outbound.connection_pool import parse_retry_after

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "pause_s"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 400, 999_999_999.0),
        ("Fri, 20 Nov 2026 12:02:00 GMT", 120.0),
        ("Fri, 20 Nov 2026 12:02:00", 120.0),
        ("Fri, 20 Nov 2026 13:00:00 +0100", 0.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
    ],
)
def test_seconds_and_dates_are_read(value: str, pause_s: float) -> None:
    assert parse_retry_after(value, NOON) == pause_s


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "soon",
        "-5",
        "1.5",
        "\u0661\u0662",
        "Fri, 99 Nov 2026 12:02:00 GMT",
        "Fri, 20 Nov 99999999999999999999 12:02:00 GMT",
        "Fri, 20 Nov 2026 12:02:00 +99999999999999",
    ],
)
def test_what_cannot_be_read_is_no_wish(value: str | None) -> None:
    assert parse_retry_after(value, NOON) is None
