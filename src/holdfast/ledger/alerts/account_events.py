"""Events of an account: what happened to its credit, its keys and its access, for its webhooks and by mail.

An event's data is a value of one of the types below, as its receivers get it. The events of tasks, which an
account's webhooks receive too, are in :mod:`holdfast.ledger.tasks.events`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from holdfast.ledger.api_keys import ACCOUNT_READ, TASKS_READ
from holdfast.ledger.public_types import AccountId, Amount, OrderId, Time
from holdfast.ledger.tasks.events import EVENT_KINDS
from holdfast.ledger.tasks.task import EventKind

AccountEventKind = Literal[
    "balance.below", "key.limit_reached", "payment.credited", "payment.reversed", "credit.expiring",
    "top_up.failed", "account.disabled", "account.email_changed", "account.closing", "webhook.test",
]  # fmt: skip
AnyEventKind: TypeAlias = EventKind | AccountEventKind

ALL: Final = "*"
ALL_OF_TASKS: Final = "task.*"
TEST: Final[AccountEventKind] = "webhook.test"
"""The kind of a test event. It is sent to one webhook on demand, whatever that subscribes to."""

SUBSCRIPTIONS: Final[tuple[str, ...]] = (
    *EVENT_KINDS,
    *(kind for kind in get_args(AccountEventKind) if kind != TEST),
    ALL_OF_TASKS,
    ALL,
)
"""What a webhook may subscribe to: a kind, all kinds of tasks' events, or all kinds."""


class BalanceBelow(msgspec.Struct, frozen=True):
    """The available credit has fallen below the amount set for an alert."""

    account_id: AccountId
    available_balance: Amount
    """The balance less the held total, below zero only after a reversal."""
    balance_below: Amount
    """The amount set for the alert."""


class LimitReached(msgspec.Struct, frozen=True):
    """What a key, a key group, or the whole account, has spent has reached the set share of its limit."""

    account_id: AccountId
    api_key_id: str | None
    """The API key, `key_…`; null for a limit of a group or of the whole account."""
    limit: Amount
    """The limit."""
    window: Literal["day", "week", "month", "total"]
    """What the limit is for, in UTC."""
    spent: Amount
    """What is captured and held in the window."""
    limit_share: float
    """The share that was set for the alert."""
    resets_at: Time | None
    """When the window ends; null for `total`."""
    models: list[str] | None = None
    """The models that the limit is for, with `/*` for all of a provider; null: every model."""
    group_id: str | None = None
    """The key group, `grp_…`; null unless the limit is one of a group."""


class PaymentCredited(msgspec.Struct, frozen=True):
    """A payment was credited."""

    account_id: AccountId
    order_id: OrderId
    amount: Amount
    """The credit that was given."""
    balance: Amount
    """The balance afterwards."""


class PaymentReversed(msgspec.Struct, frozen=True):
    """Credit of a payment was taken back: it was refunded or disputed."""

    account_id: AccountId
    order_id: OrderId
    amount: Amount
    """The credit that was taken back."""
    balance: Amount
    """The balance afterwards."""


class CreditExpiring(msgspec.Struct, frozen=True):
    """Credit that was paid for expires within 30 days, or within 7."""

    account_id: AccountId
    lot: int
    """The number of the lot that expires."""
    remaining: Amount
    """What is left of the lot."""
    expires_at: Time
    """When it expires."""


class TopUpFailed(msgspec.Struct, frozen=True):
    """An automatic top-up failed, and top-ups are off until they are turned on again."""

    account_id: AccountId
    order_id: OrderId | None
    """The order of the attempt; null if there was none."""
    amount: Amount
    """The credit that was to be bought."""
    reason: str
    """Why it failed, such as the card provider's code."""


class AccountDisabled(msgspec.Struct, frozen=True):
    """The account was disabled: it gets no new tasks, keys or credit."""

    account_id: AccountId
    disabled_at: Time
    """When it was disabled."""


