"""Whether a request comes from this service's own pages.

A browser sends a cookie by itself, so a request with one is accepted from the same origin only. It says so in
``Sec-Fetch-Site`` (over TLS and on loopback) and, with each change, in ``Origin``. Other clients send neither.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from holdfast.ledger.refusals import Refusal
from holdfast.settings.settings import Settings

CROSS_ORIGIN: Final = Refusal(
    code="cross_origin_request", message="Operators' requests must come from this service's own pages."
)


def refuse_cross_origin(method: str, headers: Headers, settings: Settings, *, has_cookie: bool) -> Refusal | None:
    """Refuse a request that a page of another origin made. Clients that are no browsers send neither header.

    A navigation from another site only reads. With a cookie, a change needs one of the headers.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if origin is not None and not _is_ours(origin, headers.get("Host"), settings):
        return CROSS_ORIGIN
    if site in {"same-site", "cross-site"}:
        is_navigation = method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate"
        return None if is_navigation and headers.get("Sec-Fetch-Dest", "document") == "document" else CROSS_ORIGIN
    if has_cookie and method != "GET" and site != "same-origin" and origin is None:
        return CROSS_ORIGIN
    return None


def _is_ours(origin: str, host: str | None, settings: Settings) -> bool:
    """Whether an Origin header names the host that the request was sent to, or the public address."""
    try:
        sent = urlsplit(origin)
    except ValueError:
        return False
    if sent.scheme not in {"http", "https"} or not sent.netloc:
        return False
    public = urlsplit(settings.public_url or "")
    return sent.netloc.lower() == (host or "").lower() or sent[:2] == public[:2]
