"""Standard Webhooks: the three headers by which hosted services sign what they post, read and written alike.

``webhook-id`` names the message and stays the same when it is sent again; ``webhook-timestamp`` is when this
sending was signed (unix seconds); ``webhook-signature`` holds ``v1,<base64>`` once or more, with blanks between,
one for each secret in force. Signed is ``id.timestamp.body`` with HMAC-SHA256; a secret is ``whsec_<base64>``.

The address a message is posted to is not signed: whoever may see a message could post it elsewhere, so a receiver
must find in the body what the message is about.

Verification never raises, and works on the raw bytes as they came in.
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
from holdfast.providers.signatures import SignatureVerdict

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

TOLERANCE_S = 300
HEADER_MAX_CHARS = 4096
SIGNATURES_MAX_COUNT = 16

# A dot would let a part of the id pass for the time: the parts are joined with dots.
_ID = re.compile(r"[!-\-/-~]{1,200}\Z")
_TIME = re.compile(r"(?:0|[1-9][0-9]{0,11})\Z")


def sign_standard(secret: str, message_id: str, at: int, body: bytes) -> str:
    """One signature, ``v1,<base64>``, of ``body`` sent under ``message_id`` at ``at`` (unix seconds).

    While a secret is rolled, several stand in the header with a blank between. Raises ``ValueError`` for a secret
    that is none, an id with a dot or a blank, or a negative time.
    """
    key = standard_key(secret)
    if key is None:
        raise ValueError(f"a secret is {SECRET_PREFIX} and the base64 of {KEY_MIN_BYTES} to {KEY_MAX_BYTES} bytes")
    moment = str(at)
    if not _ID.match(message_id) or not _TIME.match(moment):
        raise ValueError("a message has an id without dots and blanks, and a time that is not negative")
    return f"v1,{_digest(key, message_id, moment, body).decode('ascii')}"


def standard_headers(secrets: Sequence[str], message_id: str, at: int, body: bytes) -> dict[str, str]:
    """The three headers of one sending, signed with each of ``secrets``. Raises as :func:`sign_standard` does."""
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
    tolerance_s: int = TOLERANCE_S,
) -> SignatureVerdict:
    """Judge a message by its headers, whose names are in lower case, against every secret in turn.

    ``expired`` is said only of a signature that is otherwise right. Signatures of other kinds than ``v1`` and
    secrets that are none are passed over; without a secret nothing verifies.
    """
    message_id = headers.get(ID_HEADER, "").strip()
    moment = headers.get(TIMESTAMP_HEADER, "").strip()
    signatures = headers.get(SIGNATURE_HEADER, "").strip()
    if not (message_id and moment and signatures):
        return "missing"
    if not _ID.match(message_id) or not _TIME.match(moment):
        return "invalid"
    if len(signatures) > HEADER_MAX_CHARS or not signatures.isascii():
        return "invalid"
    words = signatures.split()
    if len(words) > SIGNATURES_MAX_COUNT:
        return "invalid"
    offered = [word[3:].encode("ascii") for word in words if word.startswith("v1,")]
    matched = False
    for key in filter(None, map(standard_key, secrets)):
        expected = _digest(key, message_id, moment, body)
        for digest in offered:
            matched |= hmac.compare_digest(expected, digest)
    if not matched:
        return "invalid"
    return "valid" if abs(now.timestamp() - int(moment)) <= tolerance_s else "expired"


def _digest(key: bytes, message_id: str, moment: str, body: bytes) -> bytes:
    signed = message_id.encode("ascii") + b"." + moment.encode("ascii") + b"." + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
