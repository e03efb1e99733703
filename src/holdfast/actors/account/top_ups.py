"""An account's automatic top-up: its commands, and the attempts that follow from changes of its credit.

Whether an attempt is opened is decided in the unit of work that makes the credit too low, and the new order is a
row of that unit. So an attempt is durable before anything is charged, and no concurrency opens a second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

import msgspec

from holdfast.actors.account.messages import (
    RecordCustomer,
    RemoveCard,
    ResumeTopUp,
    SaveCard,
    SetAutoTopUp,
    SwitchOffTopUp,
    TopUpCommand,
)
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.orders.decisions import create_order
from holdfast.ledger.orders.order import Order, Seller, order_request
from holdfast.ledger.orders.top_ups import (
    CHARGE_PERIOD_S,
    OFF_BY_OPERATOR,
    AutoTopUp,
    after_order,
    attempt_time,
    is_due,
    next_attempt_at,
    switched_off,
    with_attempt,
    with_card,
    with_customer,
    with_settings,
    without_card,
)
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now
from holdfast.persistence.records.rows import AutoTopUpRow, Row


class AccountTopUp:
    """``state`` is the newest decided one, as :class:`AccountUnits` has the credit's."""

    __slots__ = ("_is_asked", "_now", "_seller", "_written", "is_disabled", "state")

    def __init__(self, state: AutoTopUp, seller: Seller, now: Now, *, is_disabled: bool) -> None:
        self.state = self._written = state
        self._seller = seller
        self._now = now
        self._is_asked = False
        self.is_disabled = is_disabled
        """Whether the account is, and opens no attempt."""

    def decide(self, command: TopUpCommand) -> AutoTopUp | Refusal:
        """Return the state after a command, which is not taken yet. Refuses what each decision refuses."""
        state, now = self.state, self._now()
        match command:
            case RecordCustomer(customer_id=customer_id, livemode=livemode):
                return with_customer(state, customer_id, livemode=livemode, at=now)
            case SaveCard(card=card):
                return with_card(state, card)
            case RemoveCard(card_id=card_id):
                return without_card(state, card_id, now)
            case SetAutoTopUp(settings=settings, enabled=enabled):
                return with_settings(state, settings, enabled=enabled, now=now)
            case SwitchOffTopUp():
                return switched_off(state, OFF_BY_OPERATOR, now)
            case ResumeTopUp():
                return state
            case _:
                assert_never(command)

    def order_changed(self, before: Order, after: Order) -> str | None:
        """Take a change of an attempt, which the account's next unit contains; return why it switches off, if so.

        An attempt that was not charged is followed by the next.
        """
        was_open, was_enabled = self.state.open_order_id, self.state.enabled
        self.state = after_order(self.state, before, after)
        self._is_asked = was_open is not None and self.state.open_order_id is None and after.status == "failed"
        return self.state.off_reason if was_enabled and not self.state.enabled else None

    def rows_after(
        self, available_micro: int, operations: Sequence[Operation], *, is_asked: bool = False
    ) -> tuple[Row, ...]:
        """Return the rows of what a unit changes here, with the order of a new attempt if one is due.

        One is due after an operation, or if it ``is_asked`` for. A reversal opens none, with what is posted
        beside it: the customer's money was returned, and is not taken again for that.
        """
        is_reversed = any(each.kind is OperationKind.REVERSAL for each in operations)
        if is_asked or self._is_asked or (operations and not is_reversed):
            self._is_asked = False
            opened = self._follow_credit(available_micro)
        else:
            opened = ()
        if self.state is self._written:
            return ()
        self._written = self.state
        return (*opened, AutoTopUpRow.of(self.state))

    def _follow_credit(self, available_micro: int) -> tuple[Order, ...]:
        """Open an attempt if one is due and the limits allow it, or note when they will."""
        state = self.state
        if self.is_disabled or not is_due(state, available_micro):
            self._resume_at(None)
            return ()
        now = attempt_time(state, self._now())
        at = next_attempt_at(state, now)
        if at > now:
            self._resume_at(at)
            return ()
        assert state.settings is not None
        order = create_order(
            order_request(
                self._seller,
                state.account_id,
                "cardprovider",
                state.settings.amount_micro,
                now,
                ttl_s=CHARGE_PERIOD_S,
                livemode=state.livemode,
                origin="top_up",
                customer_id=state.customer_id,
                card_id=state.cards[0].card_id,
            )
        )
        self.state = with_attempt(state, order)
        return (order,)

    def _resume_at(self, at: datetime | None) -> None:
        if self.state.resume_at != at:
            self.state = msgspec.structs.replace(self.state, resume_at=at)
