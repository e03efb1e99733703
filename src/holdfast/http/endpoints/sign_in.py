"""Sign-in by a code sent to an e-mail address, and the session."""

from __future__ import annotations

import re
from typing import Final

from holdfast.actors.account.messages import SignOut
from holdfast.actors.sign_in.messages import AdmitOrigin, CodeIssued, RequestCode, SignedIn, VerifyCode
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.other_cells import require_email
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter, shown
from holdfast.http.schemas.common import (
    CodeRequest,
    CodeSent,
    Delivery,
    FirstCall,
    SessionContext,
    SessionToken,
    SignedOutBody,
    Verified,
    VerifyRequest,
    account_body,
    first_call,
    session_context,
)
from holdfast.ledger.api_keys import TASKS_WRITE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import INVALID_OTP, is_otp_id_of
from holdfast.ledger.values import format_time
from holdfast.persistence.queries.accounts import first_call_facts
from holdfast.providers.mail.base import CodeUse
from holdfast.telemetry.reports.conditions import MAIL

EMAIL_MAX_CHARS: Final = 254
LOCAL_PART_MAX_CHARS: Final = 64

_LOCAL_PART = re.compile(r"[^\s@\x00-\x1f\x7f-\x9f\"(),:;<>\[\\\]]+")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+", re.ASCII)


def normalise_email(text: str) -> str | None:
    """Return the address trimmed, its domain in lower case and its local part casefolded; None if it is invalid.

    Stricter than the mail standards: quoted local parts, comments, bare host names and address literals are
    refused. A domain outside ASCII must be written in its xn-- form.
    """
    local, at, domain = text.strip().rpartition("@")
    local, domain = local.casefold(), domain.lower()
    if not at or len(local) > LOCAL_PART_MAX_CHARS or len(local) + len(domain) + 1 > EMAIL_MAX_CHARS:
        return None
    if not local.isprintable() or not _LOCAL_PART.fullmatch(local) or not _DOMAIN.fullmatch(domain):
        return None
    if local.startswith(".") or local.endswith(".") or ".." in local:
        return None
    return f"{local}@{domain}"


CODE_PATH: Final = "/v2/control/auth/otp"
VERIFY_PATH: Final = "/v2/control/auth/verify"
SESSION_PATH: Final = "/v2/control/session"

route = RouteTable("Sign-in")

_CODE = re.compile(r"[0-9]{6}", re.ASCII)


@route(
    "POST",
    CODE_PATH,
    summary="Send a one-time code: to an e-mail address, to sign in or to register",
    body=CodeRequest,
    reply=CodeSent,
    errors=("invalid_email", "otp_rate_limited", "otp_attempts_exceeded", "otp_delivery_failed"),
)
async def request_code(call: Call) -> Outcome:
    """The code replaces those sent before. Requests are limited by origin and by address."""
    email = read_email(call.body(CodeRequest).email)
    if isinstance(email, Refusal):
        return email
    await require_email(call.deps, call.request, email, gives=True)
    deps, origin = call.deps, call.origin()
    admitted = await call.ask(deps.sign_ins.ref(f"origin:{origin}"), AdmitOrigin())
    if isinstance(admitted, Refusal):
        return admitted
    issued = await call.ask(deps.sign_ins.ref(f"email:{email}"), RequestCode(origin))
    if isinstance(issued, Refusal):
        return issued
    return await send_code(call, email, issued)


async def send_code(call: Call, email: str, issued: CodeIssued, use: CodeUse = "sign_in") -> CodeSent | Refusal:
    """Send a code to its address. Refuses: 1. ``otp_delivery_failed``."""
    deps = call.deps
    try:
        await deps.sending.mailer.send_code(email, issued.code, expires_in_s=issued.expires_in_s, use=use)
    except Exception as fault:  # the caller learns no detail of the mail host
        deps.conditions.failed(MAIL, "", type(fault).__name__)
        return Refusal(code="otp_delivery_failed", message="The code could not be sent; try again later.")
    deps.conditions.ended(MAIL)
    return CodeSent(
        otp_id=issued.otp_id,
        expires_in_seconds=issued.expires_in_s,
        delivery=Delivery(channel="email", destination=email, status="sent"),
        debug_otp=issued.code if deps.settings.env == "development" else None,
    )


