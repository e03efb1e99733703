"""The values that the journal writes. Each type is a set of columns that are written together.

Most fields are the columns of a table. New operations, orders and tasks are written as the ledger's own types.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.ledger.credit.operations import CHAIN_START, Operation
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.tasks.inputs import input_until
from holdfast.ledger.tasks.task import EventKind, StatusEntry, Task, TaskStatus
from holdfast.ledger.values import new_id
from holdfast.persistence.records.table_base import Int16, Int32


class JournaledRow(msgspec.Struct, frozen=True, tag=True):
    """A value that some statement of the journal writes. Tagged, since rows are sent between actors."""


# -------------------------------------------------------------------------------------------------------- accounts


class AccountHead(JournaledRow, frozen=True):
    """An account's version and totals after a unit of work; the fence of every account unit.

    ``lots`` are the amounts of its open lots, as :meth:`~holdfast.ledger.credit.operations.Lots.encoded` returns
    them. Those of a lone lot follow from the totals, so that an operation on it changes nothing there.
    """

    id: str
    version: int = 0
    operation_count: int = 0
    balance_micro: int = 0
    held_micro: int = 0
    chain_head: bytes = CHAIN_START
    lots: str | None = None


class AccountRow(JournaledRow, frozen=True):
    """A new account."""

    head: AccountHead
    email: str
    role: str
    brand_id: str
    created_at: datetime


class AccountAccessRow(JournaledRow, frozen=True):
    """Since when an account is disabled; None: it is not."""

    id: str
    disabled_at: datetime | None


class AccountEmailRow(JournaledRow, frozen=True):
    """The e-mail address of an account, after a change of it, and the role that follows from it."""

    id: str
    email: str
    role: str


class AccountClosingRow(JournaledRow, frozen=True):
    """When an account that its owner has left is closed; None: it is kept."""

    id: str
    closes_at: datetime | None


class AccountKeptRow(JournaledRow, frozen=True):
    """An account that is kept after all, since its owner has signed in; ``version`` is its fence's next."""

    id: str
    version: int
    closes_at: None = None


class AccountClosedRow(JournaledRow, frozen=True):
    """An account that is closed for good. ``email`` is no address any more: it only has to be unique."""

    id: str
    email: str
    closed_at: datetime


AccountChange: TypeAlias = Literal[
    "email_changed", "closing", "kept", "closed", "erased", "archive_requested", "archive_made", "api_key_created",
    "api_key_changed", "api_key_revoked", "limits_set", "key_group_created", "key_group_changed",
    "key_group_deleted", "webhook_created", "webhook_changed", "webhook_deleted", "webhook_tested", "event_resent",
    "webhook_secret_rotated", "order_created",
]  # fmt: skip


class AccountChangeRow(JournaledRow, frozen=True):
    """What happened to an account as a whole, or what an API key did with it. It names no one.

    ``api_key_id`` is the key that did it, ``subject`` the id of what it did it with.
    """

    account_id: str
    at: datetime
    what: AccountChange
    change_id: str = msgspec.field(default_factory=partial(new_id, "chg"))
    api_key_id: str | None = None
    subject: str | None = None


class AccountLimitRow(JournaledRow, frozen=True):
    """An account's limit in a kind of window, an operator's ceiling, and what was captured, as of a key's limit."""

    account_id: str
    limit_window: LimitWindow
    limit_micro: int | None
    ceiling_micro: int | None
    window_start: datetime
    captured_micro: int


class SessionRow(JournaledRow, frozen=True):
    """A new session, with only the hash of its token."""

    account_id: str
    session_id: str
    token_sha256: bytes
    created_at: datetime
    expires_at: datetime


class SessionRevokedRow(JournaledRow, frozen=True):
    """The revocation of a session."""

    account_id: str
    session_id: str
    revoked_at: datetime


class SessionsRevokedRow(JournaledRow, frozen=True):
    """The revocation of all sessions of an account but one; of all, if that is empty."""

    account_id: str
    kept_session_id: str
    revoked_at: datetime


class SignInDeletedRow(JournaledRow, frozen=True):
    """The deletion of a sign-in's state, of the version that its unit is fenced by."""

    key: str
    version: int


class SignInRow(JournaledRow, frozen=True):
    """The sign-in state of ``email:ada@example.com`` or ``origin:127.0.0.1``; ``state`` is written as JSON."""

    key: str
    version: int
    updated_at: datetime
    state: object


class GivenEmailRow(JournaledRow, frozen=True):
    """An e-mail address without an account here, which is another cell's from then on."""

    email_sha256: bytes
    cell: int
    at: datetime


