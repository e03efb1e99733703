"""The rows of API keys and of key groups: sets of columns that are written together."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.limits import BEGINNING, Limit
from holdfast.ledger.public_types import LimitWindow
from holdfast.persistence.records.rows import JournaledRow


class ApiKeyRecord(msgspec.Struct, frozen=True):
    """An API key without its secret; it may be revoked.

    ``captured_micro`` was captured of the holds of the limit's window from ``window_start``, not of the others.
    """

    account_id: str
    key_id: str
    prefix: str
    terms: KeyTerms
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    limit_micro: int | None = None
    limit_window: LimitWindow | None = None
    window_start: datetime = BEGINNING
    captured_micro: int = 0
    more_limits: tuple[Limit, ...] = ()

    @property
    def limits(self) -> tuple[Limit, ...]:
        """All limits of the key."""
        micro, window = self.limit_micro, self.limit_window
        return self.more_limits if micro is None or not window else (Limit(micro, window), *self.more_limits)


class ApiKeyRow(JournaledRow, frozen=True):
    """A new API key, with only the hash of its secret.

    ``makers`` are the keys that have made it, one after the other, the last itself; None: the owner has.
    """

    key: ApiKeyRecord
    secret_sha256: bytes
    makers: tuple[str, ...] | None = None


class ApiKeyTermsRow(JournaledRow, frozen=True):
    """The terms of an API key, after a change of them."""

    account_id: str
    key_id: str
    terms: KeyTerms


class ApiKeyLimitRow(JournaledRow, frozen=True):
    """The limit of an API key, if any, and what was captured of it; written when either changes."""

    account_id: str
    key_id: str
    limit_micro: int | None
    limit_window: LimitWindow | None
    window_start: datetime
    captured_micro: int


class ApiKeyMoreLimitsRow(JournaledRow, frozen=True):
    """The limits of an API key but the one of which its row has what was captured; written when they change."""

    account_id: str
    key_id: str
    more_limits: tuple[Limit, ...]


class ApiKeyRevokedRow(JournaledRow, frozen=True):
    """The revocation of an API key."""

    account_id: str
    key_id: str
    revoked_at: datetime


class ApiKeyUsedRow(JournaledRow, frozen=True):
    """When an API key was last used, written at most once a minute."""

    account_id: str
    key_id: str
    last_used_at: datetime


class KeyGroupRow(JournaledRow, frozen=True):
    """A group of API keys, new or changed: what all of its keys together may spend, as JSON.

    What was captured of its limits is in no row of theirs, but in the usage totals of its keys.
    """

    account_id: str
    group_id: str
    name: str
    limits: tuple[Limit, ...]
    created_at: datetime


class KeyGroupDeletedRow(JournaledRow, frozen=True):
    """The deletion of a group without live keys, and of what is known of its revoked keys."""

    account_id: str
    group_id: str


class GroupKeyRow(JournaledRow, frozen=True):
    """The group that an API key is in from now on; None: it has left its group.

    It stays when the key is revoked and deleted: what the key spent counts on in its group.
    """

    account_id: str
    key_id: str
    group_id: str | None
