"""Check one due payment order: compare it with its provider, expire it, or find its intent.

Nothing here decides about money: a snapshot of the provider goes to the order's account, whose rules decide. Every
step may be repeated, and several processes may run it at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NamedTuple

import structlog

from holdfast.actors.account.messages import (
    AttachIntent,
    ExpireOrder,
    ReconcileOrder,
    RecordIntentRefused,
    ResumeTopUp,
)
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.orders.top_ups import NOT_CHARGED
from holdfast.ledger.orders.transitions import can_expire
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now
from holdfast.persistence.claims.orders import expect_change
from holdfast.persistence.queries.orders import order_by_id
from holdfast.persistence.server.database import Database
from holdfast.providers.card.base import CardFault, CardProvider, CardRejected, minor_from_micro
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import TOP_UPS, Conditions

log = structlog.get_logger(__name__)

CheckResult = Literal[
    "unreconciled", "pending", "reconciled", "mismatch", "error", "expired", "attached", "refused", "left"
]
"""The order's reconcile status after a comparison, or: expired, its intent found or refused, nothing to do."""

EXPECTED_WITHIN = timedelta(minutes=1)
UNDECIDED_FOR = timedelta(hours=1)
"""After how long an unknown outcome of a top-up is reported, and asked for less often."""


class Checked(NamedTuple):
    """What a check did, and the order afterwards."""

    result: CheckResult
    order: Order