class IdempotencyProbe(NamedTuple):
    """A key that must be unused; the journal checks it before it writes the unit."""

    account_id: str
    route: str
    key: str


class StoredReply(NamedTuple):
    """The content of an idempotency record: the fingerprint of the first request, and its typed reply as JSON."""

    fingerprint: bytes
    reply: bytes


class IdempotencyRow(JournaledRow, frozen=True):
    """A new idempotency record. The probe has shown that the key has no current one; an expired one is replaced."""

    probe: IdempotencyProbe
    stored: StoredReply
    created_at: datetime


class LotAnnouncedRow(JournaledRow, frozen=True):
    """The notice that a lot expires within so many days."""

    account_id: str
    number: int
    announced_days: int


class CouponGrantedRow(JournaledRow, frozen=True):
    """The end of a claim: its credit was given."""

    account_id: str
    coupon_id: str
    granted_at: datetime


# -------------------------------------------------------------------------------------------------- payment orders


APPLIED_VERDICTS: Final = ("applied", "stale")
"""The verdicts of a payment event that its order has recorded; such an event is final."""


class PaymentEventRow(JournaledRow, frozen=True, tag=False):
    """A provider's payment event as received. Both ids are None until its order is known.

    With one of :data:`APPLIED_VERDICTS` it replaces a stored one that had no effect. With another verdict (refused,
    ignored, of an unknown order) the first one received is stored.
    """

    provider: str
    event_id: str
    account_id: str | None
    order_id: str | None
    type: str
    received_at: datetime
    verdict: str
    body: bytes


class AutoTopUpRow(JournaledRow, frozen=True):
    """An account's saved cards and automatic top-up. ``wake_at`` is when a worker should have it resumed.

    ``off_at`` is when it was switched off other than by its owner.
    """

    account_id: str
    open_order_id: str | None
    wake_at: datetime | None
    off_at: datetime | None
    state: AutoTopUp

    @classmethod
    def of(cls, state: AutoTopUp) -> AutoTopUpRow:
        """Return the row of a state."""
        return cls(state.account_id, state.open_order_id, state.resume_at, state.off_at, state)


class OrderPaymentRow(JournaledRow, frozen=True):
    """A provider's payment or charge, and the one order it belongs to."""

    provider: str
    provider_object_id: str
    account_id: str
    order_id: str


# ----------------------------------------------------------------------------------------------------------- tasks


class NewTaskRow(JournaledRow, frozen=True):
    """A task that is created; ``owner`` is the process that submits it, None while it waits for a slot."""

    task: Task
    owner: str | None = None


class TaskChangedRow(JournaledRow, frozen=True):
    """A task after a transition made by the process ``owner``.

    The task's request is written too if it ``has_new_request``, its usage entry if it ``has_new_usage``. ``kinds``
    are the events that the transition is: the account's webhooks receive them.
    """

    task: Task
    owner: str
    has_new_request: bool = False
    has_new_usage: bool = False
    kinds: tuple[EventKind, ...] = ()

    @property
    def input_until(self) -> datetime | None:
        """When the large input of an ended task expires."""
        return input_until(self.task)


class TaskEventRow(JournaledRow, frozen=True):
    """A provider's callback as received, and its effect."""

    account_id: str
    request_id: str
    provider: str
    event_id: str
    received_at: datetime
    verdict: str
    body: bytes


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task's entry in the usage log, written with the task. ``ts`` is when the task was created.

    ``end_user`` is whom the customer says that the task was for.
    """

    account_id: str
    request_id: str
    ts: datetime
    model: str
    modality: str
    api_key_id: str | None
    status: TaskStatus
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_micro: int
    error: str | None
    operation_id: str | None
    status_history: tuple[StatusEntry, ...]
    end_user: str | None = None


class UsageCountedRow(JournaledRow, frozen=True):
    """The usage of a task that has ended, added to its account's totals. ``ts`` is when the task was created."""

    account_id: str
    ts: datetime
    model: str
    api_key_id: str | None
    status: TaskStatus
    end_user: str | None
    cost_micro: int


class AssetRow(JournaledRow, frozen=True):
    """A stored output; its bytes are in the asset store under ``sha256``."""

    account_id: str
    request_id: str
    position: Int16
    asset_id: str
    sha256: str
    bytes: int
    content_type: str
    created_at: datetime
    expires_at: datetime


class FileRow(NamedTuple):
    """A file that its account has uploaded; its bytes are in the asset store under ``sha256``."""

    account_id: str
    file_id: str
    filename: str
    content_type: str
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime


class ArchiveRow(NamedTuple):
    """The archive of all that is stored of an account, or that it is to be made: an account has one at a time.

    While it is made, a process has claimed that until a time; ``tries`` counts the claims. Its bytes are then in
    the asset store under ``sha256``, until it expires.
    """

    account_id: str
    archive_id: str
    requested_at: datetime
    claimed_until: datetime
    tries: Int32 = 0
    made_at: datetime | None = None
    expires_at: datetime | None = None
    sha256: str | None = None
    bytes: int | None = None


class AssetsExpiryRow(JournaledRow, frozen=True):
    """The new expiry of all assets of a task."""

    account_id: str
    request_id: str
    expires_at: datetime


class AssetsDeletedRow(JournaledRow, frozen=True):
    """The deletion of all assets of a task."""

    account_id: str
    request_id: str


# -------------------------------------------------------------------------------------------- events for customers


class OutboxRow(JournaledRow, frozen=True):
    """A new event of a task, or of the account itself without ``request_id``.

    ``receiver`` is whose deliveries wait for each other: a webhook of the account, which ``webhook_id`` names too,
    the account for the ``webhook_url`` of its tasks, or ``mail:`` and the account. ``snapshot`` is the task as it
    was, or the data of the account's event, as JSON. ``attempts`` counts all its delivery attempts, ``tries`` those
    since ``round_at``, when it was created or last resent. ``due_at`` is None once no attempt is left.
    """

    account_id: str
    receiver: str
    kind: str
    url: str
    created_at: datetime
    due_at: datetime | None
    round_at: datetime
    snapshot: object
    event_id: str = msgspec.field(default_factory=partial(new_id, "evt"))
    request_id: str | None = None
    webhook_id: str | None = None
    status: str = "pending"
    attempts: Int32 = 0
    tries: Int32 = 0


class OutboxOutcomeRow(JournaledRow, frozen=True):
    """The result of attempt number ``attempts``; void if another attempt or a resend has begun since."""

    account_id: str
    event_id: str
    attempts: int
    round_at: datetime
    due_at: datetime | None
    status: str
    done_at: datetime | None
    reason: str | None


class OutboxResendRow(JournaledRow, frozen=True):
    """An event to be resent: a round of attempts from ``due_at``, unless one began since ``unless_since``."""

    account_id: str
    event_id: str
    due_at: datetime
    unless_since: datetime | None
    status: str = "pending"
    tries: int = 0
    done_at: datetime | None = None
    reason: str | None = None


class OutboxAttemptRow(JournaledRow, frozen=True):
    """One delivery and its outcome: the receiver's status, or in ``error`` why there was none."""

    account_id: str
    event_id: str
    number: Int32
    at: datetime
    status_code: Int32 | None
    error: str | None
    duration_ms: Int32


class WebhookSecretRow(JournaledRow, frozen=True):
    """The next generation of an account's webhook secret, not stored itself. No row: still the first, 0."""

    account_id: str
    generation: Int32
    rotated_at: datetime


# ------------------------------------------------------------------------------------------------------- the audit


class AuditProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the checker's passes, each of which checks every account once.

    Every operation committed before ``verified_up_to`` has been checked; None before the first pass has ended. The
    current pass ``begun_at`` has come to the account ``after``. ``skipped`` counts checks that took too long; a
    pass with any verifies nothing.
    """

    begun_at: datetime
    written_at: datetime
    passes: int = 0
    verified_up_to: datetime | None = None
    after: str = ""
    accounts_total: int = 0
    accounts_done: int = 0
    operations_done: int = 0
    skipped: int = 0
    newest_operation_id: str | None = None
    newest_operation_at: datetime | None = None
    operations_per_s: float = 0.0


class KnownDifference(NamedTuple):
    """A rule that an account breaks, as it was last seen; ``found_at`` is when it was first."""

    account_id: str
    rule: str
    what: str
    found_at: datetime
    seen_at: datetime


# ------------------------------------------------------------------------------------------------ rows that follow

TaskRow: TypeAlias = (
    AssetRow
    | AssetsDeletedRow
    | AssetsExpiryRow
    | OutboxAttemptRow
    | OutboxOutcomeRow
    | OutboxRow
    | TaskChangedRow
    | TaskEventRow
    | UsageCountedRow
)
"""What a task's step writes: sent to the task's account if it settles the hold."""

Row: TypeAlias = JournaledRow | Operation | Order
"""What a unit of work may write. An order as such is a new row if it has version 1."""