@route(
    "POST",
    VERIFY_PATH,
    summary="Exchange the code for a session token; the first sign-in creates the account",
    body=VerifyRequest,
    reply=Verified,
    errors=("invalid_email", "invalid_otp", "otp_expired", "otp_attempts_exceeded", "account_disabled"),
)
async def verify_code(call: Call) -> Outcome:
    """A code is valid once, for its own address and `otp_id`. An account that is to be closed is kept by it."""
    deps, tried = call.deps, call.body(VerifyRequest)
    email = read_email(tried.email)
    if isinstance(email, Refusal):
        return email
    signed_in = await sign_in_by_code(call, email, tried)
    if isinstance(signed_in, Refusal):
        return signed_in
    facts = await deps.database.read(
        lambda rows: first_call_facts(rows, signed_in.account_id, writing_scope=TASKS_WRITE, now=deps.now)
    )
    return Verified(
        account_id=signed_in.account_id,
        email=signed_in.email,
        role=signed_in.role,
        session=SessionToken(
            type="bearer", token=signed_in.session_token, expires_at=format_time(signed_in.session_expires_at)
        ),
        account=account_body(facts.totals),
        first_call=first_call(deps, facts),
        account_kept=signed_in.was_kept,
    )


def is_code(text: str) -> bool:
    """Whether a text has the form of a code."""
    return _CODE.fullmatch(text) is not None


async def sign_in_by_code(call: Call, email: str, tried: VerifyRequest) -> SignedIn | Refusal:
    """Sign in with a code. Refuses as :func:`verify_code` does."""
    deps = call.deps
    await require_email(deps, call.request, email)
    if not is_code(tried.otp):
        return invalid_parameter("otp", "must have six digits")
    if not is_otp_id_of(deps.settings.otp_pepper, email, tried.otp_id):
        return INVALID_OTP
    command = VerifyCode(otp_id=tried.otp_id, code=tried.otp)
    return await call.ask(deps.sign_ins.ref(f"email:{email}"), command)


@route(
    "GET",
    SESSION_PATH,
    summary="Retrieve the session",
    auth=Auth.SESSION,
    reply=SessionContext,
)
async def read_session(call: Call) -> Outcome:
    """Takes a session token only, no API key."""
    return session_context(call.session)


@route(
    "DELETE",
    SESSION_PATH,
    summary="Sign out: end the session and invalidate its token",
    auth=Auth.SESSION,
    reply=SignedOutBody,
)
async def sign_out(call: Call) -> Outcome:
    """Other sessions of the account stay valid."""
    account_id, session_id = call.session.account_id, call.session.session_id
    done = await call.ask(call.deps.accounts.ref(account_id), SignOut(session_id=session_id))
    return done if isinstance(done, Refusal) else SignedOutBody(session_id=done.session_id, signed_out=True)


@route(
    "GET",
    "/v2/control/first-call",
    summary="Check whether the account is ready for its first call",
    auth=Auth.SESSION,
    reply=FirstCall,
)
async def read_first_call(call: Call) -> Outcome:
    """It is ready with an API key that may create tasks, and with credit."""
    account_id, now = call.session.account_id, call.deps.now
    facts = await call.read(lambda rows: first_call_facts(rows, account_id, writing_scope=TASKS_WRITE, now=now))
    return first_call(call.deps, facts)


def read_email(text: str) -> str | Refusal:
    """Return a normalised e-mail address. Refuses with ``invalid_email``."""
    email = normalise_email(text)
    if email is not None:
        return email
    return Refusal(code="invalid_email", message=f"The e-mail address {shown(text)} is not valid.", param="email")
