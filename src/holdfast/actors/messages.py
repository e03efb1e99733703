"""Every message and reply that travels between actors, and from the front end to them.

Commands are imperative, frozen and typed; a reply is a typed value or a :class:`Refusal`. Replies that an
idempotency key may bring back are members of :data:`StoredReply` and survive a round trip through JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from holdfast.ledger.news import Output, ProviderNews
from holdfast.ledger.order_moves import Verdict
from holdfast.ledger.orders import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.task_moves import HostedOutput, HostingFailure
from holdfast.ledger.tasks import EventKind
from holdfast.ledger.terms import Hosting, Terms
from holdfast.persistence.rows import Row
from holdfast.providers.media.base import CancelOutcome, Job, Submission

R_co = TypeVar("R_co", covariant=True)

# --------------------------------------------------------------------------------------------- shared parts


class Command(Generic[R_co]):
    """A message that asks for a change (or a fact) and is answered by its own reply type or a :class:`Refusal`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's Idempotency-Key: scope is (account, route, key); ``fingerprint`` is SHA-256 of path + body."""

    route: str
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The API key a command came in with; the account's actor checks that it may still write."""

    key_id: str
    scope: str


class AccountSummary(msgspec.Struct, frozen=True):
    """An account's totals as of one version, in micro-credits."""

    account_id: str
    balance_micro: int
    held_micro: int

    @property
    def available_micro(self) -> int:
        """The balance less everything held."""
        return self.balance_micro - self.held_micro


# --------------------------------------------------------------------------------- commands to an account


@dataclass(frozen=True, slots=True)
class Recharge(Command["Recharged"]):
    """Add sandbox credit. Reply: :class:`Recharged`."""

    amount_micro: int
    idempotency: IdempotencyKey | None = None


class Recharged(msgspec.Struct, frozen=True, tag="recharged"):
    """Sandbox credit was added."""

    operation_id: str
    amount_micro: int
    account: AccountSummary


@dataclass(frozen=True, slots=True)
class CreateTask(Command["TaskAccepted"]):
    """Hold credit and accept a task. ``input`` is normalised JSON. Reply: :class:`TaskAccepted`."""

    input: bytes
    terms: Terms
    quote_id: str
    claim: KeyClaim
    metadata: tuple[tuple[str, str], ...] = ()
    webhook_url: str | None = None
    webhook_events: tuple[EventKind, ...] | None = None
    retry_of: str | None = None
    idempotency: IdempotencyKey | None = None


class TaskAccepted(msgspec.Struct, frozen=True, tag="task_accepted"):
    """A task exists and its credit is held. Amounts in micro-credits."""

    request_id: str
    quote_id: str
    status: str
    retry_of: str | None
    estimated_micro: int
    basis: str


class OrderHeard(msgspec.Struct, frozen=True, tag="order_heard"):
    """A payment order as it stands behind a command, and what the command did to it."""

    order: Order
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CreateApiKey(Command["ApiKeyCreated"]):
    """Make an API key whose secret the caller has already drawn. Reply: :class:`ApiKeyCreated`."""

    key_id: str
    secret_sha256: bytes
    prefix: str
    name: str
    scopes: tuple[str, ...]


class ApiKeyCreated(msgspec.Struct, frozen=True, tag="api_key_created"):
    """An API key exists; its secret is known to the caller alone."""

    key_id: str
    prefix: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RevokeApiKey(Command["ApiKeyRevoked"]):
    """Revoke an API key at once; repeating it changes nothing. Reply: :class:`ApiKeyRevoked`."""

    key_id: str


class ApiKeyRevoked(msgspec.Struct, frozen=True, tag="api_key_revoked"):
    """The API key no longer opens anything."""

    key_id: str
    revoked_at: datetime


@dataclass(frozen=True, slots=True)
class SignOut(Command["SignedOut"]):
    """Revoke a session. Reply: :class:`SignedOut`."""

    session_id: str


class SignedOut(msgspec.Struct, frozen=True, tag="signed_out"):
    """The session's token no longer opens anything."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SettleTask(Command["TaskSettled"]):
    """A task's actor has decided how its task ends: settle the hold and write both in one unit of work.

    ``task_version`` is the version the step was decided on; ``rows`` are the task's own. ``charge_micro`` is
    None for a release. Reply: :class:`TaskSettled`, or a Refusal ``hold_not_open`` where the hold has ended
    otherwise. Raises :class:`~holdfast.actors.faults.StaleFence` in the asker where the task had moved on.
    """

    request_id: str
    task_version: int
    hold_id: str
    charge_micro: int | None
    operation_id: str
    reason: str
    at: datetime
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class TaskSettled:
    """The hold is captured or released, and the task's rows are written."""

    operation_id: str


@dataclass(frozen=True, slots=True)
class NoteKeyUse(Command[None]):
    """An API key was used; told at most once a minute for each key."""

    key_id: str
    at: datetime


