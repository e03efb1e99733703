"""Identify the operator who makes a request, and begin and end sessions in a browser."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.actors.runtime.faults import Overloaded
from holdfast.actors.sign_in.messages import CountWrongToken
from holdfast.http.kit.credentials import (
    INVALID_SESSION,
    SESSION_EXPIRED,
    KnownKey,
    matches_operator_token,
    read_bearer,
    read_tried_token,
    valid_session,
)
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.operators import (
    INVALID_CSRF_TOKEN,
    OPERATOR_COOKIE,
    READING,
    TOKEN_OPERATOR,
    Operator,
    cookie_mac,
    new_session,
    new_unstored_session,
    operator_of,
    refuse_cross_origin,
    unstored_session,
)
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.persistence.operators import records
from holdfast.persistence.operators.records import add_session, session_by_mac
from holdfast.persistence.queries.credentials import find_sessions
from holdfast.persistence.records.operator_tables import OperatorSession
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.lookups import Lookup

NOT_OPERATORS_TOKEN: Final = Refusal(code="invalid_credentials", message="The token is not the operators' token.")
NEEDS_AN_OPERATOR: Final = Refusal(
    code="wrong_credential_type", message="This endpoint requires the operators' token or an operator's session."
)


async def identify(
    deps: Dependencies, request: HoldfastRequest, origin: str, *, csrf_token: str | None
) -> Operator | Refusal:
    """Return the operator who makes the request from ``origin``; a change by cookie needs ``csrf_token``.

    Refuses: 1. ``cross_origin_request``; 2. ``missing_credentials``; 3. ``invalid_credentials``,
    ``wrong_credential_type``, ``invalid_session``, ``session_expired``, ``account_disabled``; 4. ``sign_in_locked``
    (many wrong tokens); 5. ``invalid_csrf_token`` (a change, by cookie); 6. ``insufficient_role`` (an account that
    is no operator's).
    """
    settings, headers = deps.settings, request.headers
    authorization, cookie = headers.getlist("Authorization"), OPERATOR_COOKIE.read(request.cookies, settings)
    has_cookie = cookie is not None and not authorization
    refusal = refuse_cross_origin(request.method, headers, settings, has_cookie=has_cookie)
    if refusal is not None:
        return refusal
    if cookie is None or authorization:
        return await _by_bearer(deps, authorization, origin)
    session = await session_of(deps, cookie, origin)
    if isinstance(session, Refusal):
        return session
    if request.method not in READING and not OPERATOR_COOKIE.is_csrf_token(csrf_token, cookie, settings):
        return INVALID_CSRF_TOKEN
    return operator_of(session.operator, "cookie", settings)


async def _by_bearer(deps: Dependencies, authorization: list[str], origin: str) -> Operator | Refusal:
    tried = read_tried_token(authorization)
    if isinstance(tried, Refusal):
        return tried
    bearer = read_bearer(authorization, None)
    # What has the form of another credential is no guess, and looked up in its origin's share.
    is_guess = isinstance(bearer, Refusal) and bearer != INVALID_SESSION
    if await _is_right(deps, tried, origin) if is_guess else _matches(deps, tried):
        return operator_of(TOKEN_OPERATOR, "token", deps.settings)
    if isinstance(bearer, Refusal):
        return bearer if bearer == INVALID_SESSION else await _count_wrong_token(deps, origin)
    if bearer.kind != "session":
        return NEEDS_AN_OPERATOR
    sha256 = bearer.sha256
    lookup, reader = Lookup(find_sessions, sha256), deps.access.key_cache.account_of(sha256) or f"origin:{origin}"
    await deps.access.read_shares.run(reader, lambda: deps.access.lookups.run(lookup))
    session = valid_session(lookup.found, deps.now())
    if isinstance(session, Refusal):
        return session
    deps.access.key_cache.put(sha256, KnownKey(session.account_id, session.session_id))
    return operator_of(session.email, "session", deps.settings)


async def _is_right(deps: Dependencies, tried: str, origin: str) -> bool:
    return await deps.access.token_tries.try_once(origin, lambda: _matches(deps, tried))


def _matches(deps: Dependencies, tried: str) -> bool:
    return matches_operator_token(tried, deps.settings.operator_token)


async def _count_wrong_token(deps: Dependencies, origin: str) -> Refusal:
    """Count a wrong token, and return its refusal: ``sign_in_locked`` for an origin that has tried too many.

    Raises the faults of an ask.
    """
    counting = deps.sign_ins.ref(f"origin:{origin}")
    reply = await counting.ask(CountWrongToken(), deadline_s=deps.settings.ask_deadline_s)
    return reply if isinstance(reply, Refusal) else NOT_OPERATORS_TOKEN


async def session_of(deps: Dependencies, cookie: str, origin: str) -> OperatorSession | Refusal:
    """Return the session of a cookie; while the database is away, one that this process has lately found valid, or
    that began meanwhile.

    Refuses: 1. ``invalid_session``; 2. ``session_expired``; 3. ``account_disabled``.
    """
    mac, now = cookie_mac(cookie, deps.settings), deps.now()
    seen = deps.access.seen_sessions.get(mac, now)
    session: OperatorSession | None
    try:
        session = await deps.access.read_shares.run(
            f"origin:{origin}" if seen is None else seen.operator,
            lambda: deps.database.read(lambda rows: session_by_mac(rows, mac)),
        )
    except (DatabaseAway, Overloaded):
        session = seen or unstored_session(cookie, deps.settings)
        if session is None:
            raise
    else:
        session = session or _ended_unstored(deps, cookie)
        deps.access.seen_sessions.note(mac, session, now)
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
    await deps.write_record(partial(add_session, session=session))
    return cookie, session


async def sign_in_by_token(deps: Dependencies, token: str, origin: str) -> tuple[str, OperatorSession] | Refusal:
    """Begin a session with the operators' token; while the database is away, one that is valid until it is back.

    Refuses a wrong one with ``invalid_credentials``, or ``sign_in_locked`` after too many, and raises the faults of
    an ask for it. The right one asks no actor: an operator who has paused the sign-ins must be able to resume them.
    """
    if not await _is_right(deps, token, origin):
        return await _count_wrong_token(deps, origin)
    try:
        return await begin_session(deps, TOKEN_OPERATOR, origin)
    except DatabaseAway:
        return new_unstored_session(deps.now(), deps.settings)


async def end_session(deps: Dependencies, cookie: str) -> None:
    """End the session of a cookie in the database, and in this process also while that is away.

    Raises :class:`DatabaseAway` if it has to be ended in the database: once that is back, the session is valid.
    """
    mac = cookie_mac(cookie, deps.settings)
    deps.access.seen_sessions.end(mac, deps.now())
    try:
        await deps.write_record(partial(records.end_session, cookie_mac=mac, at=deps.now()))
    except DatabaseAway:
        if unstored_session(cookie, deps.settings) is None:
            raise


def _ended_unstored(deps: Dependencies, cookie: str) -> OperatorSession | None:
    """Return the session that a cookie proves by itself, ended: noted, it does not begin again with an outage."""
    session = unstored_session(cookie, deps.settings)
    return None if session is None else session._replace(ended_at=deps.now())
