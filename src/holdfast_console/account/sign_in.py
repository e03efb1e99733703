"""How the owner of an account comes in and leaves: a code by e-mail, the cookie; and what all pages fetch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.http.endpoints.sign_in import request_code, sign_out, verify_code
from holdfast.http.endpoints.tasks.following import stream_account
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.session_cookies import SessionCookie
from holdfast.http.schemas.common import CodeSent, SignedOutBody, Verified
from holdfast.ledger.refusals import Refusal
from holdfast_console.formats import code_digits, duration_text
from holdfast_console.forms import FORM_BYTES_MAX, RETURN_FIELD, Message, SentForm, local_path
from holdfast_console.rendering import Again, Html, Redirect, static_response
from holdfast_console.views import ViewResult, ViewTable, Visit

ROOT: Final = "/account"
SIGN_IN: Final = f"{ROOT}/sign-in"
EVENTS: Final = f"{ROOT}/events"

ACCOUNT_COOKIE: Final = SessionCookie("holdfast_account", "Lax", "accounts' csrf tokens")
"""Sent with links from elsewhere too, so that a payment's page may lead back here."""

KEPT: Final = "kept."
"""What the names of a kept form's fields begin with."""
KEPT_ACTION: Final = "kept_action"
NOT_KEPT: Final = frozenset({"code", "otp", "current.otp", "new.otp", "token", "secret", "api_key", "password"})
"""Fields that are secrets: they are not sent to the browser again."""
KEPT_BYTES_MAX: Final = 18 * FORM_BYTES_MAX
"""The largest form of all pages, and what the sign-in adds."""

KEPT_ACCOUNT: Final = "Your account was to be deleted. Because you signed in, it is kept."
SIGNED_IN_AGAIN: Final = "You are signed in again. Nothing was done yet: look at the form, and send it again."

view = ViewTable(Auth.NONE)


def kept_fields(visit: Visit) -> dict[str, str]:
    """Return the fields of a form that may be kept while its sender signs in."""
    return {name: value for name, value in visit.form.items() if name not in NOT_KEPT}


def sign_in_form(
    return_to: str,
    *,
    kept: Mapping[str, str] | None = None,
    kept_action: str = "",
    email: str = "",
    otp_id: str = "",
    debug_otp: str | None = None,
    resend_at: datetime | None = None,
    refusal: Refusal | None = None,
    status: int = 200,
) -> Html:
    """Return the form for the address, or with ``otp_id`` that for the code, with a form that is ``kept`` in it."""
    wait_s = None if refusal is None else refusal.retry_after_s
    values = {
        "return_to": return_to,
        "kept": {f"{KEPT}{name}": value for name, value in (kept or {}).items()},
        "kept_action": kept_action,
        "email": email,
        "otp_id": otp_id,
        "debug_otp": debug_otp,
        "resend_at": resend_at,
        "failure": refusal,
        "wait": None if wait_s is None else duration_text(wait_s),
    }
    return Html("sign_in.html", values, status=400 if refusal else status)


@view(SIGN_IN)
async def show_sign_in(visit: Visit) -> ViewResult:
    """The form; who is signed in already goes on."""
    return_to, call = local_path(visit.parameter("return_to"), ROOT), visit.call
    token = ACCOUNT_COOKIE.read(call.request.cookies, call.deps.settings)
    if token is not None and not isinstance(await call.identify_session(token), Refusal):
        return Redirect(return_to)
    return sign_in_form(return_to)


@view(SIGN_IN, method="POST", form_bytes_max=KEPT_BYTES_MAX)
async def take_sign_in(visit: Visit) -> ViewResult:
    """Send a code, or begin a session with one. A form that was kept is shown again then."""
    form, call = visit.form, visit.call
    return_to = local_path(form.get(RETURN_FIELD, ""), ROOT)
    kept = {name.removeprefix(KEPT): value for name, value in form.items() if name.startswith(KEPT)}
    email, otp_id = form.get("email", ""), form.get("otp_id", "")
    now, settings = call.deps.now(), call.deps.settings
    shown = partial(
        sign_in_form, return_to, kept=kept, kept_action=form.get(KEPT_ACTION, ""), email=email, otp_id=otp_id
    )
    if "start" in form:
        return shown(otp_id="")
    if "otp" not in form or "resend" in form:
        sent = await visit.submit(request_code, CodeSent, {"email": email})
        if isinstance(sent, Refusal):
            wait_s = sent.retry_after_s
            return shown(refusal=sent, resend_at=None if wait_s is None else now + timedelta(seconds=wait_s))
        resend_at = now + timedelta(seconds=settings.otp_resend_s)
        return shown(otp_id=sent.otp_id, debug_otp=sent.debug_otp, resend_at=resend_at)
    code = code_digits(form["otp"])
    begun = await visit.submit(verify_code, Verified, {"email": email, "otp_id": otp_id, "otp": code})
    if isinstance(begun, Refusal):
        return shown(refusal=begun)
    headers = (ACCOUNT_COOKIE.header(begun.session.token, settings.session_ttl_s, settings),)
    if not kept:
        message = Message(KEPT_ACCOUNT) if begun.account_kept else None
        return Redirect(return_to, message, headers=headers)
    await call.identify_session(begun.session.token)
    text = f"{KEPT_ACCOUNT} {SIGNED_IN_AGAIN}" if begun.account_kept else SIGNED_IN_AGAIN
    sent_form = SentForm(form.get(KEPT_ACTION, ""), kept, text)
    return Again(return_to, sent_form, headers=headers)


@view(f"{ROOT}/sign-out", method="POST", auth=Auth.SESSION)
async def leave(visit: Visit) -> ViewResult:
    """End the session."""
    done = await visit.submit(sign_out, SignedOutBody)
    if isinstance(done, Refusal):
        return done
    ended = Message("You are signed out.")
    return Redirect(SIGN_IN, ended, headers=(ACCOUNT_COOKIE.end_header(visit.call.deps.settings),))


@view(EVENTS, auth=Auth.SESSION)
async def follow(visit: Visit) -> ViewResult:
    """The account's events, by which pages that live know when to ask for themselves again."""
    return await visit.stream(stream_account)


@view(f"{ROOT}/static/{{name}}")
async def static_file(visit: Visit) -> ViewResult:
    """A file of the pages."""
    return static_response(visit.path["name"])
