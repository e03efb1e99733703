"""API keys and tokens, how a request sends them, and the cache of known keys."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from holdfast.http.endpoints.sign_in import normalise_email
from holdfast.http.kit.credentials import Bearer, KeyCache, KnownKey, digest, is_api_key, mint_api_key, read_bearer
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import place_digits, place_of

TOKEN = "hst_" + "A" * 43
KEY = mint_api_key("acct_1", live=True).secret


def test_a_key_has_its_form_prefix_and_checksum() -> None:
    live, test = mint_api_key("acct_1", live=True), mint_api_key("acct_1", live=False)
    assert (live.secret[:8], test.secret[:8], len(live.secret)) == ("hk_live_", "hk_test_", 46)
    assert live.prefix == live.secret[:12]
    assert live.sha256 == digest(live.secret)
    assert "secret" not in repr(live)
    assert is_api_key(live.secret)


def test_one_changed_character_breaks_the_checksum() -> None:
    for place in range(8, len(KEY)):
        changed = KEY[:place] + ("a" if KEY[place] != "a" else "b") + KEY[place + 1 :]
        assert not is_api_key(changed)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_case_insensitive(scheme: str) -> None:
    session, key = read_bearer([f"{scheme} {TOKEN}"], "session"), read_bearer([f"{scheme}  {KEY}"], "api_key")
    assert isinstance(session, Bearer)
    assert isinstance(key, Bearer)
    assert (session.kind, session.sha256) == ("session", digest(TOKEN))
    assert (key.kind, key.sha256) == ("api_key", digest(KEY))
    assert read_bearer([f"{scheme} {KEY}"], None) == key


@pytest.mark.parametrize(
    ("headers", "wanted", "code"),
    [
        ([], "session", "missing_credentials"),
        ([""], "session", "invalid_credentials"),
        (["Bearer"], "session", "invalid_credentials"),
        (["Bearer "], "session", "invalid_credentials"),
        (["Basic dXNlcjpwYXNz"], "session", "invalid_credentials"),
        ([f"Bearer {TOKEN} {TOKEN}"], "session", "invalid_credentials"),
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], "session", "invalid_credentials"),
        ([f"Bearer {TOKEN}\u00e9"], "session", "invalid_credentials"),
        (["Bearer " + "a" * 5000], "session", "invalid_credentials"),
        ([f"Bearer {KEY}"], "session", "wrong_credential_type"),
        ([f"Bearer {TOKEN}"], "api_key", "wrong_credential_type"),
        (["Bearer hst_short"], "api_key", "wrong_credential_type"),
        (["Bearer hst_short"], "session", "invalid_session"),
        (["Bearer something-else"], "session", "invalid_session"),
        (["Bearer something-else"], "api_key", "invalid_api_key"),
        ([f"Bearer {KEY}x"], "api_key", "invalid_api_key"),
        ([f"Bearer {KEY[:-1]}"], "api_key", "invalid_api_key"),
    ],
)
def test_malformed_and_wrong_credentials_are_refused(headers: list[str], wanted: str, code: str) -> None:
    refused = read_bearer(headers, wanted)  # type: ignore[arg-type]  # a table of words
    assert isinstance(refused, Refusal)
    assert refused.code == code


def test_the_cache_evicts_the_least_recently_used_key() -> None:
    cache = KeyCache(entries_max=2)
    for name in ("a", "b"):
        cache.put(name.encode(), KnownKey("acct_1", name))
    assert cache.get(b"a") == KnownKey("acct_1", "a")
    cache.put(b"c", KnownKey("acct_1", "c"))
    assert (cache.get(b"b"), len(cache)) == (None, 2)
    assert cache.get(b"a") is not None


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("ada@example.com", "ada@example.com"),
        ("  Ada.Lovelace+x@EXAMPLE.Com\n", "ada.lovelace+x@example.com"),
        ("stra\u00dfe@example.com", "strasse@example.com"),
        ("o'brien@mail.example.co.uk", "o'brien@mail.example.co.uk"),
    ],
)
def test_addresses_are_normalised(text: str, normal: str) -> None:
    assert normalise_email(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        "", "ada", "@example.com", "ada@", "ada@localhost", "a b@example.com", "ada@exa mple.com",
        "ada@example..com",
        "ada@-example.com", "ada@[127.0.0.1]", '"ada"@example.com', "ada@example.com\r\nBcc: eve@example.com",
        "ada\r\n@example.com", "ada\0@example.com", "a@b@example.com", ".ada@example.com", "ada.@example.com",
        "a..b@example.com", "ada@ex\u00e4mple.com", "a" * 65 + "@example.com",
        "a@" + "b" * 63 + "." + ("c" * 60 + ".") * 4 + "com",
        "ada@example.com, eve@example.com", "ada\u202e@example.com", "<ada@example.com>",
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused(text: str) -> None:
    assert normalise_email(text) is None


def test_a_key_carries_the_place_of_its_account() -> None:
    keys = [mint_api_key("acct_1", live=live) for live in (True, False, True)]
    assert {key.secret[-9:-6] for key in keys} == {place_digits(place_of("acct_1"))}
    assert len({key.prefix for key in keys}) == 3


async def test_a_keys_use_is_recorded_once_a_minute(mock_clock: MockClock) -> None:
    cache, due = KeyCache(), []
    for passed_s in (0.0, 59.0, 1.0, 1.0):
        mock_clock.jump(passed_s)
        due.append(cache.is_use_due(b"one"))
    assert due == [True, False, True, False]
    assert cache.is_use_due(b"other")


def test_the_least_recently_used_keys_are_evicted() -> None:
    cache = KeyCache(entries_max=2)
    for name in (b"a", b"b", b"c"):
        cache.put(name, KnownKey("acct_1", name.decode()))

    assert cache.get(b"a") is None
    assert KnownKey("acct_1", "c") == cache.get(b"c")
