"""What is done about one payment order that is due: compare it with its provider, end it, or find its intent.

Nothing here decides about money. What the provider shows is told to the order's account, whose rules decide; every
step may be repeated, and may be done by several processes at once.
"""

from __future__ import annotations

from typing import Literal

import structlog

from holdfast import metrics
from holdfast.actors.account.order_messages import (
    AttachIntent,
    ExpireOrder,
    OrderResult,
    ReconcileOrder,
    RecordIntentRefused,
)
from holdfast.actors.runtime.directory import Directory
from holdfast.actors.runtime.messages import Command
from holdfast.actors.workers.card_snapshots import look_at
from holdfast.ledger.clock import Now
from holdfast.ledger.orders.card_objects import Malformed
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.transitions import can_expire
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.order_loading import load_order
from holdfast.persistence.server.database import Database
from holdfast.providers.card.amounts import minor_from_micro
from holdfast.providers.card.base import (
    Canceled,
    CardFault,
    CardProvider,
    CardRateLimited,
    CardRejected,
    CardSnapshot,
)

log = structlog.get_logger(__name__)

LookResult = Literal[
    "unreconciled", "pending", "reconciled", "mismatch", "error", "expired", "attached", "refused", "left"
]
"""How a look ended: a comparison by its outcome, an expiry, an intent found or refused, or nothing to be done."""

PAST_CANCELLING = frozenset({"processing", "succeeded", "canceled"})
"""States of an intent in which an order's time being over is no reason to touch it."""


class OrderChecks:
    """Looks at orders. Without a ``card`` provider card orders are left alone: their intents may be paid."""

    def __init__(
        self, *, database: Database, accounts: Directory, card: CardProvider | None, env: str, now: Now
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._card = card
        self._env = env
        self.now = now

    async def look(self, order_id: str) -> LookResult:
        """Do what is due about an order.

        Raises what asking its account may raise, and :class:`~holdfast.persistence.server.database.DatabaseAway`.
        """
        order = await self._database.read(load_order, order_id)
        result: LookResult = "left" if order is None else await self._look(order)
        metrics.ORDER_LOOKS.labels(result).inc()
        return result

    async def _look(self, order: Order) -> LookResult:
        is_over = can_expire(order.request, order.status) and self.now() >= order.request.expires_at
        if order.request.provider == "sandbox":
            return await self._expire(order) if is_over else "left"
        if self._card is None:
            return "left"
        payment_id = order.state.payment_id
        if payment_id is None:
            if is_over:
                return await self._expire(order)
            return await self._find_intent(order, self._card) if order.status == "pending" else "left"
        try:
            seen = await self._card.retrieve(payment_id)
            if is_over and seen.status not in PAST_CANCELLING:
                ended = await self._card.cancel_intent(payment_id)
                seen = ended.snapshot
                is_over = isinstance(ended, Canceled)
        except CardFault as fault:
            return await self._compare(order, fault)
        if is_over and seen.status == "canceled":
            # Before the comparison: that the payer's time was up is why it can no longer be paid.
            await self._expire(order)
        return await self._compare(order, seen)

    async def _expire(self, order: Order) -> LookResult:
        heard = await self._tell(order, ExpireOrder(order.order_id))
        return "expired" if heard is not None and heard.order.status == "expired" else "left"

    async def _compare(self, order: Order, seen: CardSnapshot | CardFault) -> LookResult:
        command = ReconcileOrder(order.order_id, fault=_word(seen) if isinstance(seen, CardFault) else None)
        if isinstance(seen, CardSnapshot):
            try:
                as_of = int(self.now().timestamp())
                snapshot = look_at(seen, provider=order.request.provider, as_of=as_of)
                command = ReconcileOrder(order.order_id, snapshot)
            except Malformed as fault:
                log.warning("a payment cannot be read", order_id=order.order_id, reason=str(fault))
                command = ReconcileOrder(order.order_id, fault="unreadable")
        heard = await self._tell(order, command)
        return "left" if heard is None else heard.order.statuses.reconcile_status

    async def _find_intent(self, order: Order, card: CardProvider) -> LookResult:
        """Ask again for the intent whose create call was lost: the same question finds the same intent."""
        request = order.request
        amount_minor = minor_from_micro(request.amount_micro, request.currency)
        try:
            made = await card.create_intent(
                request.order_id, request.account_id, amount_minor, request.currency, env=self._env
            )
        except CardRejected as fault:
            await self._tell(order, RecordIntentRefused(order.order_id, fault.provider_code))
            return "refused"
        except CardFault as fault:
            log.info("an intent could not be asked for", order_id=order.order_id, reason=_word(fault))
            return "error"
        await self._tell(order, AttachIntent(order.order_id, made.provider_payment_id))
        return "attached"

    async def _tell(self, order: Order, command: Command[OrderResult]) -> OrderResult | None:
        reply = await self._accounts.ask(order.account_id, command)
        if isinstance(reply, Refusal):
            log.warning("a look was refused", order_id=order.order_id, code=reply.code)
            return None
        return reply


def _word(fault: CardFault) -> str:
    """A fault in a word, without the provider's own."""
    if isinstance(fault, CardRejected):
        return f"rejected: {fault.provider_code}"
    return "rate_limited" if isinstance(fault, CardRateLimited) else type(fault).__name__
