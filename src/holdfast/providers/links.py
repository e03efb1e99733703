"""Links that expire: ``exp`` and ``sig`` in the query, an HMAC-SHA256 over method, name and expiry.

Whoever holds the link may fetch the file until then; nobody can make one for another file or a later hour.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import datetime
from typing import Literal

LinkVerdict = Literal["valid", "expired", "invalid"]
"""``expired`` is said only of a link that was ours."""

_SECONDS = re.compile(r"[1-9][0-9]{0,11}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def sign_link(asset_id: str, expires_at: datetime, key: bytes) -> str:
    """The query ``exp=…&sig=…`` that opens ``asset_id`` until ``expires_at`` (cut to whole seconds)."""
    if not key:
        raise ValueError("an empty key signs nothing")
    moment = str(int(expires_at.timestamp()))
    return f"exp={moment}&sig={_digest(asset_id, moment, key)}"


def check_link(asset_id: str, exp: str | None, sig: str | None, key: bytes, now: datetime) -> LinkVerdict:
    """Judge the query of a link; never raises, whatever it holds."""
    if not key or exp is None or sig is None or not _SECONDS.match(exp) or not _DIGEST.match(sig):
        return "invalid"
    if not hmac.compare_digest(_digest(asset_id, exp, key), sig):
        return "invalid"
    return "valid" if now.timestamp() < int(exp) else "expired"


def _digest(asset_id: str, moment: str, key: bytes) -> str:
    signed = f"GET\n{asset_id}\n{moment}".encode("utf-8", "surrogatepass")
    return hmac.new(key, signed, hashlib.sha256).hexdigest()
