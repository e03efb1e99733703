"""Standard Webhooks: sign and verify messages by three headers.

``webhook-id`` is the message's id, the same for each attempt; ``webhook-timestamp`` is when this attempt was signed
(unix seconds); ``webhook-signature`` contains one or more ``v1,<base64>``, separated by blanks, one for each
current secret. The HMAC-SHA256 covers ``id.timestamp.body``; a secret is ``whsec_<base64>``.

The URL is not signed: anyone who sees a message could send it to another URL, so a receiver must learn from the
body what the message is about.

Verification never raises, and works on the raw bytes as received.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from holdfast.ledger.standard_secrets import KEY_MAX_BYTES, KEY_MIN_BYTES, SECRET_PREFIX, standard_key
from holdfast.providers.signatures import HEADER_MAX_CHARS, SIGNATURES_MAX_COUNT, TIME, SignatureVerdict, judge

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

# Without dots, since dots separate the signed parts.
_ID = re.compile(r"[!-\-/-~]{1,200}\Z")


def sign_standard(secret: str, message_id: str, at: int, body: bytes) -> str:
    """Return one signature, ``v1,<base64>``, of ``body`` sent under ``message_id`` at ``at`` (unix seconds).

    Raises ``ValueError`` for an invalid secret, an id with a dot or a blank, or a negative time.
    """
    key = standard_key(secret)
    if key is None:
        raise ValueError(f"a secret is {SECRET_PREFIX} and the base64 of {KEY_MIN_BYTES} to {KEY_MAX_BYTES} bytes")
    moment = str(at)
    if not _ID.match(message_id) or not TIME.match(moment):
        raise ValueError("a message has an id without dots and blanks, and a time that is not negative")
    return f"v1,{_digest(key, message_id, moment, body).decode('ascii')}"


def standard_headers(secrets: Sequence[str], message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers of one attempt, signed with each of ``secrets``. Raises as :func:`sign_standard`."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(at),
        SIGNATURE_HEADER: " ".join(sign_standard(secret, message_id, at, body) for secret in secrets),
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
    message_id = headers.get(ID_HEADER, "").strip()
    moment = headers.get(TIMESTAMP_HEADER, "").strip()
    signatures = headers.get(SIGNATURE_HEADER, "").strip()
    if not (message_id and moment and signatures):
        return "missing"
    if not _ID.match(message_id) or not TIME.match(moment):
        return "invalid"
    if len(signatures) > HEADER_MAX_CHARS or not signatures.isascii():
        return "invalid"
    words = signatures.split()
    if len(words) > SIGNATURES_MAX_COUNT:
        return "invalid"
    offered = [word[3:].encode("ascii") for word in words if word.startswith("v1,")]
    keys = filter(None, map(standard_key, secrets))
    return judge([_digest(key, message_id, moment, body) for key in keys], offered, moment, now)


def _digest(key: bytes, message_id: str, moment: str, body: bytes) -> bytes:
    signed = message_id.encode("ascii") + b"." + moment.encode("ascii") + b"." + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
