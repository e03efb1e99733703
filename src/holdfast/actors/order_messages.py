"""What is asked of an account about its payment orders. Every one is answered :class:`OrderHeard` or refused.

The reply carries the whole order as it stands behind the command, so that nobody needs to read it again. An order
that the account does not have is refused with ``payment_order_not_found``.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from holdfast.actors.messages import Command, IdempotencyKey
from holdfast.ledger.order_moves import Verdict
from holdfast.ledger.orders import Order, OrderRequest
from holdfast.ledger.payment_facts import PaymentEvent
from holdfast.ledger.payment_snapshots import ProviderSnapshot
from holdfast.ledger.sandbox_signature import SandboxValues


class OrderHeard(msgspec.Struct, frozen=True, tag="order_heard"):
    """A payment order as it stands behind a command, and what the command did to it."""

    order: Order
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CreateOrder(Command[OrderHeard]):
    """Write an order down, before anybody outside is asked. Reply: :class:`OrderHeard`, verdict ``applied``.

    ``request`` brings its ids along (order, operation, sandbox event). A used idempotency key brings back the order
    as it was then.
    """

    request: OrderRequest
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True)
class AttachIntent(Command[OrderHeard]):
    """The card provider made this intent for the order; telling it again changes nothing."""

    order_id: str
    payment_id: str


@dataclass(frozen=True, slots=True)
class NoteIntentRefused(Command[OrderHeard]):
    """The card provider will make no intent for the order; ``reason`` is its code."""

    order_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class HearPayment(Command[OrderHeard]):
    """A card provider's verified event about the order; ``body`` is kept as received, whatever it does."""

    order_id: str
    event: PaymentEvent
    body: bytes


@dataclass(frozen=True, slots=True)
class PaySandboxOrder(Command[OrderHeard]):
    """A sandbox callback whose signature holds for the order; ``body`` is kept as received.

    Refused as :func:`holdfast.ledger.order_steps.on_sandbox_callback` says.
    """

    order_id: str
    values: SandboxValues
    body: bytes


@dataclass(frozen=True, slots=True)
class ExpireOrder(Command[OrderHeard]):
    """The order's time may be over. The caller has made sure that a card order's intent can no longer be paid."""

    order_id: str


@dataclass(frozen=True, slots=True)
class ReconcileOrder(Command[OrderHeard]):
    """A look at the provider: what it found, or why it could not be had (``fault``)."""

    order_id: str
    snapshot: ProviderSnapshot | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class ResolveOrder(Command[OrderHeard]):
    """An operator's word on a held order: credit for it, or none. ``note`` is told in the order's history.

    Without ``amount_micro`` what was received is credited, at most what was ordered. Refused as
    :func:`holdfast.ledger.order_steps.resolve_held` says.
    """

    order_id: str
    credit: bool
    amount_micro: int | None = None
    note: str | None = None
