"""The cookies of sessions in a browser, and the tokens that pages of a session send with each change."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.settings.settings import Settings

COOKIE_CHARS_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """The cookie of one kind of session. ``csrf_key`` names the key of its pages' tokens.

    With ``Lax`` browsers send it for links from elsewhere, which only read; with ``Strict`` only from our pages.
    """

    name: str
    same_site: Literal["Strict", "Lax"]
    csrf_key: str

    def name_for(self, settings: Settings) -> str:
        """Return the cookie's name; the prefix makes browsers refuse it from other hosts, and without TLS."""
        return f"__Host-{self.name}" if has_tls(settings) else self.name

    def read(self, cookies: Mapping[str, str], settings: Settings) -> str | None:
        """Return the value that was sent, None without one."""
        value = cookies.get(self.name_for(settings))
        return value if value and len(value) <= COOKIE_CHARS_MAX and value.isascii() else None

    def header(self, value: str, ttl_s: int, settings: Settings) -> tuple[str, str]:
        """Return the header that gives a browser the value for so long."""
        secure = "; Secure" if has_tls(settings) else ""
        attributes = f"Path=/; Max-Age={ttl_s}; HttpOnly; SameSite={self.same_site}{secure}"
        return "Set-Cookie", f"{self.name_for(settings)}={value}; {attributes}"

    def end_header(self, settings: Settings) -> tuple[str, str]:
        """Return the header that takes the value back."""
        return self.header("", 0, settings)

    def csrf_token(self, value: str, settings: Settings) -> str:
        """Return the token that a page of this session sends with each change."""
        mac = hmac.digest(settings.derived_key(self.csrf_key), value.encode(), "sha256")
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()

    def is_csrf_token(self, sent: str | None, value: str, settings: Settings) -> bool:
        """Compare in constant time."""
        expected = self.csrf_token(value, settings).encode()
        return hmac.compare_digest((sent or "").encode(errors="replace"), expected)


def has_tls(settings: Settings) -> bool:
    """Whether browsers reach the service by TLS."""
    return (settings.public_url or "").startswith("https:")
