"""The account's own pages: who sees them, and the navigation around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from holdfast.http.kit.credentials import MISSING_CREDENTIALS
from holdfast.http.kit.operators import READING, refuse_cross_origin
from holdfast.ledger.refusals import Refusal
from holdfast_console.account.sign_in import ACCOUNT_COOKIE, EVENTS, ROOT, kept_fields, sign_in_form
from holdfast_console.forms import RETURN_FIELD, local_path
from holdfast_console.rendering import Redirect
from holdfast_console.sites import Site
from holdfast_console.views import PageCall, ViewResult, Visit

STALE_FORM: Final = Refusal(
    code="invalid_csrf_token",
    message="Nothing was done, since the form was of a session that has ended. Look at it, and send it again.",
)


class NavigationEntry(NamedTuple):
    """One line of the navigation."""

    path: str
    title: str


NAVIGATION: Final[tuple[tuple[str, tuple[NavigationEntry, ...]], ...]] = (
    ("", (NavigationEntry(ROOT, "Overview"), NavigationEntry(f"{ROOT}/buy", "Buy credit"))),
    (
        "Develop",
        (
            NavigationEntry(f"{ROOT}/keys", "Keys"),
            NavigationEntry(f"{ROOT}/webhooks", "Webhooks"),
            NavigationEntry(f"{ROOT}/playground", "Playground"),
        ),
    ),
    (
        "Activity",
        (
            NavigationEntry(f"{ROOT}/tasks", "Tasks"),
            NavigationEntry(f"{ROOT}/files", "Files"),
            NavigationEntry(f"{ROOT}/usage", "Usage"),
            NavigationEntry(f"{ROOT}/history", "History"),
        ),
    ),
    (
        "Billing",
        (NavigationEntry(f"{ROOT}/receipts", "Receipts"), NavigationEntry(f"{ROOT}/statement", "Statement")),
    ),
    ("", (NavigationEntry(f"{ROOT}/settings", "Settings"),)),
)


class AccountSite(Site):
    """Pages that the owner of an account sees, by a session in a cookie."""

    async def identify(self, call: PageCall) -> Refusal | None:
        """Find the session of the cookie.

        Refuses: 1. ``cross_origin_request``; 2. ``missing_credentials``; 3. ``invalid_session``,
        ``session_expired``, ``account_disabled``; 4. ``invalid_csrf_token`` (a change by another session's form).
        """
        request, settings = call.request, call.deps.settings
        refusal = refuse_cross_origin(request.method, request.headers, settings, has_cookie=True)
        if refusal is not None:
            return refusal
        token = ACCOUNT_COOKIE.read(request.cookies, settings)
        if token is None:
            return MISSING_CREDENTIALS
        session = await call.identify_session(token)
        if isinstance(session, Refusal):
            return session
        is_own = request.method in READING or ACCOUNT_COOKIE.is_csrf_token(call.csrf_token(), token, settings)
        return None if is_own else STALE_FORM

    async def frame(self, visit: Visit) -> Mapping[str, Any]:
        """Return the navigation and the session."""
        call = visit.call
        return {
            "section": "/".join(call.address.partition("?")[0].split("/", 3)[:3]),
            "navigation": NAVIGATION,
            "session": call.session,
            "csrf_token": ACCOUNT_COOKIE.csrf_token(call.token, call.deps.settings),
            "is_production": call.deps.settings.is_production,
            "live": {"events": EVENTS},
        }

    def sign_in_again(self, visit: Visit, /) -> ViewResult:
        """Ask to sign in, and keep the form meanwhile; its page shows it afterwards as it was filled in."""
        return_to, kept = local_path(visit.return_to, ROOT), kept_fields(visit)
        if self.page_at(return_to) is None or not kept.keys() - {RETURN_FIELD}:
            return Redirect(f"{self.sign_in_path}?{urlencode({'return_to': return_to})}")
        return sign_in_form(return_to, kept=kept, kept_action=visit.call.request.path, status=401)


SITE: Final = AccountSite("holdfast_console.account", ROOT, "account")
