"""The messages to an account, and their replies.

They are about its credit, its tasks' holds, its keys and sessions, its webhooks and alerts, its saved cards and
automatic top-up; from operators, about its credit and whether it may be used; and about its payment orders. Each of
the last is replied to with :class:`OrderResult`, which contains the whole order after the command, or a refusal:
``payment_order_not_found`` for an order that is not the account's.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.ledger.alerts.alerts import Alerts, MailStop
from holdfast.ledger.api_keys import KeyChanges, KeyTerms
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.credit.limits import Limit
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import OrderRequest, OrderResult
from holdfast.ledger.orders.sandbox_signature import SandboxValues
from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard, TopUpSettings
from holdfast.ledger.public_types import LimitWindow, Role
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TaskRequest, TaskStatus
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.records.credit_tables import CouponClaim
from holdfast.persistence.records.event_rows import WebhookDeletedRow, WebhookRow
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow
from holdfast.persistence.records.rows import AccountAccessRow, SessionRevokedRow, TaskRow


class CreditChanged(msgspec.Struct, frozen=True, tag="recharged"):
    """Sandbox credit was added, or credit was granted or adjusted; it was taken if the amount is below zero."""

    operation_id: str
    amount_micro: int
    account: AccountTotals


class Recharge(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Add sandbox credit. Reply: :class:`CreditChanged`."""

    amount_micro: int
    idempotency: IdempotencyKey | None = None


class TaskAccepted(msgspec.Struct, frozen=True, tag="task_accepted"):
    """A task exists and its credit is held. Amounts in micro-credits.

    ``created_at`` is None if a release that did not give it has decided or stored this.
    """

    request_id: str
    quote_id: str
    status: TaskStatus
    retry_of: str | None
    estimated_micro: int
    basis: str
    created_at: datetime | None = None


class RequestAttempt(msgspec.Struct, frozen=True):
    """An attempt at a request of a ``group``, whose requests are equal; an empty id is no attempt."""

    group: str
    attempt_id: str = ""


class CreateTask(Command[TaskAccepted | Replayed[TaskAccepted]], frozen=True):
    """Hold credit and accept a task. Reply: :class:`TaskAccepted`.

    ``request`` contains the id of its hold, and its API key, which must still have ``scope``; None is the owner's
    session, which its sender has verified. ``after`` is the newest attempt of its group that its sender knew of:
    once a later one has begun, it is refused with ``superseded``, however long it was on its way.
    """

    request: TaskRequest
    scope: str
    idempotency: IdempotencyKey | None = None
    after: RequestAttempt | None = None


class BeginAttempt(Command[None], frozen=True):
    """Begin another attempt at a request, so that earlier ones create nothing any more. Reply: None.

    What the account has decided before is then in the rows. ``api_key_id`` must be live and have ``scope``, as for
    :class:`CreateTask`. The attempt has its id for itself, and begins once: were it begun again after a later one,
    that would count as the earlier.
    """

    attempt: RequestAttempt
    api_key_id: str
    scope: str


class RefuseTask(Command[TaskAccepted | Replayed[TaskAccepted]], frozen=True):
    """Store the refusal of a task under its Idempotency-Key. Reply: the refusal, or what the used key replays.

    ``api_key_id`` must be live and have ``scope``, as for :class:`CreateTask`; it is empty for the owner's session.
    """

    refusal: Refusal
    api_key_id: str
    scope: str
    idempotency: IdempotencyKey


class SettleTask(Command[Settlement], frozen=True):
    """Settle the hold of a task that ends and write its rows in the same unit of work.

    ``task_version`` is the version the step was decided on; ``rows`` are the task's own. Reply: the settlement, or
    a Refusal ``hold_not_open`` if the hold was settled otherwise. Raises
    :class:`~holdfast.actors.runtime.faults.StaleFence` in the caller if the task has changed since.
    """

    request_id: str
    task_version: int
    settlement: Settlement
    rows: tuple[TaskRow, ...]


class CreateApiKey(Command[ApiKeyRecord], frozen=True):
    """Create an API key whose secret the caller has generated. Reply: its record.

    ``limit`` has no models. ``more_limits`` are its other ones, each of another kind. ``group_id`` is its group;
    None: that of the key that makes it, if any. Refused with ``key_group_not_found``.
    """

    key_id: str
    secret_sha256: bytes
    prefix: str
    terms: KeyTerms
    limit: Limit | None = None
    more_limits: tuple[Limit, ...] = ()
    group_id: str | None = None


class ChangeApiKey(Command[None], frozen=True):
    """Change an API key. Its new limits, if any are given, count what was spent in their windows before.

    ``limit`` without models and ``more_limits``, each of another kind, replace all that it has. ``group_id`` puts
    it into another group, None into none. Refused with ``key_group_not_found``, and for a key that is not live with
    ``api_key_not_found``.
    """

    is_idempotent: ClassVar[bool] = True

    key_id: str
    changes: KeyChanges
    limit: Limit | msgspec.UnsetType | None = msgspec.UNSET
    more_limits: tuple[Limit, ...] = ()
    group_id: str | msgspec.UnsetType | None = msgspec.UNSET


