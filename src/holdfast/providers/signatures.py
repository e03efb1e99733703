"""The signature header shared by provider callbacks and card webhooks: ``t=<unix>,v1=<hex>[,v1=<hex>…]``.

``v1`` is the lower-case hex HMAC-SHA256 of ``t + "." + raw body``. Several ``v1`` stand side by side while a secret
is rolled; one that matches is enough. An optional ``k=<name>`` says whose key signed, so that the right secrets can
be chosen before the body is trusted.

Verification never raises: every defect of the header, however odd, is a verdict. It works on the raw bytes as they
came in, since a body that was parsed and written again is another body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

SignatureVerdict = Literal["valid", "missing", "invalid", "expired"]
"""``expired`` is said only of a signature that is otherwise right, so it tells a forger nothing."""

HEADER_MAX_CHARS = 4096
SIGNATURES_MAX_COUNT = 16

_TIME = re.compile(r"(?:0|[1-9][0-9]{0,11})\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def sign(secret: bytes | str, body: bytes, *, at: int, key_name: str | None = None) -> str:
    """Write the header for ``body`` sent at ``at`` (unix seconds).

    Raises ``ValueError`` for an empty secret, a negative time or a key name that no verifier would read.
    """
    key = _key(secret)
    if not key:
        raise ValueError("the signing secret is empty")
    moment = str(at)
    if not _TIME.match(moment):
        raise ValueError("the time of a signature is a non-negative number of seconds")
    if key_name is not None and not _KEY_NAME.match(key_name):
        raise ValueError("a key name is 1 to 64 letters, digits, dots, dashes or underscores")
    name = "" if key_name is None else f"k={key_name},"
    return f"{name}t={moment},v1={_digest(key, moment, body).decode('ascii')}"


def verify(
    header: str | None, body: bytes, secrets: Sequence[str], *, now: datetime, tolerance_s: int = 300
) -> SignatureVerdict:
    """Judge ``header`` over the raw ``body`` against every secret in turn.

    ``tolerance_s`` bounds the age in both directions: a signature from the future is as suspect as an old one.
    Empty secrets never verify, because anybody can sign with nothing.
    """
    if header is None or not header.strip():
        return "missing"
    fields = _fields(header)
    if fields is None:
        return "invalid"
    moments = [value for name, value in fields if name == "t"]
    digests = [value.lower() for name, value in fields if name == "v1"]
    if len(moments) != 1 or not _TIME.match(moments[0]) or len(digests) > SIGNATURES_MAX_COUNT:
        return "invalid"
    offered = [digest.encode("ascii") for digest in digests if _DIGEST.match(digest)]
    keys = [key for key in map(_key, secrets) if key]
    matched = False
    for key in keys:
        expected = _digest(key, moments[0], body)
        for digest in offered:
            matched |= hmac.compare_digest(expected, digest)
    if not matched:
        return "invalid"
    return "valid" if abs(now.timestamp() - int(moments[0])) <= tolerance_s else "expired"


def key_name(header: str | None) -> str | None:
    """The ``k=`` of a header, or None where it has none, several, or one that cannot be a name."""
    fields = _fields(header) if header is not None else None
    names = [value for name, value in fields or () if name == "k"]
    return names[0] if len(names) == 1 and _KEY_NAME.match(names[0]) else None


def _fields(header: str) -> list[tuple[str, str]] | None:
    """The header's ``name=value`` pairs without their surrounding blanks; None where it cannot be one of ours."""
    if len(header) > HEADER_MAX_CHARS or not header.isascii():
        return None
    pairs = [part.partition("=") for part in header.split(",")]
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _key(secret: bytes | str) -> bytes:
    """The secret as key bytes; one of nothing but blanks counts as empty."""
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    return raw if raw.strip() else b""


def _digest(key: bytes, moment: str, body: bytes) -> bytes:
    return hmac.new(key, moment.encode("ascii") + b"." + body, hashlib.sha256).hexdigest().encode("ascii")
