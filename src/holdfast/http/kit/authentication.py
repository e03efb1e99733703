"""Whether a credential is valid now, as its row says."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from holdfast.http.kit.credentials import INVALID_API_KEY, INVALID_SESSION, SESSION_EXPIRED, lacking_scope
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.persistence.queries.credentials import SessionRecord, api_key_by_secret, session_by_token
from holdfast.persistence.records.rows import ApiKeyRecord


def valid_session(rows: Connection, sha256: bytes, now: datetime) -> SessionRecord | Refusal:
    """Return the session of a token.

    Refuses: 1. ``invalid_session`` (unknown or ended); 2. ``session_expired``; 3. ``account_disabled``.
    """
    session = session_by_token(rows, sha256)
    if session is None or session.revoked_at is not None:
        return INVALID_SESSION
    if session.expires_at <= now:
        return SESSION_EXPIRED
    return session if session.disabled_at is None else ACCOUNT_DISABLED


def valid_key(rows: Connection, sha256: bytes, scope: str | None) -> ApiKeyRecord | Refusal:
    """Return an API key.

    Refuses: 1. ``invalid_api_key`` (unknown or revoked); 2. ``account_disabled``; 3. ``insufficient_scope``.
    """
    found = api_key_by_secret(rows, sha256)
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
