"""Rows of accounts, their API keys and sessions, their stored replies, and the sign-in limits."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from holdfast.ledger.credit.operations import CHAIN_START
from holdfast.persistence.records import tables
from holdfast.persistence.records.mapping import attributes_of, fields_of
from holdfast.persistence.records.row_types import SessionRow


class AccountHead(NamedTuple):
    """An account's version and totals after a unit of work; the fence of every account unit."""

    id: str
    version: int = 0
    operation_count: int = 0
    balance_micro: int = 0
    held_micro: int = 0
    chain_head: bytes = CHAIN_START


class AccountRow(NamedTuple):
    """A new account."""

    head: AccountHead
    email: str
    role: str
    brand_id: str
    created_at: datetime


class AccountAccessRow(NamedTuple):
    """Since when an account is disabled; None: it is not."""

    id: str
    disabled_at: datetime | None


class ApiKeyRecord(NamedTuple):
    """An API key without its secret; it may be revoked."""

    account_id: str
    key_id: str
    prefix: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class ApiKeyRow(NamedTuple):
    """A new API key, with only the hash of its secret."""

    key: ApiKeyRecord
    secret_sha256: bytes


class ApiKeyRevokedRow(NamedTuple):
    """The revocation of an API key."""

    account_id: str
    key_id: str
    revoked_at: datetime


class ApiKeyUsedRow(NamedTuple):
    """When an API key was last used, written at most once a minute."""

    account_id: str
    key_id: str
    last_used_at: datetime


class SessionRevokedRow(NamedTuple):
    """The revocation of a session."""

    account_id: str
    session_id: str
    revoked_at: datetime


class SignInRow(NamedTuple):
    """The sign-in state of an e-mail address or an origin; ``state`` is written as JSON."""

    key: str
    version: int
    updated_at: datetime
    state: object


class IdempotencyProbe(NamedTuple):
    """A key that must be unused; the journal checks it before it writes the unit."""

    account_id: str
    route: str
    key: str


class StoredReply(NamedTuple):
    """The content of an idempotency record: the fingerprint of the first request, and its reply as JSON."""

    fingerprint: bytes
    reply: bytes


class IdempotencyRow(NamedTuple):
    """A new idempotency record. The probe has shown that the key has no current one; an expired one is replaced."""

    probe: IdempotencyProbe
    stored: StoredReply
    created_at: datetime


HEADS = fields_of(tables.accounts, AccountHead)
ACCOUNTS = attributes_of(
    tables.accounts,
    AccountRow,
    [*(f"head.{name}" for name in AccountHead._fields), "email", "role", "brand_id", "created_at"],
)
ACCOUNT_ACCESS = fields_of(tables.accounts, AccountAccessRow)
API_KEYS = attributes_of(
    tables.api_keys, ApiKeyRow, [*(f"key.{name}" for name in ApiKeyRecord._fields), "secret_sha256"]
)
REVOKED_API_KEYS = fields_of(tables.api_keys, ApiKeyRevokedRow)
USED_API_KEYS = fields_of(tables.api_keys, ApiKeyUsedRow)
SESSIONS = fields_of(tables.sessions, SessionRow)
REVOKED_SESSIONS = fields_of(tables.sessions, SessionRevokedRow)
SIGN_INS = fields_of(tables.sign_ins, SignInRow)
IDEMPOTENCY_RECORDS = attributes_of(
    tables.idempotency_records,
    IdempotencyRow,
    ["probe.account_id", "probe.route", "probe.key", "stored.fingerprint", "stored.reply", "created_at"],
)
