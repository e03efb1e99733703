"""The stored replies of an account: what a used Idempotency-Key replays.

An account's actor remembers the newest replies, undurable ones included. Older ones are only in rows: a unit that
stores a reply names its key, and the journal looks that key up before it writes.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from holdfast.actors.account.messages import RequestAttempt
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.ledger.values import Now
from holdfast.persistence.journal.units import Unless
from holdfast.persistence.queries.replies import attempt_probe, began_at
from holdfast.persistence.records.rows import IdempotencyProbe, IdempotencyRow, StoredReply

R = TypeVar("R")

STORED_REFUSALS = frozenset(
    {
        "account_limit_exceeded",
        "insufficient_credit",
        "key_limit_exceeded",
        "quote_expired",
        "task_not_terminal",
    }
)
"""Codes of refusals that are stored and replayed; for any other, a repeated call is decided again."""

_encoder = msgspec.json.Encoder()


def replay(stored: StoredReply, idempotency: IdempotencyKey, reply_type: type[R]) -> Replayed[R] | Refusal:
    """Return the stored reply. Refuses with ``idempotency_key_reused`` if it belongs to another request."""
    if stored.fingerprint != idempotency.fingerprint:
        return IDEMPOTENCY_KEY_REUSED
    return Replayed(msgspec.json.decode(stored.reply, type=reply_type | Refusal))


class RecentReplies:
    """The newest stored replies of one account, by route and key. Rows older than ``ttl_s`` count no more."""

    __slots__ = ("_account_id", "_max", "_replies", "_ttl_s")

    def __init__(self, account_id: str, *, replies_max: int, ttl_s: int) -> None:
        self._account_id = account_id
        self._max = replies_max
        self._ttl_s = ttl_s
        self._replies: OrderedDict[tuple[str, str, str], StoredReply] = OrderedDict()

    def learn(self, found: list[tuple[IdempotencyProbe, StoredReply]]) -> None:
        """Add replies found in rows: the first ones, since their messages are decided first."""
        for probe, stored in found[: self._max - len(self._replies)]:
            self._replies[probe] = stored

    def find(self, idempotency: IdempotencyKey, reply_type: type[R]) -> Replayed[R] | Refusal | None:
        """Return what a used key replays, or None. Refuses as :func:`replay` does."""
        stored = self._replies.get((self._account_id, idempotency.route, idempotency.key))
        return None if stored is None else replay(stored, idempotency, reply_type)

    def add(self, idempotency: IdempotencyKey, reply: object, at: datetime) -> IdempotencyRow:
        """Remember a reply and return its row."""
        probe = IdempotencyProbe(self._account_id, idempotency.route, idempotency.key)
        self._replies[probe] = stored = StoredReply(idempotency.fingerprint, _encoder.encode(reply))
        if len(self._replies) > self._max:
            self._replies.popitem(last=False)
        return IdempotencyRow(probe, stored, at)

    def begin(self, attempt: RequestAttempt, at: datetime) -> IdempotencyRow:
        """Remember an attempt as the newest of its group, and return its row, which replaces that of another."""
        probe = attempt_probe(self._account_id, attempt.group)
        return self.add(IdempotencyKey(probe.route, probe.key, attempt.attempt_id.encode()), at, at)

    def is_superseded(self, after: RequestAttempt, now: Now) -> bool:
        """Whether another attempt than this is known to be the newest of the group."""
        newest = self._replies.get(attempt_probe(self._account_id, after.group))
        if newest is None or newest.fingerprint == after.attempt_id.encode():
            return False
        return began_at(newest) > now() - timedelta(seconds=self._ttl_s)

    def unless_superseded(self, after: RequestAttempt) -> Unless:
        """Return the condition that no other attempt than this is the newest of the group in the rows."""
        return Unless(attempt_probe(self._account_id, after.group), after.attempt_id.encode())
