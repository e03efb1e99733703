"""Signatures of messages: our header, which card webhooks share, and Standard Webhooks.

Ours is ``t=<unix>,v1=<hex>[,v1=<hex>…]``. ``v1`` is the lower-case hex HMAC-SHA256 of ``t + "." + raw body``.
While a secret is rotated there are several ``v1``; one that matches is enough. An optional ``k=<name>`` names the
signer, so that the right secrets can be chosen before the body is trusted.

Standard Webhooks has three headers: ``webhook-id`` is the message's id, the same for each attempt;
``webhook-timestamp`` is when this attempt was signed (unix seconds); ``webhook-signature`` contains one or more
``v1,<base64>``, separated by blanks, one for each current secret. The HMAC-SHA256 covers ``id.timestamp.body``; a
secret is ``whsec_<base64>``. The URL is not signed: anyone who sees a message could send it to another URL, so a
receiver must learn from the body what the message is about.

Verification never raises: every defect of a header is a verdict. It works on the raw bytes as received, since a
body that was parsed and encoded again is another body.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from holdfast.ledger.standard_secrets import KEY_MAX_BYTES, KEY_MIN_BYTES, SECRET_PREFIX, key_bytes, standard_key

SignatureVerdict = Literal["valid", "missing", "invalid", "expired"]
"""``expired`` is returned only for a signature that is otherwise right, so it reveals nothing to a forger."""

TOLERANCE_S = 300
"""The most that a signature's time may be before ours, or after it."""
HEADER_MAX_CHARS = 4096
SIGNATURES_MAX_COUNT = 16

TIME = re.compile(r"(?:0|[1-9][0-9]{0,11})\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

STANDARD_ID_HEADER: Final = "webhook-id"
STANDARD_TIMESTAMP_HEADER: Final = "webhook-timestamp"
STANDARD_SIGNATURE_HEADER: Final = "webhook-signature"
# Without dots, since dots separate the signed parts.
_STANDARD_ID = re.compile(r"[!-\-/-~]{1,200}\Z")


def sign(secret: bytes | str, body: bytes, *, at: int, key_name: str | None = None) -> str:
    """Return the header for ``body`` sent at ``at`` (unix seconds).

    Raises ``ValueError`` for an empty secret, a negative time or an invalid key name.
    """
    key = key_bytes(secret)
    if not key:
        raise ValueError("the signing secret is empty")
    moment = str(at)
    if not TIME.match(moment):
        raise ValueError("the time of a signature is a non-negative number of seconds")
    if key_name is not None and not _KEY_NAME.match(key_name):
        raise ValueError("a key name is 1 to 64 letters, digits, dots, dashes or underscores")
    name = "" if key_name is None else f"k={key_name},"
    return f"{name}t={moment},v1={_digest(key, moment, body).decode('ascii')}"


def verify_signature(header: str | None, body: bytes, secrets: Sequence[str], *, now: datetime) -> SignatureVerdict:
    """Verify ``header`` over the raw ``body`` with each secret in turn; empty secrets never verify."""
    if header is None or not header.strip():
        return "missing"
    fields = _fields(header)
    if fields is None:
        return "invalid"
    moments = [value for name, value in fields if name == "t"]
    digests = [value.lower() for name, value in fields if name == "v1"]
    if len(moments) != 1 or not TIME.match(moments[0]) or len(digests) > SIGNATURES_MAX_COUNT:
        return "invalid"
    offered = [digest.encode("ascii") for digest in digests if _DIGEST.match(digest)]
    expected = [_digest(key, moments[0], body) for key in map(key_bytes, secrets) if key]
    return judge(expected, offered, moments[0], now)


def judge(expected: Sequence[bytes], offered: Sequence[bytes], moment: str, now: datetime) -> SignatureVerdict:
    """Return the verdict on the signatures ``offered`` of a message that was signed at ``moment``.

    ``expected`` are those of our secrets. Every pair is compared, in constant time.
    """
    matched = False
    for ours in expected:
        for theirs in offered:
            matched |= hmac.compare_digest(ours, theirs)
    if not matched:
        return "invalid"
    return "valid" if abs(now.timestamp() - int(moment)) <= TOLERANCE_S else "expired"


def key_name(header: str | None) -> str | None:
    """Return the ``k=`` of a header; None if it has none, several or an invalid one."""
    fields = _fields(header) if header is not None else None
    names = [value for name, value in fields or () if name == "k"]
    return names[0] if len(names) == 1 and _KEY_NAME.match(names[0]) else None


def _fields(header: str) -> list[tuple[str, str]] | None:
    """Return the header's ``name=value`` pairs; None if it is too long or not ASCII."""
    if len(header) > HEADER_MAX_CHARS or not header.isascii():
        return None
    pairs = [part.partition("=") for part in header.split(",")]
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _digest(key: bytes, moment: str, body: bytes) -> bytes:
    return hmac.new(key, moment.encode("ascii") + b"." + body, hashlib.sha256).hexdigest().encode("ascii")


def sign_standard(secret: str, message_id: str, at: int, body: bytes) -> str:
    """Return one signature, ``v1,<base64>``, of ``body`` sent under ``message_id`` at ``at`` (unix seconds).

    Raises ``ValueError`` for an invalid secret, an id with a dot or a blank, or a negative time.
    """
    key = standard_key(secret)
    if key is None:
        raise ValueError(f"a secret is {SECRET_PREFIX} and the base64 of {KEY_MIN_BYTES} to {KEY_MAX_BYTES} bytes")
    moment = str(at)
    if not _STANDARD_ID.match(message_id) or not TIME.match(moment):
        raise ValueError("a message has an id without dots and blanks, and a time that is not negative")
    return f"v1,{_standard_digest(key, message_id, moment, body).decode('ascii')}"


def standard_headers(secrets: Sequence[str], message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers of one attempt, signed with each of ``secrets``. Raises as :func:`sign_standard`."""
    return {
        STANDARD_ID_HEADER: message_id,
        STANDARD_TIMESTAMP_HEADER: str(at),
        STANDARD_SIGNATURE_HEADER: " ".join(sign_standard(secret, message_id, at, body) for secret in secrets),
    }


def verify_standard(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
    *,
    now: datetime,
) -> SignatureVerdict:
    """Verify a message by its headers, with names in lower case, and each secret in turn.

    ``expired`` is returned only for a signature that is otherwise right. Signatures other than ``v1`` and invalid
    secrets are ignored; without a secret nothing verifies.
    """
    message_id = headers.get(STANDARD_ID_HEADER, "").strip()
    moment = headers.get(STANDARD_TIMESTAMP_HEADER, "").strip()
    signatures = headers.get(STANDARD_SIGNATURE_HEADER, "").strip()
    if not (message_id and moment and signatures):
        return "missing"
    if not _STANDARD_ID.match(message_id) or not TIME.match(moment):
        return "invalid"
    if len(signatures) > HEADER_MAX_CHARS or not signatures.isascii():
        return "invalid"
    words = signatures.split()
    if len(words) > SIGNATURES_MAX_COUNT:
        return "invalid"
    offered = [word[3:].encode("ascii") for word in words if word.startswith("v1,")]
    keys = filter(None, map(standard_key, secrets))
    return judge([_standard_digest(key, message_id, moment, body) for key in keys], offered, moment, now)


def _standard_digest(key: bytes, message_id: str, moment: str, body: bytes) -> bytes:
    signed = message_id.encode("ascii") + b"." + moment.encode("ascii") + b"." + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