class RevokeApiKey(Command[ApiKeyRevokedRow], frozen=True):
    """Revoke an API key at once. Reply: the row that was written."""

    key_id: str


class RevokedKeys(msgspec.Struct, frozen=True, tag="revoked_keys"):
    """The keys that were revoked now."""

    rows: tuple[ApiKeyRevokedRow, ...]


class RevokeWithMade(Command[RevokedKeys], frozen=True):
    """Revoke an API key, and every key that it has made, or that was made by one of those. Reply: these.

    A key that is revoked already may be named for those that it has made. Refused without any live one with
    ``api_key_not_found``.
    """

    key_id: str


class RecordKeyUse(Command[None], frozen=True):
    """Record that an API key was used; sent at most once a minute for each key."""

    key_id: str
    at: datetime


class SignOut(Command[SessionRevokedRow], frozen=True):
    """Revoke a session. Reply: the row that was written."""

    is_idempotent: ClassVar[bool] = True

    session_id: str


class PutWebhook(Command[WebhookRow], frozen=True):
    """Create a webhook, or change one: ``is_new`` says which. None leaves a field as it is.

    Reply: the webhook. Refused with ``webhook_limit_reached``, ``webhook_not_found``, and a new one of a disabled
    account with ``account_disabled``.
    """

    webhook_id: str
    is_new: bool
    url: str | None = None
    events: tuple[str, ...] | None = None
    enabled: bool | None = None


class DeleteWebhook(Command[WebhookDeletedRow], frozen=True):
    """Delete a webhook. Reply: the row that was written, or a refusal ``webhook_not_found``."""

    webhook_id: str


class SetAlerts(Command[Alerts], frozen=True):
    """Set what is announced to the account's owner. Reply: the account's alerts.

    ``email`` True also ends an unsubscription, but not what an address has refused.
    """

    is_idempotent: ClassVar[bool] = True

    balance_below_micro: int | None
    limit_share: float
    email: bool


class StopMail(Command[Alerts], frozen=True):
    """Send no more mail: its owner unsubscribed, or the address was refused. Reply: the account's alerts."""

    is_idempotent: ClassVar[bool] = True

    why: MailStop


class AllowMail(Command[Alerts], frozen=True):
    """An operator's decision that an address which was refused gets mail again. Reply: the account's alerts."""

    is_idempotent: ClassVar[bool] = True


AlertCommand: TypeAlias = PutWebhook | DeleteWebhook | SetAlerts | StopMail | AllowMail