class AccountEmailChanged(msgspec.Struct, frozen=True):
    """The e-mail address that signs in was changed."""

    account_id: AccountId
    changed_at: Time
    """When it was changed."""


class AccountClosing(msgspec.Struct, frozen=True):
    """The account's owner has it closed; until then signing in keeps it."""

    account_id: AccountId
    closes_at: Time
    """When it is closed, and its data deleted."""


class WebhookTest(msgspec.Struct, frozen=True):
    """A test, sent on demand."""

    account_id: AccountId
    webhook_id: str
    """The webhook that is tested, `wh_…`."""


AccountEventData: TypeAlias = (
    BalanceBelow
    | LimitReached
    | PaymentCredited
    | PaymentReversed
    | CreditExpiring
    | TopUpFailed
    | AccountDisabled
    | AccountEmailChanged
    | AccountClosing
    | WebhookTest
)

_KIND_OF: Final[dict[type[AccountEventData], AccountEventKind]] = {
    BalanceBelow: "balance.below",
    LimitReached: "key.limit_reached",
    PaymentCredited: "payment.credited",
    PaymentReversed: "payment.reversed",
    CreditExpiring: "credit.expiring",
    TopUpFailed: "top_up.failed",
    AccountDisabled: "account.disabled",
    AccountEmailChanged: "account.email_changed",
    AccountClosing: "account.closing",
    WebhookTest: TEST,
}


def kind_of(data: AccountEventData) -> AccountEventKind:
    """Return the kind of the event with this data."""
    return _KIND_OF[type(data)]


def data_of(kind: AccountEventKind, stored: str) -> AccountEventData:
    """Decode an event's data. Raises :class:`msgspec.ValidationError` if this release cannot decode it."""
    [found] = [each for each, its_kind in _KIND_OF.items() if its_kind == kind]
    return msgspec.json.decode(stored, type=found)


def unknown_subscriptions(wanted: Sequence[str]) -> list[str]:
    """Return the subscriptions that do not exist."""
    return [each for each in wanted if each not in SUBSCRIPTIONS]


def subscriptions_to(kind: AnyEventKind) -> tuple[str, ...]:
    """Return the subscriptions of which a webhook needs one to receive events of this kind."""
    return (kind, ALL_OF_TASKS, ALL) if kind.startswith("task.") else (kind, ALL)


def scopes_to_read(subscription: str) -> tuple[str, ...]:
    """Return the scopes that an API key needs to read what is sent by a subscription."""
    if subscription == ALL:
        return (TASKS_READ, ACCOUNT_READ)
    return (TASKS_READ,) if subscription.startswith("task.") else (ACCOUNT_READ,)


def receives(events: Collection[str], kind: AnyEventKind) -> bool:
    """Whether a webhook with these subscriptions receives events of this kind."""
    return any(each in events for each in subscriptions_to(kind))


class AccountEvent(msgspec.Struct, frozen=True):
    """The payload of a webhook about an account."""

    id: str
    """The event's id, the same as in the header `webhook-id`."""
    type: AccountEventKind
    """What happened."""
    timestamp: Time
    """When it happened."""
    data: object
    """What happened, or happens soon."""


PAYLOADS: Final[dict[AccountEventKind, type[msgspec.Struct]]] = {
    kind: msgspec.defstruct(
        f"{data.__name__}Event",
        [("data", data)],
        bases=(AccountEvent,),
        namespace={"__doc__": data.__doc__},
        module=__name__,
        frozen=True,
    )
    for data, kind in _KIND_OF.items()
}
"""The payload of each kind, as it is documented."""


def account_payload(event_id: str, kind: AccountEventKind, timestamp: str, stored: str) -> bytes:
    """Encode the body of a webhook about an account, whose data is ``stored``."""
    return msgspec.json.encode(AccountEvent(event_id, kind, timestamp, msgspec.Raw(stored.encode())))
