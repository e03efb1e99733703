"""Identify the operator who makes a request, and begin and end sessions in a browser."""

from __future__ import annotations

from typing import Final

from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.sign_in.messages import TryOperatorToken
from holdfast.http.kit.authentication import valid_session
from holdfast.http.kit.bounded_body import HoldfastRequest
from holdfast.http.kit.credentials import (
    INVALID_SESSION,
    SESSION_EXPIRED,
    is_operator_token,
    matches_operator_token,
    read_bearer,
)
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.operator_sessions import (
    CSRF_HEADER,
    INVALID_CSRF_TOKEN,
    cookie_mac,
    is_csrf_token,
    new_session,
    read_cookie,
)
from holdfast.http.kit.operators import TOKEN_OPERATOR, Operator, operator_of
from holdfast.http.kit.same_origin import refuse_cross_origin
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.persistence.operators.sessions import session_by_mac
from holdfast.persistence.records.operator_tables import OperatorSession
from holdfast.persistence.server.database_faults import DatabaseAway

NOT_OPERATORS_TOKEN: Final = Refusal(code="invalid_credentials", message="The token is not the operators' token.")
NEEDS_AN_OPERATOR: Final = Refusal(
    code="wrong_credential_type", message="This endpoint requires the operators' token or an operator's session."
)


async def identify(deps: Dependencies, request: HoldfastRequest, origin: str) -> Operator | Refusal:
    """Return the operator who makes the request from ``origin``.

    Refuses: 1. ``cross_origin_request``; 2. ``missing_credentials``; 3. ``invalid_credentials``,
    ``wrong_credential_type``, ``invalid_session``, ``session_expired``, ``account_disabled``; 4. ``sign_in_locked``
    (many wrong tokens); 5. ``invalid_csrf_token`` (a change, by cookie); 6. ``insufficient_role`` (an account that
    is no operator's).
    """
    settings, headers = deps.settings, request.headers
    authorization, cookie = headers.getlist("Authorization"), read_cookie(request.cookies, settings)
    has_cookie = cookie is not None and not authorization
    refusal = refuse_cross_origin(request.method, headers, settings, has_cookie=has_cookie)
    if refusal is not None:
        return refusal
    if cookie is None or authorization:
        return await _by_bearer(deps, authorization, origin)
    session = await session_of(deps, cookie)
    if isinstance(session, Refusal):
        return session
    if request.method != "GET" and not is_csrf_token(headers.get(CSRF_HEADER), cookie, settings):
        return INVALID_CSRF_TOKEN
    return operator_of(session.operator, "cookie", settings)


async def _by_bearer(deps: Dependencies, authorization: list[str], origin: str) -> Operator | Refusal:
    is_token = is_operator_token(authorization, deps.settings.operator_token)
    if isinstance(is_token, Refusal):
        return is_token
    if is_token:
        return operator_of(TOKEN_OPERATOR, "token", deps.settings)
    bearer = read_bearer(authorization, None)
    if isinstance(bearer, Refusal):
        return (
            bearer
            if bearer == INVALID_SESSION
            else await try_token(deps, origin, is_right=False) or NOT_OPERATORS_TOKEN
        )
    if bearer.kind != "session":
        return NEEDS_AN_OPERATOR
    session = await deps.database.read(lambda rows: valid_session(rows, bearer.sha256, deps.now()))
    if isinstance(session, Refusal):
        return session
    return operator_of(session.email, "session", deps.settings)


async def try_token(deps: Dependencies, origin: str, *, is_right: bool) -> Refusal | None:
    """Count a wrong operators' token; refuse any of an origin that has tried too many, in whatever process.

    Refuses with ``sign_in_locked``. Raises the faults of an ask.
    """
    tried = TryOperatorToken(is_right)
    reply = await deps.sign_ins.ref(f"origin:{origin}").ask(tried, deadline_s=deps.settings.ask_deadline_s)
    return reply if isinstance(reply, Refusal) else None


async def session_of(deps: Dependencies, cookie: str) -> OperatorSession | Refusal:
    """Return the session of a cookie; while the database is away, one that this process has lately found valid.

    Refuses: 1. ``invalid_session``; 2. ``session_expired``; 3. ``account_disabled``.
    """
    mac, now = cookie_mac(cookie, deps.settings), deps.now()
    try:
        session = await deps.database.read(lambda rows: session_by_mac(rows, mac))
    except DatabaseAway:
        session = deps.seen_sessions.get(mac, now)
        if session is None:
            raise
    else:
        deps.seen_sessions.note(mac, session, now)
    if session is None or session.ended_at is not None:
        return INVALID_SESSION
    if session.expires_at <= now:
        return SESSION_EXPIRED
    return session if session.disabled_at is None else ACCOUNT_DISABLED


async def begin_session(deps: Dependencies, name: str, origin: str) -> tuple[str, OperatorSession]:
    """Begin an operator's session in a browser; return its cookie and what was stored.

    Raises :class:`DatabaseAway`.
    """
    cookie, session = new_session(name, origin, deps.now(), deps.settings)
    await deps.operators.add_session(session)
    return cookie, session


async def sign_in_by_token(deps: Dependencies, token: str, origin: str) -> tuple[str, OperatorSession] | Refusal:
    """Begin a session with the operators' token, as :func:`begin_session` does.

    While wrong tokens cannot be counted, the right one is accepted. Refuses: 1. ``sign_in_locked``, also for the
    right token; 2. ``invalid_credentials``. Raises the faults of an ask for a wrong one.
    """
    is_right = matches_operator_token(token, deps.settings.operator_token)
    try:
        locked = await try_token(deps, origin, is_right=is_right)
    except AskFault:
        # The operator who has paused the sign-ins must be able to resume them.
        if not is_right:
            raise
        locked = None
    if locked is not None:
        return locked
    return await begin_session(deps, TOKEN_OPERATOR, origin) if is_right else NOT_OPERATORS_TOKEN


async def end_session(deps: Dependencies, cookie: str) -> None:
    """End the session of a cookie. Raises :class:`DatabaseAway`; this process refuses the cookie even then."""
    mac = cookie_mac(cookie, deps.settings)
    deps.seen_sessions.note(mac, None, deps.now())
    await deps.operators.end_session(mac, deps.now())