class AdjustCredit(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Give credit, or take it if ``amount_micro`` is below zero. Reply: :class:`CreditChanged`.

    ``action_id`` is the operator's recorded action; the account's owner reads ``note`` in the statement. Refused
    like :func:`holdfast.ledger.credit.account.decide_adjustment`.
    """

    amount_micro: int
    action_id: str
    note: str
    idempotency: IdempotencyKey


class SetLimits(Command[None], frozen=True):
    """Replace the limits of the whole account, at most one for each kind of window.

    Refused with ``limit_above_ceiling`` if one is above an operator's ceiling for its window.
    """

    is_idempotent: ClassVar[bool] = True

    limits: tuple[Limit, ...]


class SetCeiling(Command[None], frozen=True):
    """Set the ceiling of the account's limit in a kind of window, or remove it.

    It counts also without a limit, or with a higher one.
    """

    is_idempotent: ClassVar[bool] = True

    window: LimitWindow
    ceiling_micro: int | None


class SetAccess(Command[AccountAccessRow], frozen=True):
    """Disable the account, or enable it again; repeating it changes nothing. Reply: the state afterwards.

    A disabled account gets no sessions, keys, credit by its owner, orders or tasks. What has begun continues: tasks
    settle, and payments are credited.
    """

    is_idempotent: ClassVar[bool] = True

    is_disabled: bool


class GrantCredit(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Give promotional credit, until ``expires_at`` or for good. Reply: :class:`CreditChanged`.

    ``action_id`` is the operator's recorded action; the account's owner reads ``note`` in the statement. Refused
    like :func:`holdfast.ledger.credit.account.decide_grant`.
    """

    amount_micro: int
    expires_at: datetime | None
    action_id: str
    note: str
    idempotency: IdempotencyKey


class VoidLot(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Take back what is left of a lot of promotional credit, except what holds have reserved.

    Reply: :class:`CreditChanged`, below zero. ``action_id`` and ``note`` are as those of :class:`GrantCredit`.
    Refused like :func:`holdfast.ledger.credit.account.decide_void`.
    """

    number: int
    action_id: str
    note: str
    idempotency: IdempotencyKey


class RedeemCoupon(Command[CreditChanged | Replayed[CreditChanged]], frozen=True):
    """Give the credit of a claimed coupon, and end the claim. Reply: :class:`CreditChanged`.

    ``idempotency`` has the claim's id as its key. Refused like :class:`GrantCredit`.
    """

    claim: CouponClaim
    idempotency: IdempotencyKey


def redeem_coupon(claim: CouponClaim) -> RedeemCoupon:
    """Return the command for a claim; it may be sent again until the claim has ended."""
    return RedeemCoupon(claim, IdempotencyKey("coupon", claim.claim_id, claim.claim_id.encode()))


class LotsExpired(msgspec.Struct, frozen=True, tag="lots_expired"):
    """How much of an account's credit has expired, and whether more has than one unit of work withdraws."""

    amount_micro: int
    is_more_due: bool = False


class AnnounceExpiry(Command[None], frozen=True):
    """Notify the account's owner of the paid credit that expires soon, as far as that was not done."""

    is_idempotent: ClassVar[bool] = True


class ExpireLots(Command[LotsExpired], frozen=True):
    """Withdraw what is left of the lots whose time has come, except what holds have reserved."""

    is_idempotent: ClassVar[bool] = True


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

    is_idempotent: ClassVar[bool] = True

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


class RecordCustomer(Command[AutoTopUp], frozen=True):
    """The account's customer at the card provider, in its ``livemode``. The first one stays. Reply: the state."""

    is_idempotent: ClassVar[bool] = True

    customer_id: str
    livemode: bool | None


class SaveCard(Command[AutoTopUp], frozen=True):
    """The account's owner has saved a card at the provider. Reply: the state. Refused: ``card_limit_reached``."""

    is_idempotent: ClassVar[bool] = True

    card: SavedCard


class RemoveCard(Command[AutoTopUp], frozen=True):
    """The caller has detached a card at the provider. Reply: the state. Refused: ``card_not_found``."""

    card_id: str


class SetAutoTopUp(Command[AutoTopUp], frozen=True):
    """Set the automatic top-up. Reply: the state, with an attempt if one is due. Refused: ``card_required``."""

    is_idempotent: ClassVar[bool] = True

    settings: TopUpSettings
    enabled: bool


class SwitchOffTopUp(Command[AutoTopUp], frozen=True):
    """An operator switches the automatic top-up off. An open attempt goes on. Reply: the state."""

    is_idempotent: ClassVar[bool] = True


class ResumeTopUp(Command[AutoTopUp], frozen=True):
    """Open the attempt that was due and that the limits prevented, if they allow it now. Reply: the state."""

    is_idempotent: ClassVar[bool] = True


class TriedCode(msgspec.Struct, frozen=True):
    """A code that was sent to an address, as it is stored: see :func:`~holdfast.ledger.sign_in_codes.code_mac`."""

    otp_id: str
    mac: str

    __repr__ = object.__repr__


class EmailChanged(msgspec.Struct, frozen=True, tag="email_changed"):
    """The address that signs in to the account now, and the role that follows from it."""

    email: str
    role: Role


class ChangeEmail(Command[EmailChanged], frozen=True):
    """Change the account's e-mail address; all sessions but this one end. Reply: :class:`EmailChanged`.

    ``current`` was sent to the address that the account has, ``new`` to the new one. Refused as
    :func:`~holdfast.ledger.sign_in_codes.try_code` does for either of them, with ``param`` saying which; and with
    ``email_taken``.
    """

    is_idempotent: ClassVar[bool] = True

    email: str
    role: Role
    session_id: str
    current: TriedCode
    new: TriedCode


class ClosingSet(msgspec.Struct, frozen=True, tag="closing_set"):
    """When the account is closed, and the credit that is forfeited then as of now."""

    closes_at: datetime
    forfeited_micro: int


class CloseAccount(Command[ClosingSet], frozen=True):
    """Have the account closed in seven days, and end all its sessions. Reply: :class:`ClosingSet`.

    Refused with ``account_in_debt``, ``tasks_not_ended``, ``dispute_open``, ``payment_in_progress``, and with
    ``credit_remains`` unless ``forfeits_credit``.
    """

    is_idempotent: ClassVar[bool] = True

    forfeits_credit: bool


ClosingState: TypeAlias = Literal["kept", "closed"]


class ClosingEnded(msgspec.Struct, frozen=True, tag="closing_ended"):
    """Whether the account was closed."""

    state: ClosingState


class FinishClosing(Command[ClosingEnded], frozen=True):
    """Close the account for good, as its time has come: its credit is forfeited and its address is free again.

    Reply: :class:`ClosingEnded`, also if it was done before, or if its owner has signed in. Refused as
    :class:`CloseAccount` is, but for ``credit_remains``; and then it is asked again later.
    """

    is_idempotent: ClassVar[bool] = True


LeavingCommand: TypeAlias = ChangeEmail | CloseAccount | FinishClosing


TopUpCommand: TypeAlias = RecordCustomer | SaveCard | RemoveCard | SetAutoTopUp | SwitchOffTopUp | ResumeTopUp
