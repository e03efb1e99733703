"""Standard Webhooks: what is signed verifies, and nothing else does."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.ledger.standard_secrets import standard_key
from holdfast.providers.signatures import (
    HEADER_MAX_CHARS,
    SIGNATURES_MAX_COUNT,
    sign_standard,
    standard_headers,
    verify_standard,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another key of twenty-four").decode()
BODY = b'{"test": 2432232314}'
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = 1614265330
NOW = datetime.fromtimestamp(AT, UTC)
# The vector that the public reference libraries are tested with.
PUBLISHED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(**changed: str) -> dict[str, str]:
    """The published message's headers, some of them changed."""
    sent = {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": PUBLISHED}
    return sent | {f"webhook-{name}": value for name, value in changed.items()}


def test_published_vector_signs_and_verifies() -> None:
    assert sign_standard(SECRET, ID, AT, BODY) == PUBLISHED
    assert verify_standard(headers(), BODY, [SECRET], now=NOW) == "valid"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"id": ""}, "missing"),
        ({"timestamp": " "}, "missing"),
        ({"signature": ""}, "missing"),
        ({"id": "msg_other"}, "invalid"),
        ({"id": "msg.p5jXN8AQM9LWM0D4loKWxJek"}, "invalid"),
        ({"timestamp": str(AT + 1)}, "invalid"),
        ({"timestamp": f"0{AT}"}, "invalid"),
        ({"timestamp": f"{AT}.0"}, "invalid"),
        ({"timestamp": "soon"}, "invalid"),
        ({"signature": PUBLISHED[3:]}, "invalid"),
        ({"signature": PUBLISHED.replace("v1,", "v2,")}, "invalid"),
        ({"signature": PUBLISHED + "A"}, "invalid"),
        ({"signature": "v1,"}, "invalid"),
        ({"signature": "v1,\u00e9"}, "invalid"),
        ({"signature": f"v1a,xyz {PUBLISHED}"}, "valid"),
        ({"signature": f"v1,bm90aGluZw== {PUBLISHED} v2,more"}, "valid"),
        ({"signature": " ".join([PUBLISHED] * (SIGNATURES_MAX_COUNT + 1))}, "invalid"),
        ({"signature": PUBLISHED + " " + "x" * HEADER_MAX_CHARS}, "invalid"),
    ],
)
def test_every_defect_of_the_headers_has_a_verdict(changed: dict[str, str], verdict: str) -> None:
    assert verify_standard(headers(**changed), BODY, [SECRET], now=NOW) == verdict


def test_another_body_or_another_secret_does_not_verify() -> None:
    assert verify_standard(headers(), BODY + b" ", [SECRET], now=NOW) == "invalid"
    assert verify_standard(headers(), BODY, [OTHER], now=NOW) == "invalid"
    assert verify_standard(headers(), BODY, [], now=NOW) == "invalid"
    assert verify_standard(headers(), BODY, ["", "whsec_", "plain"], now=NOW) == "invalid"


def test_either_secret_of_a_roll_is_enough_on_either_side() -> None:
    both = standard_headers([OTHER, SECRET], ID, AT, BODY)
    assert verify_standard(both, BODY, [SECRET], now=NOW) == "valid"
    assert verify_standard(both, BODY, [OTHER], now=NOW) == "valid"
    assert verify_standard(headers(), BODY, [OTHER, SECRET], now=NOW) == "valid"


@pytest.mark.parametrize("away_s", [-301, 301])
def test_a_message_out_of_its_time_is_expired_only_if_truly_signed(away_s: int) -> None:
    late = NOW + timedelta(seconds=away_s)
    assert verify_standard(headers(), BODY, [SECRET], now=late) == "expired"
    assert verify_standard(headers(), BODY, [OTHER], now=late) == "invalid"
    near = NOW + timedelta(seconds=300 if away_s > 0 else -300)
    assert verify_standard(headers(), BODY, [SECRET], now=near) == "valid"


@pytest.mark.parametrize(
    ("secret", "length"),
    [
        (SECRET, 24),
        ("whsec_" + base64.b64encode(b"x" * 16).decode(), 16),
        ("whsec_" + base64.b64encode(b"x" * 16).decode().rstrip("="), 16),
        ("whsec_" + base64.b64encode(b"x" * 15).decode(), None),
        ("whsec_" + base64.b64encode(b"x" * 129).decode(), None),
        ("whsec_not base64 at all, is it", None),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None),
        ("", None),
    ],
)
def test_a_secret_is_a_key_of_some_length_in_base64(secret: str, length: int | None) -> None:
    key = standard_key(secret)
    assert (None if key is None else len(key)) == length


@pytest.mark.parametrize(
    ("secret", "message_id", "at"), [("short", ID, AT), (SECRET, "a.b", AT), (SECRET, "", AT), (SECRET, ID, -1)]
)
def test_what_no_receiver_would_read_is_not_signed(secret: str, message_id: str, at: int) -> None:
    with pytest.raises(ValueError, match="a "):
        sign_standard(secret, message_id, at, BODY)
