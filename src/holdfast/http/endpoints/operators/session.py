"""An operator's session in a browser: begin it with the operators' token or a code by e-mail, show it, end it."""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.actors.account.messages import SignOut
from holdfast.http.endpoints.operators.processes import ask_all
from holdfast.http.endpoints.sign_in import (
    CODE_PATH,
    SESSION_PATH,
    VERIFY_PATH,
    read_email,
    request_code,
    sign_in_by_code,
)
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.forwarding import ask_for_operator
from holdfast.http.kit.operator_access import begin_session, end_session, sign_in_by_token
from holdfast.http.kit.operators import (
    NOT_AN_OPERATOR,
    OPERATOR_COOKIE,
    Operator,
    OperatorCredential,
    OperatorRole,
    cookie_mac,
    operator_of,
    refuse_cross_origin,
    role_of,
)
from holdfast.http.kit.other_cells import OfAnotherCell
from holdfast.http.kit.routes import BodyResponse, Outcome
from holdfast.http.schemas.common import CodeRequest, CodeSent, Verified, VerifyRequest
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import EndSession

route = OperatorRoutes("Session")


class TokenSignIn(msgspec.Struct, frozen=True):
    """What to sign in with."""

    token: str
    """The operators' token."""


class OperatorSessionBody(msgspec.Struct, frozen=True):
    """Who the operator is."""

    operator: str
    """The operator's e-mail address, or `operator-token`."""
    role: OperatorRole
    """`act` may change, `read` may not."""
    credential: OperatorCredential
    """What the operator showed."""
    csrf_token: str | None
    """To be sent as `X-CSRF-Token` with each change; null for a credential that is no cookie."""


class OperatorSessionEnded(msgspec.Struct, frozen=True):
    """The session has ended, and its cookie is taken back."""

    signed_out: bool
    """Whether there was a session to end."""


@route(
    "POST",
    "/ops/api/session",
    summary="Begin an operator's session in a browser, with the operators' token",
    body=TokenSignIn,
    reply=OperatorSessionBody,
    errors=("cross_origin_request", "invalid_credentials", "sign_in_locked"),
)
async def sign_in_with_token(call: Call) -> Outcome:
    """The response has the cookie."""
    refusal = _refuse_cross_origin(call)
    if refusal is not None:
        return refusal
    begun = await sign_in_by_token(call.deps, call.body(TokenSignIn).token, call.origin())
    return begun if isinstance(begun, Refusal) else _signed_in(call, begun[0], begun[1].operator)


@route(
    "POST",
    "/ops/api/session/code",
    summary="Send a one-time code to an operator's e-mail address",
    body=CodeRequest,
    reply=CodeSent,
    errors=(
        "cross_origin_request", "invalid_email", "otp_rate_limited", "otp_attempts_exceeded", "otp_delivery_failed"
    ),
)  # fmt: skip
async def request_operator_code(call: Call) -> Outcome:
    """Every caller gets what an operator gets, also the mail, so that nothing tells who is one."""
    refusal = _refuse_cross_origin(call)
    if refusal is not None:
        return refusal
    try:
        return await request_code(call)
    except OfAnotherCell as found:
        wanted = call.body(CodeRequest)
        sent = await ask_for_operator(call.deps, call.request, found, "POST", CODE_PATH, body=wanted)
    if sent is None:
        call.request.is_settled = True
        return await request_code(call)
    return sent if isinstance(sent, Refusal) else msgspec.json.decode(sent, type=CodeSent)


@route(
    "POST",
    "/ops/api/session/verify",
    summary="Begin an operator's session in a browser, with a one-time code",
    body=VerifyRequest,
    reply=OperatorSessionBody,
    errors=(
        "cross_origin_request", "invalid_email", "invalid_otp", "otp_expired", "otp_attempts_exceeded",
        "account_disabled", "insufficient_role",
    ),
)  # fmt: skip
async def sign_in_with_code(call: Call) -> Outcome:
    """The account's own session, which a code begins, ends at once. The address may be of another cell."""
    refusal = _refuse_cross_origin(call)
    if refusal is not None:
        return refusal
    tried = call.body(VerifyRequest)
    email = read_email(tried.email)
    if isinstance(email, Refusal):
        return email
    refusal = await _verify_code(call, email, tried)
    if refusal is not None:
        return refusal
    # Only after the code: it is the owner of the address who learns this.
    if role_of(email, call.deps.settings) is None:
        return NOT_AN_OPERATOR
    cookie, session = await begin_session(call.deps, email, call.origin())
    return _signed_in(call, cookie, session.operator)


@route.read("/ops/api/session", "Retrieve who the operator is", OperatorSessionBody)
async def read_operator_session(call: Call) -> Outcome:
    """Describes the operator of any credential."""
    assert call.operator is not None
    cookie = (
        OPERATOR_COOKIE.read(call.request.cookies, call.deps.settings)
        if call.operator.credential == "cookie"
        else None
    )
    return _body(call, call.operator, cookie)


@route(
    "DELETE",
    "/ops/api/session",
    summary="End the operator's session in this browser",
    auth=Auth.OPERATOR_READ,
    reply=OperatorSessionEnded,
)
async def sign_operator_out(call: Call) -> Outcome:
    """Without a cookie there is nothing to end."""
    cookie = OPERATOR_COOKIE.read(call.request.cookies, call.deps.settings)
    if cookie is not None:
        # Any process may have found it valid lately.
        await ask_all(call.deps, EndSession(cookie_mac(cookie, call.deps.settings)))
        await end_session(call.deps, cookie)
    return BodyResponse(
        OperatorSessionEnded(signed_out=cookie is not None),
        headers=(OPERATOR_COOKIE.end_header(call.deps.settings),),
    )


async def _verify_code(call: Call, email: str, tried: VerifyRequest) -> Refusal | None:
    """Have a code checked by the cell of its address, and the session that it begins ended."""
    try:
        return await _verify_code_here(call, email, tried)
    except OfAnotherCell as found:
        ask = partial(ask_for_operator, call.deps, call.request, found)
        answer = await ask("POST", VERIFY_PATH, body=tried)
        if isinstance(answer, bytes):
            begun = msgspec.json.decode(answer, type=Verified)
            # One that cannot be ended now ends by itself.
            await ask("DELETE", SESSION_PATH, token=begun.session.token)
            return None
    call.request.is_settled = True
    return answer or await _verify_code_here(call, email, tried)


async def _verify_code_here(call: Call, email: str, tried: VerifyRequest) -> Refusal | None:
    signed_in = await sign_in_by_code(call, email, tried)
    if isinstance(signed_in, Refusal):
        return signed_in
    call.deps.accounts.ref(signed_in.account_id).tell(SignOut(signed_in.session_id))
    return None


def _refuse_cross_origin(call: Call) -> Refusal | None:
    return refuse_cross_origin(call.request.method, call.request.headers, call.deps.settings, has_cookie=False)


def _signed_in(call: Call, cookie: str, name: str) -> Outcome:
    operator = operator_of(name, "cookie", call.deps.settings)
    if isinstance(operator, Refusal):
        return operator
    header = OPERATOR_COOKIE.header(cookie, call.deps.settings.operator_session_ttl_s, call.deps.settings)
    return BodyResponse(_body(call, operator, cookie), headers=(header,))


def _body(call: Call, operator: Operator, cookie: str | None) -> OperatorSessionBody:
    token = None if cookie is None else OPERATOR_COOKIE.csrf_token(cookie, call.deps.settings)
    return OperatorSessionBody(
        operator=operator.name, role=operator.role, credential=operator.credential, csrf_token=token
    )
