"""Poison messages: those whose handling crashed their actor. Rows are no part of the journal.

A message that crashes again is the same row, counted. A replay claims the row first, so that it runs once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, Unpack

from sqlalchemy import Connection, Select, select, text
from sqlalchemy.dialects.postgresql import insert

from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.operator_tables import PoisonRecord, PoisonState
from holdfast.persistence.records.operator_tables import poison_messages as poison
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

# Encryption of what is stored and must not be read in the rows: AES-256-GCM under a key derived from SERVER_KEY. A
# text is bound to its row: moved to another one it cannot be decrypted.

_NONCE_BYTES = 12


class CannotDecrypt(Exception):
    """The text was encrypted with another key, for another row, or was altered."""


class RowCipher:
    """Each key has 32 bytes; the first encrypts, and each decrypts."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def encrypt(self, text: bytes, row: str) -> bytes:
        """Encrypt a text for the row that ``row`` names."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # loaded when the first one is needed

        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[0]).encrypt(nonce, text, row.encode())

    def decrypt(self, encrypted: bytes, row: str) -> bytes:
        """Return the text that was encrypted for this row. Raises :class:`CannotDecrypt`."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in self._keys:
            with suppress(InvalidTag, ValueError):
                return AESGCM(key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], row.encode())
        raise CannotDecrypt(row)

    def digest(self, text: bytes) -> bytes:
        """Return a digest by which equal texts are recognised, and nothing else."""
        return hmac.digest(self._keys[0], b"digest\0" + text, "sha256")


PER_KEY_MAX = 20
IN_ALL_MAX = 10_000


class Kept(NamedTuple):
    """The row of a message, and how often the message has crashed its actor."""

    poison_id: str
    crashes: int


POISON_ORDER: Final = (poison.c.first_at, poison.c.poison_id)
_OPEN = "state in ('kept', 'replaying', 'unknown')"
_ALL = select(*(poison.c[name] for name in PoisonRecord._fields))
_LATEST = (
    "last_at", "trace_id", "reason_type", "reason", "location", "incarnation", "version", "state_digest",
)  # fmt: skip
_insert = insert(poison)
_KEEP = _insert.on_conflict_do_update(
    index_elements=["group_name", "key", "message_type", "body_mac"],
    index_where=text(_OPEN),
    set_={name: _insert.excluded[name] for name in _LATEST} | {"crashes": poison.c.crashes + 1},
).returning(poison.c.poison_id, poison.c.crashes)
_TRIM_KEY = text(
    "delete from poison_messages where poison_id in (select poison_id from poison_messages "
    "where group_name = :group_name and key = :key order by last_at desc offset :most)"
)
_TRIM_ALL = text(
    "delete from poison_messages where poison_id in "
    "(select poison_id from poison_messages order by last_at desc offset :most)"
)
_CLAIM = text(
    "update poison_messages set state = 'replaying', claimed_until = :until, replays = replays + 1, "
    "replayed_at = :now where poison_id = :poison_id and (state = 'kept' or (:repeatable and (state = 'unknown' "
    "or (state = 'replaying' and claimed_until < :now)))) "
    "and (cast(:unless_since as timestamptz) is null or replayed_at is null or replayed_at < :unless_since) "
    "returning poison_id"
)
_COUNT_OPEN = text(f"select count(*) from poison_messages where {_OPEN}")
_FINISH = text(
    "update poison_messages set state = :state, replay_result = :result, claimed_until = null "
    "where poison_id = :poison_id and state = 'replaying'"
)
_DISCARD = text(
    "update poison_messages set state = 'discarded', body = null where poison_id = :poison_id "
    "and (state in ('kept', 'unknown') or (state = 'replaying' and claimed_until < :now)) returning poison_id"
)


def keep_poison(rows: Connection, message: PoisonRecord) -> Kept:
    """Store a message, or count it if it is stored; the oldest beyond the limits are deleted."""
    kept = Kept._make(rows.execute(_KEEP, [message._asdict()]).one())
    rows.execute(_TRIM_KEY, {"group_name": message.group_name, "key": message.key, "most": PER_KEY_MAX})
    rows.execute(_TRIM_ALL, {"most": IN_ALL_MAX})
    return kept


def poison_by_id(rows: Connection, poison_id: str) -> PoisonRecord | None:
    """Read one message."""
    found = rows.execute(_ALL.where(poison.c.poison_id == poison_id)).first()
    return None if found is None else PoisonRecord._make(found)


def list_poison(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[PoisonRecord | UnreadableEntry]:
    """Return a page of messages, newest first. ``filters`` match ``group``, ``key`` and ``state`` exactly."""
    found = page(rows, matching_poison(filters), POISON_ORDER, **options)
    return read_rows(PoisonRecord._make, found, "poison_messages", attrgetter("first_at", "poison_id"))


def matching_poison(filters: Mapping[str, str]) -> Select[*tuple[Any, ...]]:
    """Select the messages that :func:`list_poison` reads."""
    columns = {"group": poison.c.group_name, "key": poison.c.key, "state": poison.c.state}
    return _ALL.where(*(columns[name] == value for name, value in filters.items()))


def open_poison_count(rows: Connection) -> int:
    """Return how many messages wait for an operator."""
    return int(rows.execute(_COUNT_OPEN).scalar_one())


def claim_replay(
    rows: Connection,
    poison_id: str,
    *,
    now: datetime,
    until: datetime,
    repeatable: bool,
    unless_since: datetime | None = None,
) -> bool:
    """Claim a message for one replay until a time. Returns False if it is claimed, replayed or discarded.

    One whose last replay has no result is claimed only if it is ``repeatable``; one that was replayed since a time,
    if that is given, is not.
    """
    claim = {
        "poison_id": poison_id,
        "now": now,
        "until": until,
        "repeatable": repeatable,
        "unless_since": unless_since,
    }
    return rows.execute(_CLAIM, claim).first() is not None


def finish_replay(rows: Connection, poison_id: str, state: PoisonState, result: str) -> None:
    """Record how a claimed replay ended."""
    rows.execute(_FINISH, {"poison_id": poison_id, "state": state, "result": result})


def discard_poison(rows: Connection, poison_id: str, now: datetime) -> bool:
    """Give a message up, and delete its body. Returns False unless it waits for a replay."""
    return rows.execute(_DISCARD, {"poison_id": poison_id, "now": now}).first() is not None
