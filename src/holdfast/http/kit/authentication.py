"""Whether a credential is valid now, as its row says."""

from __future__ import annotations

from datetime import datetime

from holdfast.http.kit.credentials import INVALID_API_KEY, INVALID_SESSION, SESSION_EXPIRED, lacking_scope
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.persistence.queries.credentials import SessionRecord
from holdfast.persistence.records.rows import ApiKeyRecord


def valid_session(session: SessionRecord | None, now: datetime) -> SessionRecord | Refusal:
    """Return a token's session, if it is valid.

    Refuses: 1. ``invalid_session`` (unknown or ended); 2. ``session_expired``; 3. ``account_disabled``.
    """
    if session is None or session.revoked_at is not None:
        return INVALID_SESSION
    if session.expires_at <= now:
        return SESSION_EXPIRED
    return session if session.disabled_at is None else ACCOUNT_DISABLED


def valid_key(found: tuple[ApiKeyRecord, datetime | None] | None, scope: str | None) -> ApiKeyRecord | Refusal:
    """Return an API key that was found, with the time since which its account is disabled, if it is valid.

    Refuses: 1. ``invalid_api_key`` (unknown or revoked); 2. ``account_disabled``; 3. ``insufficient_scope``.
    """
    if found is None:
        return INVALID_API_KEY
    key, disabled_at = found
    if key.revoked_at is not None:
        return INVALID_API_KEY
    if disabled_at is not None:
        return ACCOUNT_DISABLED
    if scope is not None and scope not in key.scopes:
        return lacking_scope(scope)
    return key
