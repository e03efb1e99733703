"""The sandbox callback's signature: the values are signed, not their JSON encoding."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from holdfast.ledger.orders.sandbox_signature import SandboxValues, read_values, sign, verify_sandbox
from holdfast.ledger.refusals import Refusal

SECRET = "a sandbox secret for these tests"
OLD_SECRET = "the secret before that one"
EVENT = "evt_1"
AT = 1_763_640_000

PAYLOAD: dict[str, Any] = {
    "order_id": "ord_1",
    "account_id": "acct_1",
    "amount": "10.00",
    "currency": "USD",
    "status": "paid",
    "provider_event_id": EVENT,
}


def values(**changes: Any) -> SandboxValues:
    read = read_values({key: value for key, value in (PAYLOAD | changes).items() if value is not ...})
    assert isinstance(read, SandboxValues)
    return read


SIGNATURE = sign(SECRET, values(), event_id=EVENT, at=AT)


def verdict(header: str | None, given: SandboxValues, *secrets: str | bytes, event_id: str | None = EVENT) -> str:
    refused = verify_sandbox(header, given, secrets or (SECRET,), event_id=event_id)
    return "valid" if refused is None else refused.code


def test_the_documented_payload_verifies() -> None:
    assert SIGNATURE.startswith(f"t={AT},v1=")
    assert verdict(SIGNATURE, values()) == "valid"


def forge(key: bytes) -> str:
    """Return the signature, computed independently."""
    signed = f'["sandbox-payment.v1","{AT}","ord_1","acct_1","10.00","USD","paid","evt_1"]'
    return f"t={AT},v1={hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()}"


def test_the_signed_form_is_a_json_array_of_the_values() -> None:
    assert forge(SECRET.encode()) == SIGNATURE


@pytest.mark.parametrize(
    "rewritten",
    [
        json.dumps(PAYLOAD, indent=4, sort_keys=True),
        json.dumps(dict(reversed(PAYLOAD.items())), separators=(",", ":")),
        json.dumps(PAYLOAD).replace("p", "\\u0070"),
        json.dumps(PAYLOAD | {"note": "unsigned", "amount_extra": 3}),
        json.dumps({key: value for key, value in PAYLOAD.items() if key != "provider_event_id"}),
        json.dumps(PAYLOAD | {"provider_event_id": None}),
    ],
)
def test_reencoding_the_json_keeps_the_signature_valid(rewritten: str) -> None:
    read = read_values(json.loads(rewritten))
    assert isinstance(read, SandboxValues)
    assert verdict(SIGNATURE, read) == "valid"


@pytest.mark.parametrize("amount", ["10", "10.0", "10.00", "10.000000"])
def test_an_amount_is_compared_as_a_number(amount: str) -> None:
    assert verdict(SIGNATURE, values(amount=amount)) == "valid"
    assert values(amount=amount).signed_parts() == ("ord_1", "acct_1", 10_000_000, "USD")


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": "1000.00"},
        {"amount": "10.01"},
        {"amount": "10.0000001"},
        {"amount": "1e1"},
        {"amount": "+10.00"},
        {"amount": "-10.00"},
        {"amount": "010.00"},
        {"amount": "ten"},
        {"status": "failed"},
        {"status": "PAID"},
        {"account_id": "acct_2"},
        {"order_id": "ord_2"},
        {"currency": "usd"},
        {"order_id": 'ord_1","acct_1', "account_id": "x"},
    ],
)
def test_an_altered_value_is_no_longer_signed(changes: dict[str, str]) -> None:
    assert verdict(SIGNATURE, values(**changes)) == "invalid_signature"


def test_the_signed_event_id_is_the_stored_one() -> None:
    assert verdict(SIGNATURE, values(provider_event_id="evt_2")) == "valid"
    assert verdict(SIGNATURE, values(), event_id="evt_2") == "invalid_signature"


def test_an_unknown_order_is_refused_like_a_wrong_signature() -> None:
    unknown = verify_sandbox(SIGNATURE, values(), (SECRET,), event_id=None)
    wrong = verify_sandbox(SIGNATURE, values(status="failed"), (SECRET,), event_id=EVENT)
    assert unknown is not None
    assert unknown == wrong
    made_up = sign(SECRET, values(), event_id="evt_none", at=AT)
    assert verdict(made_up, values(), event_id=None) == "invalid_signature"


def test_an_old_secret_verifies_while_it_is_listed() -> None:
    old = sign(OLD_SECRET, values(), event_id=EVENT, at=AT)
    assert verdict(old, values(), SECRET, OLD_SECRET) == "valid"
    assert verdict(old, values(), SECRET) == "invalid_signature"
    assert verdict(old, values(), OLD_SECRET.encode()) == "valid"


@pytest.mark.parametrize("empty", ["", "  ", b""])
def test_an_empty_secret_verifies_nothing(empty: str | bytes) -> None:
    for key in (b"", b"  ", b"-"):
        assert verdict(forge(key), values(), empty) == "invalid_signature"
    assert verify_sandbox(SIGNATURE, values(), (), event_id=EVENT) is not None
    with pytest.raises(ValueError, match="secret is empty"):
        sign(empty, values(), event_id=EVENT, at=AT)


def test_only_a_payment_can_be_signed() -> None:
    with pytest.raises(ValueError, match="not those of a payment"):
        sign(SECRET, values(amount="none"), event_id=EVENT, at=AT)
    with pytest.raises(ValueError, match="not those of a payment"):
        sign(SECRET, values(), event_id=EVENT, at=-1)


def test_blanks_upper_case_and_several_signatures_are_accepted() -> None:
    moment, _, digest = SIGNATURE.partition(",v1=")
    assert verdict(f"  {moment} , v1 = {digest.upper()} ", values()) == "valid"
    assert verdict(f"{moment},v1={'0' * 64},v1={digest},v0=x", values()) == "valid"


@pytest.mark.parametrize("header", [None, "", "   "])
def test_a_missing_header_is_refused_as_missing(header: str | None) -> None:
    assert verdict(header, values()) == "missing_signature"


DIGEST = SIGNATURE.partition("v1=")[2]


@pytest.mark.parametrize(
    "header",
    [
        "abc",
        ",",
        "=",
        f"v1={DIGEST}",
        f"t={AT}",
        f"t={AT + 1},v1={DIGEST}",
        f"t={AT},t={AT},v1={DIGEST}",
        f"t=0{AT},v1={DIGEST}",
        f"t=-{AT},v1={DIGEST}",
        f"t={AT},v1={DIGEST[:-1]}",
        f"t={AT},v1={DIGEST}0",
        f"t={AT},v2={DIGEST}",
        f"t={AT},v1={'é' * 64}",
        f"t=\N{ARABIC-INDIC DIGIT ONE},v1={DIGEST}",
        f"t={AT}," + ",".join([f"v1={DIGEST}"] * 9),
        f"t={AT},v1={DIGEST}," + "x" * 3000,
        "\udcff",
    ],
)
def test_garbage_in_the_header_is_an_invalid_signature(header: str) -> None:
    assert verdict(header, values()) == "invalid_signature"


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"amount": 10.0}, "invalid_parameter", "amount"),
        ({"amount": 10}, "invalid_parameter", "amount"),
        ({"status": True}, "invalid_parameter", "status"),
        ({"order_id": ""}, "invalid_parameter", "order_id"),
        ({"order_id": "ord 1"}, "invalid_parameter", "order_id"),
        ({"order_id": "ord_1\n"}, "invalid_parameter", "order_id"),
        ({"account_id": "a\0"}, "invalid_parameter", "account_id"),
        ({"account_id": "ä"}, "invalid_parameter", "account_id"),
        ({"account_id": "\ud800"}, "invalid_parameter", "account_id"),
        ({"currency": "U" * 129}, "invalid_parameter", "currency"),
        ({"currency": None}, "invalid_parameter", "currency"),
        ({"provider_event_id": 5}, "invalid_parameter", "provider_event_id"),
        ({"status": ...}, "missing_parameter", "status"),
        ({"order_id": ...}, "missing_parameter", "order_id"),
    ],
)
def test_values_must_be_short_printable_strings(changes: dict[str, Any], code: str, param: str) -> None:
    body = {key: value for key, value in (PAYLOAD | changes).items() if value is not ...}
    refused = read_values(body)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.param) == (code, param)
