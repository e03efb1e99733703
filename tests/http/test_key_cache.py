"""The cache of API keys: immutable facts, and the time of the last recorded use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.http.kit.credentials import KeyCache, KnownKey

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_keys_use_is_recorded_once_a_minute() -> None:
    cache = KeyCache()
    moments = [NOON, NOON + timedelta(seconds=59), NOON + timedelta(seconds=60), NOON + timedelta(seconds=61)]

    assert [cache.is_use_due(b"one", moment) for moment in moments] == [True, False, True, False]
    assert cache.is_use_due(b"other", moments[-1])


def test_the_least_recently_used_keys_are_evicted() -> None:
    cache = KeyCache(entries_max=2)
    for name in (b"a", b"b", b"c"):
        cache.put(name, KnownKey("acct_1", name.decode()))

    assert cache.get(b"a") is None
    assert KnownKey("acct_1", "c") == cache.get(b"c")
