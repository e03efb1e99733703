"""What a used Idempotency-Key brings back, as far as an account's actor remembers it.

The newest answers are at hand, those decided and not yet durable among them. Behind those let go stand the rows:
a unit that answers a key names it, and the journal looks the key up before it writes.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Any

import msgspec

from holdfast.actors.account.stored_replies import Replayed, StoredReply
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.accounts import IdempotencyProbe, IdempotencyRow, RememberedReply

REMEMBERED_REFUSALS = frozenset({"insufficient_credit"})
"""Refusals that a repeated idempotency key brings back; all others may turn out differently next time."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[StoredReply] = msgspec.json.Decoder(StoredReply)


class RememberedReplies:
    """The newest answers of one account, by route and key."""

    __slots__ = ("_account_id", "_answers", "_kept_max")

    def __init__(self, account_id: str, *, kept_max: int) -> None:
        self._account_id = account_id
        self._kept_max = kept_max
        self._answers: OrderedDict[tuple[str, str], RememberedReply] = OrderedDict()

    def learn(self, learned: list[tuple[IdempotencyProbe, RememberedReply]]) -> None:
        """Take over answers that were found in the rows."""
        for probe, answer in learned:
            self._answers[probe.route, probe.key] = answer

    def known(self, idempotency: IdempotencyKey | None) -> Replayed | Refusal | None:
        """The answer a used key brings back, or the refusal of a key used for something else."""
        if idempotency is None:
            return None
        answer = self._answers.get((idempotency.route, idempotency.key))
        if answer is None:
            return None
        if answer.fingerprint != idempotency.fingerprint:
            return Refusal(
                code="idempotency_key_reused",
                message="This Idempotency-Key was used with another request.",
                final=True,
            )
        return Replayed(_decoder.decode(answer.reply))

    def remember(
        self, idempotency: IdempotencyKey, reply: Any, at: datetime
    ) -> tuple[IdempotencyProbe, IdempotencyRow]:
        """Keep a reply at hand, and say what makes it last: what to look up before the unit, and its row."""
        route, key = idempotency.route, idempotency.key
        answer = RememberedReply(idempotency.fingerprint, _encoder.encode(reply))
        self._answers[route, key] = answer
        if len(self._answers) > self._kept_max:
            self._answers.popitem(last=False)
        probe = IdempotencyProbe(self._account_id, route, key)
        return probe, IdempotencyRow(probe, answer, at)