# --------------------------------------------------------------------------------- commands to a sign-in


@dataclass(frozen=True, slots=True)
class AdmitOrigin(Command["OriginAdmitted"]):
    """Count one code request against an address of origin (key ``origin:…``). Reply: :class:`OriginAdmitted`."""


@dataclass(frozen=True, slots=True)
class OriginAdmitted:
    """The address of origin is within its hourly limit."""


@dataclass(frozen=True, slots=True)
class RequestCode(Command["CodeIssued"]):
    """Draw a one-time code for an e-mail (key ``email:…``). Reply: :class:`CodeIssued`."""


@dataclass(frozen=True, slots=True, repr=False)
class CodeIssued:
    """A code to be mailed; only its HMAC is stored."""

    otp_id: str
    code: str
    expires_in_s: int


@dataclass(frozen=True, slots=True, repr=False)
class VerifyCode(Command["SignedIn"]):
    """Try a code (key ``email:…``). Reply: :class:`SignedIn`."""

    otp_id: str
    code: str


@dataclass(frozen=True, slots=True, repr=False)
class SignedIn:
    """The e-mail is proved; its account exists and a session is open."""

    account_id: str
    email: str
    role: str
    session_id: str
    session_token: str
    session_expires_at: datetime


# ------------------------------------------------------------------------------------ commands to a task


@dataclass(frozen=True, slots=True)
class CancelTask(Command["TaskRef"]):
    """Cancel by the owner. Reply: :class:`TaskRef` once it stands as canceled, or a Refusal."""


@dataclass(frozen=True, slots=True)
class DecideReview(Command["TaskRef"]):
    """An operator's word on a task in review. Reply: :class:`TaskRef`, or a Refusal ``review_not_open``.

    ``approve`` False: the task fails and its hold is released. ``note`` is told in the task's progress.
    """

    approve: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class HearNews(Command["TaskRef"]):
    """A provider's verified news of a task; ``body`` is kept as received. Reply: :class:`TaskRef`."""

    news: ProviderNews
    body: bytes


@dataclass(frozen=True, slots=True)
class Wake(Command["TaskRef"]):
    """Something may be due: look. The task's row says what.

    ``recovering``: an earlier life of this process, or another process, was at work on it and is gone.
    """

    recovering: bool = False


@dataclass(frozen=True, slots=True)
class HearSubmission(Command["TaskRef"]):
    """What came of handing a job to its provider."""

    attempt: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class HearPoll(Command["TaskRef"]):
    """What a provider answered when polled; None: it does not know the job."""

    attempt: int
    news: ProviderNews | None


@dataclass(frozen=True, slots=True)
class HearCancel(Command["TaskRef"]):
    """What a provider made of a cancel."""

    attempt: int
    outcome: CancelOutcome


@dataclass(frozen=True, slots=True)
class HearHosting(Command["TaskRef"]):
    """How a round of storing outputs went.

    Each stored output was claimed at its ``expires_at`` less the retention its terms promise.
    """

    attempt: int
    results: tuple[HostedOutput | HostingFailure, ...]


@dataclass(frozen=True, slots=True)
class ExpireAssets(Command["TaskRef"]):
    """The time of an ended task's stored outputs is over. Reply: :class:`TaskRef` once their rows are gone."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The command took effect, or had before; the task's row tells the rest."""

    request_id: str
    account_id: str


# --------------------------------------------------------------------------------- commands to the workers


@dataclass(frozen=True, slots=True)
class TaskCreated(Command[None]):
    """To the dispatcher: a task waits for one of its provider's places."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class PlaceFreed(Command[None]):
    """To the dispatcher: the task no longer occupies its provider."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Submit(Command[None]):
    """To the provider desk: hand a job over, and tell the task what came of it."""

    provider: str
    job: Job


@dataclass(frozen=True, slots=True)
class Poll(Command[None]):
    """To the provider desk: ask how a job stands, and tell the task."""

    provider: str
    request_id: str
    attempt: int
    provider_ref: str


@dataclass(frozen=True, slots=True)
class CancelJob(Command[None]):
    """To the provider desk: ask for a job to be stopped, and tell the task what the provider made of it."""

    provider: str
    request_id: str
    attempt: int
    provider_ref: str


@dataclass(frozen=True, slots=True)
class Host(Command[None]):
    """To the hosting worker: store these outputs, each within ``output_timeout_s``, and tell the task."""

    request_id: str
    attempt: int
    provider: str
    outputs: tuple[Output, ...]
    hosting: Hosting
    output_timeout_s: float


StoredReply = Recharged | TaskAccepted | OrderHeard | Refusal
"""What an idempotency record can hold."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The reply an earlier call with the same Idempotency-Key got; nothing happened this time."""

    reply: StoredReply
