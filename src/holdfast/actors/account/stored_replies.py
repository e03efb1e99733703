"""The replies that an Idempotency-Key may bring back: they survive a round trip through JSON."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.account.messages import Recharged, TaskAccepted
from holdfast.actors.account.order_messages import OrderResult
from holdfast.ledger.refusals import Refusal

StoredReply = Recharged | TaskAccepted | OrderResult | Refusal
"""What an idempotency record can hold."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The reply an earlier call with the same Idempotency-Key got; nothing happened this time."""

    reply: StoredReply
