"""The cookie of an account's session in a browser, and the token that its forms send with each change."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from holdfast.http.kit.operators import has_tls
from holdfast.ledger.refusals import Refusal
from holdfast.settings.settings import Settings

_COOKIE: Final = "holdfast_account"
_COOKIE_CHARS_MAX: Final = 128

STALE_FORM: Final = Refusal(
    code="invalid_csrf_token",
    message="Nothing was done, since the form was of a session that has ended. Look at it, and send it again.",
)


def cookie_name(settings: Settings) -> str:
    """Return the cookie's name; the prefix makes browsers refuse it from other hosts, and without TLS."""
    return f"__Host-{_COOKIE}" if has_tls(settings) else _COOKIE


def read_cookie(cookies: Mapping[str, str], settings: Settings) -> str | None:
    """Return the session's token, None without one."""
    token = cookies.get(cookie_name(settings))
    return token if token and len(token) <= _COOKIE_CHARS_MAX and token.isascii() else None


def set_cookie(token: str, ttl_s: int, settings: Settings) -> tuple[str, str]:
    """Return the header that gives a browser the token; an empty one takes it back.

    It is sent with links from elsewhere, which only read, so that a payment's page may lead back here.
    """
    secure = "; Secure" if has_tls(settings) else ""
    return (
        "Set-Cookie",
        f"{cookie_name(settings)}={token}; Path=/; Max-Age={ttl_s}; HttpOnly; SameSite=Lax{secure}",
    )


def csrf_token(token: str, settings: Settings) -> str:
    """Return what a page of this session sends with each change."""
    mac = hmac.digest(settings.derived_key("accounts' csrf tokens"), token.encode(), "sha256")
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def is_csrf_token(sent: str | None, token: str, settings: Settings) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest((sent or "").encode(errors="replace"), csrf_token(token, settings).encode())
