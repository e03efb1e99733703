"""The signature header: what signs verifies, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.signatures import HEADER_MAX_CHARS, SIGNATURES_MAX_COUNT, key_name, sign, verify_signature

SECRET = "studio-callback-secret"
BODY = (
    b'{"event_id":"evt_01","provider":"studio","request_id":"task_01","attempt":1,'
    b'"sequence":3,"status":"succeeded"}'
)
AT = 1795200000
NOW = datetime.fromtimestamp(AT, UTC)
DIGEST = "a7fd3d220491b4b8558d313e28d3dcb1ea01b3911f4e9f4b661bcd431343df82"
OTHER = "0" * 64


def test_published_vector_signs_and_verifies() -> None:
    assert sign(SECRET, BODY, at=AT) == f"t={AT},v1={DIGEST}"
    assert sign(SECRET, BODY, at=AT, key_name="studio") == f"k=studio,t={AT},v1={DIGEST}"
    assert verify_signature(f"k=studio,t={AT},v1={DIGEST}", BODY, [SECRET], now=NOW) == "valid"


@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        (None, "missing"),
        ("", "missing"),
        ("   ", "missing"),
        (f"t={AT}, v1={DIGEST}", "valid"),
        (f" t = {AT} , v1 = {DIGEST} ", "valid"),
        (f"t={AT},v1={DIGEST.upper()}", "valid"),
        (f"v1={DIGEST},t={AT}", "valid"),
        (f"t={AT},v1={OTHER},v1={DIGEST}", "valid"),
        (f"t={AT},v1=nonsense,v1={DIGEST}", "valid"),
        (f"t={AT},v1={DIGEST},v0=x,strange", "valid"),
        (f"t={AT},v1={DIGEST},,", "valid"),
        (f"t={AT},v0={DIGEST}", "invalid"),
        (f"t={AT},v1={DIGEST[:-1]}", "invalid"),
        (f"t={AT},v1={DIGEST}0", "invalid"),
        (f"t={AT},v1={DIGEST}\n0", "invalid"),
        (f"t={AT},v1={OTHER}", "invalid"),
        (f"t={AT},v1=", "invalid"),
        (f"t={AT}", "invalid"),
        (f"v1={DIGEST}", "invalid"),
        (f"t={AT},t={AT},v1={DIGEST}", "invalid"),
        (f"t={AT},t={AT + 1},v1={DIGEST}", "invalid"),
        (f"t={AT + 1},v1={DIGEST}", "invalid"),
        (f"t=0{AT},v1={DIGEST}", "invalid"),
        (f"t=+{AT},v1={DIGEST}", "invalid"),
        (f"t=-1,v1={DIGEST}", "invalid"),
        (f"t={AT}.0,v1={DIGEST}", "invalid"),
        (f"t=,v1={DIGEST}", "invalid"),
        (f"t={'9' * 400},v1={DIGEST}", "invalid"),
        (f"t={AT},v1={DIGEST[:-1]}é", "invalid"),
        (f"t=١٧٩٥,v1={DIGEST}", "invalid"),
        (f"t={AT},v1={DIGEST},x=\ud800", "invalid"),
        ("garbage", "invalid"),
        ("=,=,=", "invalid"),
    ],
)
def test_header_forms(header: str | None, verdict: str) -> None:
    assert verify_signature(header, BODY, [SECRET], now=NOW) == verdict


def test_huge_header_is_refused_unread() -> None:
    padded = f"t={AT},v1={DIGEST},x="
    assert verify_signature(padded + "a" * (HEADER_MAX_CHARS - len(padded)), BODY, [SECRET], now=NOW) == "valid"
    assert verify_signature(padded + "a" * HEADER_MAX_CHARS, BODY, [SECRET], now=NOW) == "invalid"


def test_too_many_signatures_are_refused() -> None:
    full = f"t={AT}" + f",v1={OTHER}" * (SIGNATURES_MAX_COUNT - 1) + f",v1={DIGEST}"
    assert verify_signature(full, BODY, [SECRET], now=NOW) == "valid"
    assert verify_signature(full + f",v1={OTHER}", BODY, [SECRET], now=NOW) == "invalid"


@pytest.mark.parametrize(
    ("skew_s", "verdict"),
    [(-3600, "expired"), (-301, "expired"), (-300, "valid"), (300, "valid"), (301, "expired")],
)
def test_age_is_bounded_in_both_directions(skew_s: int, verdict: str) -> None:
    assert (
        verify_signature(sign(SECRET, BODY, at=AT), BODY, [SECRET], now=NOW + timedelta(seconds=skew_s)) == verdict
    )


def test_forged_and_old_is_called_invalid_not_expired() -> None:
    assert verify_signature(sign("other", BODY, at=1), BODY, [SECRET], now=NOW) == "invalid"


def test_rolled_secret_verifies_with_the_old_and_the_new() -> None:
    for secret in ("old", "new"):
        assert verify_signature(sign(secret, BODY, at=AT), BODY, ["new", "old"], now=NOW) == "valid"
    assert verify_signature(sign("retired", BODY, at=AT), BODY, ["new", "old"], now=NOW) == "invalid"


@pytest.mark.parametrize("secrets", [[], [""], ["", "  "]])
def test_empty_secret_never_verifies(secrets: list[str]) -> None:
    forged = stripe.WebhookSignature.generate_signature_header(BODY.decode(), secrets[-1] if secrets else "", AT)
    assert verify_signature(forged, BODY, secrets, now=NOW) == "invalid"


@pytest.mark.parametrize("secret", ["", b"", "  ", b"\t"])
def test_empty_secret_never_signs(secret: str | bytes) -> None:
    with pytest.raises(ValueError, match="secret is empty"):
        sign(secret, BODY, at=AT)


def test_unreadable_time_or_name_never_signs() -> None:
    with pytest.raises(ValueError, match="time"):
        sign(SECRET, BODY, at=-1)
    with pytest.raises(ValueError, match="name"):
        sign(SECRET, BODY, at=AT, key_name="a,t=1")


def test_body_need_not_be_text() -> None:
    body = b"\xff\x00\xfe"
    assert verify_signature(sign(SECRET, body, at=AT), body, [SECRET], now=NOW) == "valid"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (None, None),
        ("", None),
        ("t=1,v1=a", None),
        ("k=studio,t=1", "studio"),
        ("t=1, k = gpu-box.2 ", "gpu-box.2"),
        ("k=a,k=b", None),
        ("k=", None),
        ("k=a b", None),
        ("k=é", None),
        ("k=" + "a" * 65, None),
    ],
)
def test_key_name_is_read_only_where_it_is_one(header: str | None, name: str | None) -> None:
    assert key_name(header) == name


@given(st.text(), st.text(min_size=1).filter(lambda s: s.strip(" \t\r\n\f\v")), st.integers(0, 2**33))
def test_agrees_with_the_card_provider_sdk(body: str, secret: str, at: int) -> None:
    oracle = stripe.WebhookSignature.generate_signature_header(body, secret, at)
    assert sign(secret, body.encode(), at=at) == oracle
    assert verify_signature(oracle, body.encode(), [secret], now=datetime.fromtimestamp(at, UTC)) == "valid"
