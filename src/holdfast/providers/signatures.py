"""The signature header shared by provider callbacks and card webhooks: ``t=<unix>,v1=<hex>[,v1=<hex>…]``.

``v1`` is the lower-case hex HMAC-SHA256 of ``t + "." + raw body``. While a secret is rotated there are several
``v1``; one that matches is enough. An optional ``k=<name>`` names the signer, so that the right secrets can be
chosen before the body is trusted.

Verification never raises: every defect of the header is a verdict. It works on the raw bytes as received, since a
body that was parsed and encoded again is another body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

SignatureVerdict = Literal["valid", "missing", "invalid", "expired"]
"""``expired`` is returned only for a signature that is otherwise right, so it reveals nothing to a forger."""

TOLERANCE_S = 300
"""The most that a signature's time may be before ours, or after it."""
HEADER_MAX_CHARS = 4096
SIGNATURES_MAX_COUNT = 16

TIME = re.compile(r"(?:0|[1-9][0-9]{0,11})\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def sign(secret: bytes | str, body: bytes, *, at: int, key_name: str | None = None) -> str:
    """Return the header for ``body`` sent at ``at`` (unix seconds).

    Raises ``ValueError`` for an empty secret, a negative time or an invalid key name.
    """
    key = _key(secret)
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
    expected = [_digest(key, moments[0], body) for key in map(_key, secrets) if key]
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


def _key(secret: bytes | str) -> bytes:
    """Return the secret as key bytes; a blank one counts as empty."""
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    return raw if raw.strip() else b""


def _digest(key: bytes, moment: str, body: bytes) -> bytes:
    return hmac.new(key, moment.encode("ascii") + b"." + body, hashlib.sha256).hexdigest().encode("ascii")
