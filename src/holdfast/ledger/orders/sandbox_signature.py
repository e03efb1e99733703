"""The signature of a sandbox payment callback: the values are signed, not the bytes.

The descriptor of a sandbox order holds a payload and its signature, ``t=<unix>,v1=<hex>``; the payer sends both
back. The payload may be parsed and encoded again on the way, so the HMAC-SHA256 covers a JSON array of the values
in a fixed order, in which no value can pass for two. The amount has one form in it: "10" and "10.00" are the same
amount. The event id is always the one stored with the order, whether the callback repeats it or not.

There is no time window: the descriptor is valid until the order expires.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.standard_secrets import key_bytes
from holdfast.ledger.values import format_amount, parse_amount

SCHEME = "sandbox-payment.v1"
SIGNATURE_HEADER: Final = "X-Sandbox-Payment-Signature"
VALUE_CHARS_MAX = 128
HEADER_CHARS_MAX = 2048
SIGNATURES_MAX_COUNT = 8
AMOUNT_DECIMALS_MAX = 6

NOT_OF_THIS_ORDER = Refusal(
    code="invalid_signature",
    message="The signature and the payload are not those of one order's callback; send both unchanged.",
)

_VALUE = re.compile(rf"[\x21-\x7e]{{1,{VALUE_CHARS_MAX}}}")
_TIME = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REQUIRED = ("order_id", "account_id", "amount", "currency", "status")


class SandboxValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a callback as sent; ``provider_event_id`` is None if the callback omits it."""

    order_id: str
    account_id: str
    amount: str
    currency: str
    status: str
    provider_event_id: str | None = None

    def signed_parts(self) -> tuple[str, str, int | None, str]:
        """Return what identifies the order and its money: order, account, amount in micro-credits, currency."""
        return (self.order_id, self.account_id, _amount_micro(self.amount), self.currency)


def read_values(body: Mapping[str, object]) -> SandboxValues | Refusal:
    """Parse a callback's JSON object; unknown keys are ignored, being neither signed nor used.

    Refuses: ``missing_parameter`` and ``invalid_parameter``, naming the field. A value is a string of 1 to 128
    printable ASCII characters without blanks.
    """
    read: dict[str, str] = {}
    for name in (*_REQUIRED, "provider_event_id"):
        value = body.get(name)
        if value is None and name == "provider_event_id":
            continue
        if value is None and name not in body:
            return Refusal(code="missing_parameter", message=f"'{name}' is missing.", param=name)
        if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
            return Refusal(
                code="invalid_parameter",
                message=f"'{name}' must be a string of 1 to {VALUE_CHARS_MAX} printable characters.",
                param=name,
            )
        read[name] = value
    return msgspec.convert(read, SandboxValues)


def sign(secret: str | bytes, values: SandboxValues, *, event_id: str, at: int) -> str:
    """Return the signature of ``values`` for an order whose event is ``event_id``, created at ``at`` (unix time).

    Raises ``ValueError`` for an empty secret, or values that no callback could repeat.
    """
    key = key_bytes(secret)
    if not key:
        raise ValueError("the signing secret is empty")
    if _amount_micro(values.amount) is None or _TIME.fullmatch(str(at)) is None:
        raise ValueError("the values are not those of a payment")
    return f"t={at},v1={_digest(key, str(at), values, event_id)}"


def verify_sandbox(
    header: str | None, values: SandboxValues, secrets: Sequence[str | bytes], *, event_id: str | None
) -> Refusal | None:
    """Verify a callback's signature header; None means that it is valid.

    ``event_id`` is the order's own, or None if the order does not exist: then the same work is done and the same
    refusal returned as for a wrong signature, so that a caller cannot find out which orders exist. Empty secrets
    never verify. A malformed header raises nothing.

    Refuses: 1. ``missing_signature``; 2. ``invalid_signature``.
    """
    if header is None or not header.strip():
        return Refusal(code="missing_signature", message=f"The header {SIGNATURE_HEADER} is missing.")
    moment, offered = _parts(header)
    matched = False
    for secret in secrets:
        key = key_bytes(secret)
        expected = _digest(key or b"-", moment, values, event_id or "evt_none").encode()
        for digest in offered:
            matched |= hmac.compare_digest(expected, digest.encode()) and bool(key)
    if matched and event_id is not None:
        return None
    return NOT_OF_THIS_ORDER


def _parts(header: str) -> tuple[str, list[str]]:
    """Parse a header into its time and digests; no digests if it is malformed."""
    nothing: tuple[str, list[str]] = ("0", [])
    if len(header) > HEADER_CHARS_MAX or not header.isascii():
        return nothing
    pairs = [tuple(each.strip() for each in part.partition("=")[::2]) for part in header.split(",")]
    moments = [value for name, value in pairs if name == "t"]
    digests = [value.lower() for name, value in pairs if name == "v1"]
    if len(moments) != 1 or _TIME.fullmatch(moments[0]) is None or len(digests) > SIGNATURES_MAX_COUNT:
        return nothing
    return moments[0], [each for each in digests if _DIGEST.fullmatch(each)]


def _digest(key: bytes, moment: str, values: SandboxValues, event_id: str) -> str:
    amount_micro = _amount_micro(values.amount)
    signed = [
        SCHEME,
        moment,
        values.order_id,
        values.account_id,
        # A value that is not an amount is signed as it is: no signature was ever created for it.
        values.amount if amount_micro is None else format_amount(amount_micro),
        values.currency,
        values.status,
        event_id,
    ]
    return hmac.new(key, msgspec.json.encode(signed), hashlib.sha256).hexdigest()


def _amount_micro(amount: str) -> int | None:
    return parse_amount(amount, decimals_max=AMOUNT_DECIMALS_MAX)
