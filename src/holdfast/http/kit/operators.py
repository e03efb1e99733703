"""Who an operator is.

An operator has one of three credentials:

- the operators' token, as a bearer; its name is ``operator-token``, and it may act;
- a session of an account whose e-mail address the settings list as an operator's (act) or a reader's (read);
- the cookie of a session in a browser, which began with one of the other two.

The settings decide the role at each request, so an operator who is no longer listed is refused at once.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from holdfast.http.kit.session_cookies import SessionCookie
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.operator_tables import OperatorSession
from holdfast.settings.settings import Settings

OperatorRole = Literal["read", "act"]
OperatorCredential = Literal["token", "session", "cookie"]

TOKEN_OPERATOR: Final = "operator-token"  # noqa: S105 - a name
"""The name of the operator who uses the operators' token."""

NOT_AN_OPERATOR: Final = Refusal(code="insufficient_role", message="The account is not an operator's.")
MAY_ONLY_READ: Final = Refusal(code="insufficient_role", message="This operator may read, but not act.")


UNCONFIRMED: Final = timedelta(minutes=15)
"""How long a session is valid that the database cannot confirm, because it is away."""


class Operator(NamedTuple):
    """The operator who makes a request. ``name`` is an e-mail address or :data:`TOKEN_OPERATOR`."""

    name: str
    role: OperatorRole
    credential: OperatorCredential


def role_of(name: str, settings: Settings) -> OperatorRole | None:
    """Return the role of an operator's name, None if it is no operator's."""
    if name == TOKEN_OPERATOR or name in settings.operators:
        return "act"
    return "read" if name in settings.operator_readers else None


def operator_of(name: str, credential: OperatorCredential, settings: Settings) -> Operator | Refusal:
    """Return the operator of that name. Refuses with ``insufficient_role``."""
    role = role_of(name, settings)
    return NOT_AN_OPERATOR if role is None else Operator(name, role, credential)


READING: Final = frozenset({"GET", "HEAD"})
"""The methods that change nothing."""
CSRF_HEADER: Final = "X-CSRF-Token"
OPERATOR_COOKIE: Final = SessionCookie("holdfast_operator", "Strict", "operators' csrf tokens")

INVALID_CSRF_TOKEN: Final = Refusal(
    code="invalid_csrf_token", message=f"The header {CSRF_HEADER} is not that of the session.", param=CSRF_HEADER
)


def new_session(name: str, origin: str, at: datetime, settings: Settings) -> tuple[str, OperatorSession]:
    """Return a new cookie and its session."""
    cookie = secrets.token_urlsafe(32)
    expires_at = at + timedelta(seconds=settings.operator_session_ttl_s)
    return cookie, OperatorSession(cookie_mac(cookie, settings), name, origin, at, expires_at)


def new_unstored_session(at: datetime, settings: Settings) -> tuple[str, OperatorSession]:
    """Return a new cookie, and the session of the operators' token that it proves by itself, without a row."""
    text = f"{at.timestamp():.0f}.{secrets.token_urlsafe(16)}"
    cookie = f"{text}.{_proof_of(text, settings)}"
    return cookie, OperatorSession(cookie_mac(cookie, settings), TOKEN_OPERATOR, "", at, at + UNCONFIRMED)


def unstored_session(cookie: str, settings: Settings) -> OperatorSession | None:
    """Return the session that a cookie proves by itself, if it does."""
    text, _, proof = cookie.rpartition(".")
    if not hmac.compare_digest(proof, _proof_of(text, settings)):
        return None
    at = datetime.fromtimestamp(int(text.partition(".")[0]), UTC)
    return OperatorSession(cookie_mac(cookie, settings), TOKEN_OPERATOR, "", at, at + UNCONFIRMED)


def _proof_of(text: str, settings: Settings) -> str:
    key = settings.derived_key("operators' sessions without rows " + settings.operator_token)
    return hmac.digest(key, text.encode(), "sha256").hex()


def cookie_mac(cookie: str, settings: Settings) -> bytes:
    """Return what the database has of a cookie. Its key changes with the operators' token."""
    key = settings.derived_key("operators' sessions " + settings.operator_token)
    return hmac.digest(key, cookie.encode(), "sha256")


class SeenSessions:
    """The sessions that this process has found valid lately: while the database is away, they stay valid.

    An operator who watches an outage must not be signed out by it.
    """

    def __init__(self, *, entries_max: int = 1_000) -> None:
        self._entries_max = entries_max
        self._seen: OrderedDict[bytes, tuple[OperatorSession, datetime]] = OrderedDict()

    def note(self, mac: bytes, session: OperatorSession | None, now: datetime) -> None:
        """Remember what the database has of a cookie; None: nothing, or no longer.

        What was ended stays so: a read may have begun before.
        """
        before, _ = self._seen.pop(mac, (None, now))
        if session is not None:
            session = before if before is not None and before.ended_at is not None else session
            self._seen[mac] = session, now
            if len(self._seen) > self._entries_max:
                self._seen.popitem(last=False)

    def end(self, mac: bytes, now: datetime) -> None:
        """Refuse a session from now on, also one that is not known here."""
        self.note(mac, OperatorSession(mac, "", "", now, now, ended_at=now), now)

    def get(self, mac: bytes, now: datetime) -> OperatorSession | None:
        """Return a session that was confirmed lately."""
        session, at = self._seen.get(mac, (None, now))
        return session if now - at <= UNCONFIRMED else None


CROSS_ORIGIN: Final = Refusal(
    code="cross_origin_request", message="The request must come from a page of this service."
)


def refuse_cross_origin(method: str, headers: Headers, settings: Settings, *, has_cookie: bool) -> Refusal | None:
    """Refuse a request that a page of another origin made. Clients that are no browsers send neither header.

    A navigation from another site only reads. With a cookie, a change needs one of the headers.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if origin is not None and not _is_ours(origin, headers.get("Host"), settings):
        return CROSS_ORIGIN
    if site in {"same-site", "cross-site"}:
        is_navigation = method in READING and headers.get("Sec-Fetch-Mode") == "navigate"
        return None if is_navigation and headers.get("Sec-Fetch-Dest", "document") == "document" else CROSS_ORIGIN
    if has_cookie and method not in READING and site != "same-origin" and origin is None:
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
