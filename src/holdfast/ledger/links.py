"""Public URLs of this service, and links to files that expire.

A link carries ``exp`` and ``sig`` in its query: an HMAC-SHA256 over method, file name and expiry. The one that ends
an account's mail has no expiry.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

LinkStatus = Literal["valid", "expired", "invalid"]
"""``expired`` is returned only for links with a valid signature."""

UNSUBSCRIBE_PATH: Final = "/v2/control/alerts/unsubscribe"

_SECONDS = re.compile(r"[1-9][0-9]{0,11}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicUrls:
    """Absolute URLs of this service: ``base``, without a slash at its end, and a path.

    The base is configured, never taken from a request.

    The first of ``link_keys`` signs links to stored outputs and files, and each opens them; a link works for
    ``link_ttl_s``.
    """

    base: str
    link_keys: tuple[bytes, ...] = field(repr=False)
    link_ttl_s: int

    def link_expiry(self, now: datetime, expires_at: datetime | None) -> datetime:
        """Return when a link made at ``now`` stops working: never after the file's own expiry."""
        link_end = now + timedelta(seconds=self.link_ttl_s)
        return link_end if expires_at is None else min(link_end, expires_at)

    def asset_url(self, asset_id: str, expires_at: datetime) -> str:
        """Return a signed link to a stored output."""
        return f"{self.base}/v2/assets/{asset_id}?{sign_link(asset_id, expires_at, self.link_keys[0])}"

    def file_url(self, file_id: str, expires_at: datetime) -> str:
        """Return a signed link to an uploaded file."""
        return f"{self.base}/v2/files/{file_id}/content?{sign_link(file_id, expires_at, self.link_keys[0])}"

    def archive_url(self, archive_id: str, expires_at: datetime) -> str:
        """Return a signed link to the archive of an account."""
        return f"{self.base}/v2/archives/{archive_id}?{sign_link(archive_id, expires_at, self.link_keys[0])}"

    def unsubscribe_url(self, account_id: str) -> str:
        """Return the link that ends an account's mail. It does not expire, as mail does not."""
        sig = _unsubscribe_digest(account_id, self.link_keys[0])
        return f"{self.base}{UNSUBSCRIBE_PATH}?account_id={account_id}&sig={sig}"

    def is_unsubscribe_link(self, account_id: str, sig: str) -> bool:
        """Whether ``sig`` is that of an account's :meth:`unsubscribe_url`."""
        given = sig.encode("utf-8", "surrogatepass")
        return any(
            hmac.compare_digest(_unsubscribe_digest(account_id, key).encode(), given) for key in self.link_keys
        )


def _unsubscribe_digest(account_id: str, key: bytes) -> str:
    return hmac.digest(key, f"unsubscribe\n{account_id}".encode("utf-8", "surrogatepass"), "sha256").hex()


def sign_link(asset_id: str, expires_at: datetime, key: bytes) -> str:
    """Return the query ``exp=…&sig=…`` that opens ``asset_id`` until ``expires_at`` (in whole seconds)."""
    if not key:
        raise ValueError("an empty key signs nothing")
    moment = str(int(expires_at.timestamp()))
    return f"exp={moment}&sig={_digest(asset_id, moment, key)}"


def check_link(asset_id: str, exp: str | None, sig: str | None, keys: Sequence[bytes], now: datetime) -> LinkStatus:
    """Check the query of a link. Never raises."""
    if exp is None or sig is None or not _SECONDS.match(exp) or not _DIGEST.match(sig):
        return "invalid"
    if not any(key and hmac.compare_digest(_digest(asset_id, exp, key), sig) for key in keys):
        return "invalid"
    return "valid" if now.timestamp() < int(exp) else "expired"


def _digest(asset_id: str, moment: str, key: bytes) -> str:
    signed = f"GET\n{asset_id}\n{moment}".encode("utf-8", "surrogatepass")
    return hmac.digest(key, signed, "sha256").hex()