class OrderChecks:
    """Checks orders. Without a ``card`` provider card orders are left as they are: their intents may be paid."""

    def __init__(
        self,
        *,
        database: Database,
        accounts: Directory,
        card: CardProvider | None,
        env: str,
        now: Now,
        conditions: Conditions | None = None,
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._card = card
        self._env = env
        self._conditions = conditions
        self.now = now

    async def expect_change(self, order: Order) -> None:
        """Have the order checked within a minute, before a change of it is requested at the provider.

        A webhook and this process's own check come first, but both may be lost. Raises ``DatabaseAway``.
        """
        at = self.now() + EXPECTED_WITHIN
        await self._database.work(expect_change, order.account_id, order.order_id, at=at)

    async def check(self, order_id: str) -> CheckResult:
        """Read an order and check it as :meth:`check_order` does; return what that did."""
        order = await self._database.read(order_by_id, order_id)
        return "left" if order is None else (await self.check_order(order)).result

    async def check_order(self, order: Order) -> Checked:
        """Expire the order, find its intent, or compare it with its provider, whichever is due.

        ``order`` may be older than its row: its account decides. Raises the faults of an ask, and
        :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
        checked = await self._check(order)
        metrics.ORDER_CHECKS.labels(checked.result).inc()
        return checked

    async def _check(self, order: Order) -> Checked:
        now = self.now()
        is_expired = can_expire(order.request, order.status) and now >= order.request.expires_at
        if order.request.provider == "sandbox":
            return await self._expire(order) if is_expired else Checked("left", order)
        if self._card is None:
            return Checked("left", order)
        if order.request.origin == "top_up" and order.status == "pending":
            return await self._check_top_up(order, self._card)
        payment_id = order.state.payment_id
        if payment_id is None:
            if is_expired:
                return await self._expire(order)
            if order.status == "pending":
                return await self._find_intent(order, self._card)
            return Checked("left", order)
        as_of = int(now.timestamp())
        try:
            seen = await self._card.retrieve(payment_id, as_of=as_of)
            if is_expired and seen.state == "open":
                seen = await self._card.cancel_intent(payment_id, as_of=as_of)
        except CardFault as fault:
            log.debug("a payment could not be read", order_id=order.order_id, reason=str(fault))
            return await self._reconcile(order, None)
        if is_expired and seen.state == "canceled":
            # Before the comparison, so that the order's history has the expiry as the reason for the cancellation.
            await self._expire(order)
        return await self._reconcile(order, seen)

    async def resume_top_up(self, account_id: str) -> None:
        """Have an account open the top-up that is due and that its limits had prevented."""
        await self._accounts.ref(account_id).ask(ResumeTopUp())

    async def _check_top_up(self, order: Order, card: CardProvider) -> Checked:
        """Charge the saved card, or find out what became of the charge.

        Until that is known the order stays pending, and it is checked again.
        """
        try:
            checked = await self._outcome_of_top_up(order, card)
        except CardFault as fault:
            log.debug("the outcome of a top-up is not known", order_id=order.order_id, reason=str(fault))
            if self.now() - order.request.created_at <= UNDECIDED_FOR:
                await self.expect_change(order)
            elif self._conditions is not None:
                self._conditions.failed(TOP_UPS, order.order_id, str(fault), account_id=order.account_id)
            return Checked("error", order)
        if self._conditions is not None and checked.order.status != "pending":
            self._conditions.ended(TOP_UPS, order.order_id)
        return checked

    async def _outcome_of_top_up(self, order: Order, card: CardProvider) -> Checked:
        """Raises :class:`CardFault`."""
        as_of = int(self.now().timestamp())
        payment_id = order.state.payment_id
        if payment_id is None:
            charged = await self._charge(order, card)
            if isinstance(charged, RecordIntentRefused):
                return Checked("refused", await self._ask(order, charged))
            payment_id = charged
            order = await self._ask(order, AttachIntent(order.order_id, payment_id))
        checked = await self._reconcile(order, await card.retrieve(payment_id, as_of=as_of))
        if checked.order.status == "pending" and checked.order.statuses.processing_status != "processing":
            # It waits for its cardholder, who is not there.
            seen = await card.cancel_intent(payment_id, as_of=as_of)
            checked = await self._reconcile(checked.order, seen)
        return checked

    async def _charge(self, order: Order, card: CardProvider) -> str | RecordIntentRefused:
        """Return the intent of an order's charge, or that there is none. Raises :class:`CardFault`.

        The call is repeated under the same key, so that there is one charge, but only while the provider certainly
        remembers that. Whenever it refuses, it may still have charged at an earlier call whose response was lost;
        so the intent is looked for.
        """
        request = order.request
        assert request.customer_id is not None
        assert request.card_id is not None
        reason = NOT_CHARGED
        if self.now() < request.expires_at:
            try:
                return await card.charge_saved_card(
                    request.order_id,
                    request.account_id,
                    minor_from_micro(request.amount_micro, request.currency),
                    request.currency,
                    customer_id=request.customer_id,
                    card_id=request.card_id,
                    env=self._env,
                )
            except CardRejected as fault:
                reason = fault.provider_code
        try:
            found = await card.find_intent(request.order_id, request.customer_id, since=request.created_at)
        except CardRejected as fault:
            if fault.provider_code != "resource_missing" or self.now() < request.expires_at:
                raise
            # The provider's account was changed: this one has no such customer, and so no charge of it.
            return RecordIntentRefused(request.order_id, fault.provider_code)
        return RecordIntentRefused(request.order_id, reason) if found is None else found

    async def _expire(self, order: Order) -> Checked:
        after = await self._ask(order, ExpireOrder(order.order_id))
        return Checked("expired" if after.status == "expired" else "left", after)

    async def _reconcile(self, order: Order, snapshot: ProviderSnapshot | None) -> Checked:
        after = await self._ask(order, ReconcileOrder(order.order_id, snapshot))
        return Checked("left" if after is order else after.statuses.reconcile_status, after)

    async def _find_intent(self, order: Order, card: CardProvider) -> Checked:
        """Create an order's intent after its first create call got no response.

        The order's id makes the call idempotent: an intent that was created before is returned.
        """
        request = order.request
        amount_minor = minor_from_micro(request.amount_micro, request.currency)
        try:
            intent = await card.create_intent(
                request.order_id,
                request.account_id,
                amount_minor,
                request.currency,
                env=self._env,
                customer_id=request.customer_id,
            )
        except CardRejected as fault:
            return Checked(
                "refused", await self._ask(order, RecordIntentRefused(order.order_id, fault.provider_code))
            )
        except CardFault as fault:
            log.debug("an intent could not be created", order_id=order.order_id, reason=str(fault))
            return Checked("error", order)
        attach = AttachIntent(order.order_id, intent.provider_payment_id)
        return Checked("attached", await self._ask(order, attach))

    async def _ask(self, order: Order, command: Command[OrderResult]) -> Order:
        """Return the order after a command; the order as it was given if the command was refused."""
        reply = await self._accounts.ref(order.account_id).ask(command)
        if isinstance(reply, Refusal):
            log.warning("a check of an order was refused", order_id=order.order_id, code=reply.code)
            return order
        return reply.order
