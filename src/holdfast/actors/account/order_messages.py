"""The messages to an account about its payment orders. Each is replied to with :class:`OrderResult` or a refusal.

The reply contains the whole order after the command, so that no further read is needed. An order that is not the
account's is refused with ``payment_order_not_found``.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import OrderRequest, OrderResult
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot


class CreateOrder(Command[OrderResult | Replayed[OrderResult]], frozen=True):
    """Store a new order, before any call to the provider. Reply: :class:`OrderResult`, verdict ``applied``.

    ``request`` contains its ids (order, operation, sandbox event). A used idempotency key returns the order as it
    was then.
    """

    request: OrderRequest
    idempotency: IdempotencyKey | None = None


class AttachIntent(Command[OrderResult], frozen=True):
    """The card provider created this intent for the order; repeating the message changes nothing."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    payment_id: str


class RecordIntentRefused(Command[OrderResult], frozen=True):
    """The card provider refused to create an intent for the order; ``reason`` is its code."""

    order_id: str
    reason: str


class ReceivePaymentEvent(Command[OrderResult], frozen=True):
    """A card provider's verified event about the order; ``body`` is stored even if it has no effect."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    event: PaymentEvent
    body: bytes


class PaySandboxOrder(Command[OrderResult], frozen=True):
    """A sandbox callback with a valid signature for the order; ``body`` is stored as received.

    Refused like :func:`holdfast.ledger.orders.decisions.on_sandbox_callback`.
    """

    order_id: str
    values: SandboxValues
    body: bytes


class ExpireOrder(Command[OrderResult], frozen=True):
    """Expire the order if its deadline has passed. The caller has canceled a card order's intent."""

    is_idempotent: ClassVar[bool] = True

    order_id: str


class ReconcileOrder(Command[OrderResult], frozen=True):
    """A snapshot of the order's objects at the provider; None if they could not be read."""

    is_idempotent: ClassVar[bool] = True

    order_id: str
    snapshot: ProviderSnapshot | None


class ResolveOrder(Command[OrderResult], frozen=True):
    """An operator's decision on a held order: credit for it, or none. ``note`` is recorded in the order's history.

    Without ``amount_micro`` the amount received is credited, at most the amount ordered. Refused like
    :func:`holdfast.ledger.orders.decisions.resolve_held`.
    """

    order_id: str
    credit: bool
    amount_micro: int | None = None
    note: str | None = None


OrderCommand: TypeAlias = (
    CreateOrder
    | AttachIntent
    | RecordIntentRefused
    | ReceivePaymentEvent
    | PaySandboxOrder
    | ExpireOrder
    | ReconcileOrder
    | ResolveOrder
)
