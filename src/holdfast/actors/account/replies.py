"""The stored replies of an account: what a used Idempotency-Key replays.

An account's actor remembers the newest replies, undurable ones included. Older ones are only in rows: a unit that
stores a reply names its key, and the journal looks that key up before it writes.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import TypeVar

import msgspec

from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.persistence.records.rows import IdempotencyProbe, IdempotencyRow, StoredReply

R = TypeVar("R")

STORED_REFUSALS = frozenset({"insufficient_credit", "quote_expired", "task_not_terminal"})
"""Codes of refusals that are stored and replayed; for any other, a repeated call is decided again."""

_encoder = msgspec.json.Encoder()


def replay(stored: StoredReply, idempotency: IdempotencyKey, reply_type: type[R]) -> Replayed[R] | Refusal:
    """Return the stored reply. Refuses with ``idempotency_key_reused`` if it belongs to another request."""
    if stored.fingerprint != idempotency.fingerprint:
        return IDEMPOTENCY_KEY_REUSED
    return Replayed(msgspec.json.decode(stored.reply, type=reply_type | Refusal))


class RecentReplies:
    """The newest stored replies of one account, by route and key."""

    __slots__ = ("_account_id", "_max", "_replies")

    def __init__(self, account_id: str, *, replies_max: int) -> None:
        self._account_id = account_id
        self._max = replies_max
        self._replies: OrderedDict[tuple[str, str], StoredReply] = OrderedDict()

    def learn(self, found: list[tuple[IdempotencyProbe, StoredReply]]) -> None:
        """Add replies found in rows: the first ones, since their messages are decided first."""
        for probe, stored in found[: self._max - len(self._replies)]:
            self._replies[probe.route, probe.key] = stored

    def find(self, idempotency: IdempotencyKey, reply_type: type[R]) -> Replayed[R] | Refusal | None:
        """Return what a used key replays, or None. Refuses as :func:`replay` does."""
        stored = self._replies.get((idempotency.route, idempotency.key))
        return None if stored is None else replay(stored, idempotency, reply_type)

    def add(self, idempotency: IdempotencyKey, reply: object, at: datetime) -> IdempotencyRow:
        """Remember a reply and return its row."""
        route, key = idempotency.route, idempotency.key
        stored = StoredReply(idempotency.fingerprint, _encoder.encode(reply))
        self._replies[route, key] = stored
        if len(self._replies) > self._max:
            self._replies.popitem(last=False)
        return IdempotencyRow(IdempotencyProbe(self._account_id, route, key), stored, at)
