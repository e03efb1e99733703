"""Signing in by a code sent to an e-mail address, and the session that follows."""

from __future__ import annotations

import re
from typing import Final

import structlog

from holdfast.actors.account.messages import SignOut
from holdfast.actors.sign_in.messages import AdmitOrigin, RequestCode, VerifyCode
from holdfast.http.endpoints.control.email_address import normalise_email
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import (
    WRITING_SCOPE,
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
from holdfast.ledger.clock import format_time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import INVALID_OTP, is_otp_id_of
from holdfast.persistence.queries.accounts import first_call_facts

route = RouteTable("Sign-in and session")
log = structlog.get_logger("holdfast.http")

_CODE = re.compile(r"[0-9]{6}", re.ASCII)
_INVALID_EMAIL: Final = Refusal(
    code="invalid_email", message="This is not an e-mail address that can be written to.", param="email"
)


@route(
    "POST",
    "/v2/control/auth/otp",
    summary="Send a one-time code to an e-mail address; serves signing in and registering alike",
    body=CodeRequest,
    reply=CodeSent,
    errors=("invalid_email", "otp_rate_limited", "otp_attempts_exceeded", "otp_delivery_failed"),
)
async def request_code(call: Call) -> Outcome:
    """The origin is counted first, so that guessing addresses costs the guesser."""
    deps, origin = call.deps, call.origin()
    email = normalise_email(call.body(CodeRequest).email)
    if email is None:
        return _INVALID_EMAIL
    admitted = await call.ask(deps.sign_ins.ref(f"origin:{origin}"), AdmitOrigin())
    if isinstance(admitted, Refusal):
        return admitted
    issued = await call.ask(deps.sign_ins.ref(f"email:{email}"), RequestCode(origin))
    if isinstance(issued, Refusal):
        return issued
    try:
        await deps.mailer.send_code(email, issued.code, expires_in_s=issued.expires_in_s)
    except Exception as fault:  # whatever the mail host did, the caller learns only that it failed
        log.warning("mail could not be handed over", reason=type(fault).__name__)
        return Refusal(code="otp_delivery_failed", message="The code could not be sent; try again shortly.")
    return CodeSent(
        otp_id=issued.otp_id,
        expires_in_seconds=issued.expires_in_s,
        delivery=Delivery(channel="email", destination=email, status="sent"),
        debug_otp=issued.code if deps.settings.env == "development" else None,
    )


@route(
    "POST",
    "/v2/control/auth/verify",
    summary="Trade a one-time code for a session token; the first time makes the account",
    body=VerifyRequest,
    reply=Verified,
    errors=("invalid_email", "invalid_otp", "otp_expired", "otp_attempts_exceeded", "account_disabled"),
)
async def verify_code(call: Call) -> Outcome:
    """Only a code that could be right costs a try; made-up identifiers cost neither an actor nor a row."""
    deps, tried = call.deps, call.body(VerifyRequest)
    email = normalise_email(tried.email)
    if email is None:
        return _INVALID_EMAIL
    if not _CODE.fullmatch(tried.otp):
        return Refusal(code="invalid_parameter", message="The code is six digits.", param="otp")
    if not is_otp_id_of(deps.settings.otp_pepper, email, tried.otp_id):
        return INVALID_OTP
    command = VerifyCode(otp_id=tried.otp_id, code=tried.otp)
    signed_in = await call.ask(deps.sign_ins.ref(f"email:{email}"), command)
    if isinstance(signed_in, Refusal):
        return signed_in
    facts = await deps.database.read(
        lambda rows: first_call_facts(rows, signed_in.account_id, writing_scope=WRITING_SCOPE)
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
    )


@route(
    "GET",
    "/v2/control/session",
    summary="Who is signed in",
    auth=Auth.SESSION,
    reply=SessionContext,
)
async def read_session(call: Call) -> Outcome:
    """The session's own row says everything."""
    session = await call.read_as_session(lambda _rows, session: session)
    return session if isinstance(session, Refusal) else session_context(session)


@route(
    "DELETE",
    "/v2/control/session",
    summary="Sign out: the session's token opens nothing from now on",
    auth=Auth.SESSION,
    reply=SignedOutBody,
)
async def sign_out(call: Call) -> Outcome:
    """The account's actor revokes the session."""
    session = await call.read_as_session(lambda _rows, session: session)
    if isinstance(session, Refusal):
        return session
    done = await call.ask(call.deps.accounts.ref(session.account_id), SignOut(session_id=session.session_id))
    return done if isinstance(done, Refusal) else SignedOutBody(session_id=done.session_id, signed_out=True)


@route(
    "GET",
    "/v2/control/first-call",
    summary="Whether the account is ready for its first call, and what to do if not",
    auth=Auth.SESSION,
    reply=FirstCall,
)
async def read_first_call(call: Call) -> Outcome:
    """One read: the session, the account's totals, its keys."""
    facts = await call.read_as_session(
        lambda rows, session: first_call_facts(rows, session.account_id, writing_scope=WRITING_SCOPE)
    )
    return facts if isinstance(facts, Refusal) else first_call(call.deps, facts)
