"""API keys and sessions, by the hash of their secret or token; the keys of an account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, LargeBinary, bindparam, select

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.limits import Limit
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import accounts, api_keys, group_keys, sessions
from holdfast.persistence.records.unreadable import read_row
from holdfast.persistence.server.repeated_queries import RepeatedQuery, one_of


class SessionRecord(NamedTuple):
    """A session and its account; it may be revoked or expired, and the account disabled or to be closed."""

    account_id: str
    session_id: str
    email: str
    role: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    disabled_at: datetime | None
    closes_at: datetime | None = None


_limits = msgspec.json.Decoder(tuple[Limit, ...])
_TERMS = KeyTerms.__struct_fields__
_COLUMNS = (*(name for name in ApiKeyRecord.__struct_fields__ if name != "terms"), *_TERMS)
_KEY = selected(api_keys, _COLUMNS)
_HASHES = one_of("sha256s", LargeBinary())
_BY_SECRET = RepeatedQuery(
    _KEY.add_columns(accounts.c.disabled_at, accounts.c.closes_at, api_keys.c.secret_sha256)
    .join_from(api_keys, accounts, accounts.c.id == api_keys.c.account_id)
    .where(api_keys.c.secret_sha256 == _HASHES)
)
KEYS_OF_ACCOUNT = _KEY.where(api_keys.c.account_id == bindparam("account_id")).order_by(
    api_keys.c.created_at.desc(), api_keys.c.key_id.desc()
)
"""The keys of the account in the parameter ``account_id``, newest first, for :func:`api_key_of`."""
GROUP_OF_KEY: ColumnElement[str | None] = (
    select(group_keys.c.group_id)
    .where(group_keys.c.account_id == api_keys.c.account_id, group_keys.c.key_id == api_keys.c.key_id)
    .scalar_subquery()
    .label("group_id")
)
"""The group that a key is in; null: in none."""
_LIVE = _KEY.add_columns(api_keys.c.makers, GROUP_OF_KEY).where(
    api_keys.c.account_id == bindparam("account_id"), api_keys.c.revoked_at.is_(None)
)
_OF_ITS_ACCOUNT = ("email", "role", "disabled_at", "closes_at")
_BY_TOKEN = RepeatedQuery(
    select(
        *((accounts if name in _OF_ITS_ACCOUNT else sessions).c[name] for name in SessionRecord._fields),
        sessions.c.token_sha256,
    )
    .join_from(sessions, accounts, sessions.c.account_id == accounts.c.id)
    .where(sessions.c.token_sha256 == _HASHES)
)


def _more_limits(found: str | None) -> tuple[Limit, ...]:
    return () if found is None else _limits.decode(found)


class FoundKey(NamedTuple):
    """A key, since when its account is disabled, and when that is closed."""

    key: ApiKeyRecord
    disabled_at: datetime | None = None
    closes_at: datetime | None = None


def find_api_keys(rows: Connection, sha256s: Sequence[bytes]) -> dict[bytes, FoundKey]:
    """Return the keys whose secrets have these SHA-256."""
    found = _BY_SECRET.rows(rows, {"sha256s": sha256s})
    return {
        sha256: FoundKey(api_key_of(record), disabled_at, closes_at)
        for *record, disabled_at, closes_at, sha256 in found
    }


def find_api_key(rows: Connection, account_id: str, key_id: str) -> ApiKeyRecord | None:
    """Return a key of the account, also a revoked one that is still stored; None if it has no such key."""
    found = rows.execute(
        KEYS_OF_ACCOUNT.where(api_keys.c.key_id == key_id), {"account_id": account_id}
    ).one_or_none()
    return None if found is None else api_key_of(found)


def api_keys_of_account(rows: Connection, account_id: str) -> list[ApiKeyRecord]:
    """Return the account's keys, newest first, also revoked ones that are still stored; their number is limited."""
    return [api_key_of(row) for row in rows.execute(KEYS_OF_ACCOUNT, {"account_id": account_id})]


class LiveApiKeys(NamedTuple):
    """An account's keys that are not revoked; they may have expired, or be paused.

    ``makers`` has the keys that have made one, one after the other, of each that was made so; ``groups`` the group
    of each that is in one.
    """

    keys: list[ApiKeyRecord]
    makers: dict[str, tuple[str, ...]]
    groups: dict[str, str]


def live_api_keys(rows: Connection, account_id: str) -> LiveApiKeys:
    """Return the account's live keys."""
    found = [
        (api_key_of(key), makers, group_id)
        for *key, makers, group_id in rows.execute(_LIVE, {"account_id": account_id})
    ]
    return LiveApiKeys(
        [key for key, _, _ in found],
        {key.key_id: tuple(makers) for key, makers, _ in found if makers is not None},
        {key.key_id: group_id for key, _, group_id in found if group_id is not None},
    )


def find_group(rows: Connection, account_id: str, key_id: str) -> str | None:
    """Return the group that a key is in, also a revoked one; None: in none."""
    return rows.scalar(
        select(group_keys.c.group_id).where(group_keys.c.account_id == account_id, group_keys.c.key_id == key_id)
    )


def api_key_of(row: Iterable[Any]) -> ApiKeyRecord:
    """Return the key of a row. Raises ``UnreadableRow``."""
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in zip(_COLUMNS, row, strict=True)
    }
    terms = KeyTerms(**{name: found.pop(name) for name in _TERMS})
    more_limits = read_row(_more_limits, found.pop("more_limits"), "api_keys.more_limits", found["key_id"])
    return ApiKeyRecord(**found, terms=terms, more_limits=more_limits)


def find_sessions(rows: Connection, sha256s: Sequence[bytes]) -> dict[bytes, SessionRecord]:
    """Return the sessions whose tokens have these SHA-256."""
    found = _BY_TOKEN.rows(rows, {"sha256s": sha256s})
    return {sha256: SessionRecord._make(record) for *record, sha256 in found}
