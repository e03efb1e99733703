"""The request and response bodies of sign-in and account. Every field is present, null if unset.

Amounts are decimal strings, times RFC 3339 in UTC with milliseconds. Each struct's docstring is its description in
the OpenAPI document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.actors.account.messages import CreditChanged
from holdfast.http.kit.dependencies import Dependencies
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.public_types import (
    AccountId,
    Amount,
    Currency,
    FreeForm,
    Role,
    Time,
)
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.queries.accounts import FirstCallFacts
from holdfast.persistence.queries.credentials import SessionRecord

S = TypeVar("S", bound=msgspec.Struct)


def render(shape: type[S], *values: object, **fields: object) -> S:
    """Return a ``shape`` of ``fields`` and, for the other fields, of the attributes of ``values``.

    The first value that has an attribute ``name``, or ``name_micro`` for an amount, gives the field ``name``. Times
    and amounts are formatted.
    """
    found = {}
    for name in shape.__struct_fields__:
        field = fields[name] if name in fields else _attribute(values, name)
        found[name] = format_time(field) if isinstance(field, datetime) else field
    return msgspec.convert(found, shape, from_attributes=True)


def _attribute(values: tuple[object, ...], name: str) -> object:
    for value in values:
        if hasattr(value, name):
            return getattr(value, name)
        if hasattr(value, f"{name}_micro"):
            amount_micro = getattr(value, f"{name}_micro")
            return None if amount_micro is None else format_amount(amount_micro)
    raise AssertionError(f"no value has the attribute {name!r}")


# --------------------------------------------------------------------------------------------- requests


# Only the OpenAPI document uses these constraints; the endpoints validate the texts, with error codes of their own.
Email: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={
            "maxLength": 254,
            "pattern": r"^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+\.)+[A-Za-z]+$",
            "examples": ["ada@example.com"],
        }
    ),
]
Code: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[0-9]{6}$", "examples": ["123456"]})]
ModelId: TypeAlias = Annotated[str, msgspec.Meta(examples=["studio/image-1"])]
Input: TypeAlias = Annotated[FreeForm, msgspec.Meta(examples=[{"prompt": "a lighthouse at dusk"}])]
AmountGiven: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="A plain decimal string of credits, above zero with at most 6 decimals.",
        extra_json_schema={"pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,6})?$", "examples": ["10.00"]},
    ),
]


NextAction: TypeAlias = Literal["create_api_key", "add_credit", "create_task"]


class CodeRequest(msgspec.Struct, frozen=True):
    """The e-mail address to send a sign-in code to."""

    email: Email
    """Where to send the code."""


class VerifyRequest(msgspec.Struct, frozen=True):
    """A code, with the id that its request returned."""

    email: Email
    """The address that the code was sent to."""
    otp_id: Annotated[str, msgspec.Meta(examples=["otp_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    """The `otp_id` of the response to the request for the code."""
    otp: Code
    """The code, six digits."""


class RechargeRequest(msgspec.Struct, frozen=True):
    """The sandbox credit to add."""

    amount: AmountGiven
    """The credit to add."""


class QuoteRequest(msgspec.Struct, frozen=True):
    """The input to price, and its model."""

    model: ModelId
    """The model to price."""
    input: Input
    """The input to price, an object that fits the model's `input_schema`."""


# ------------------------------------------------------------------------------------------- responses


class Delivery(msgspec.Struct, frozen=True):
    """How the code is delivered."""

    channel: Literal["email"]
    """How it is sent."""
    destination: str
    """The address that it is sent to."""
    status: Literal["sent"]
    """Whether it is on its way."""


class CodeSent(msgspec.Struct, frozen=True):
    """The code was sent."""

    otp_id: str
    """Names the code when it is verified: `otp_…`."""
    expires_in_seconds: int
    """How long the code is valid, in seconds."""
    delivery: Delivery
    """How the code is delivered."""
    debug_otp: str | None
    """The code itself, in development only; else null."""


class AccountBody(msgspec.Struct, frozen=True):
    """An account's totals."""

    account_id: AccountId
    balance: Amount
    """Credit bought less credit charged or reversed; held credit is part of it."""
    held_total: Amount
    """Credit held for tasks that have not ended."""
    available_balance: Amount
    """What new tasks may hold: the balance less the held total."""
    tier: FreeForm
    """Reserved; empty."""


class Checks(msgspec.Struct, frozen=True):
    """The requirements of a first call."""

    has_api_key: bool
    """Whether the account has an API key that is not revoked, expired or paused."""
    has_writable_key: bool
    """Whether one of them has the scope `tasks:write`."""
    has_positive_balance: bool
    """Whether the available balance is above zero."""


class FirstCall(msgspec.Struct, frozen=True):
    """Whether the account is ready for its first call, and the steps that are missing."""

    account_id: AccountId
    ready: bool
    """Whether all checks are met."""
    checks: Checks
    """Each requirement, and whether it is met."""
    suggested_next_actions: list[NextAction]
    """What to do next, in this order."""
    routes: dict[str, str]
    """Absolute URLs by action: `create_api_key`, `quote`, `models`, `create_task`, and `add_credit` if accounts can
    get credit by themselves.
    """


class SessionToken(msgspec.Struct, frozen=True):
    """The bearer token of a new session."""

    type: Literal["bearer"]
    """How to send the token: `Authorization: Bearer <token>`."""
    token: str
    """The session token, `hst_…`; returned only here."""
    expires_at: Time
    """When the session ends by itself."""


class Verified(msgspec.Struct, frozen=True):
    """The new session and its account."""

    account_id: AccountId
    email: str
    """The address that signed in, in lower case."""
    role: Role
    """`Operator` if the settings name the address as an operator's."""
    session: SessionToken
    """The bearer token of the new session."""
    account: AccountBody
    """The account's totals."""
    first_call: FirstCall
    """Whether the account is ready for its first call."""
    account_kept: bool
    """Whether the account was to be deleted, and is kept by this sign-in."""


class AuthContext(msgspec.Struct, frozen=True):
    """The credential of the request."""

    type: Literal["session"]
    """The kind of the credential."""
    api_key_id: str | None
    """Always null: an API key is no session."""
    api_key_prefix: str | None
    """Always null: an API key is no session."""
    session_id: str | None
    """The session's id, `ses_…`."""
    expires_at: Time | None
    """When the session ends by itself."""
    scopes: list[str]
    """Always empty: a session may do everything."""


class SessionContext(msgspec.Struct, frozen=True):
    """The account and user of the session."""

    account_id: AccountId
    email: str
    """The user's e-mail address."""
    role: Role
    """`Operator` if the settings named the address as an operator's at the sign-in."""
    auth: AuthContext
    """The credential of the request."""


class SignedOutBody(msgspec.Struct, frozen=True):
    """The session has ended; its token is no longer valid."""

    session_id: str
    """The id of the session that ended, `ses_…`."""
    signed_out: bool
    """Always true."""


class CreditChangedBody(msgspec.Struct, frozen=True):
    """The credit that was given or taken, and the account's totals after it."""

    operation_id: str
    """The id of the ledger operation, `op_…`."""
    amount: Amount
    """The credit that was given; below zero if it was taken."""
    account: AccountBody
    """The account's totals afterwards."""


class RechargedBody(msgspec.Struct, frozen=True):
    """The sandbox credit that was added, and the account's totals after it."""

    operation_id: str
    """The id of the ledger operation, `op_…`."""
    amount: Amount
    """The credit added."""
    currency: Currency
    account: AccountBody
    """The account's totals afterwards."""


# -------------------------------------------------------------------------------------------- rendering


def account_body(totals: AccountTotals) -> AccountBody:
    """Render an account's totals."""
    return AccountBody(
        totals.account_id,
        balance=format_amount(totals.balance_micro),
        held_total=format_amount(totals.held_micro),
        available_balance=format_amount(totals.balance_micro - totals.held_micro),
        tier={},
    )


def credit_changed_body(reply: CreditChanged) -> CreditChangedBody:
    """Render a change of an account's credit."""
    return render(CreditChangedBody, reply, account=account_body(reply.account))


def first_call(deps: Dependencies, facts: FirstCallFacts) -> FirstCall:
    """Return whether an account is ready: it has a live key, a live key that may write, and available credit."""
    checks = Checks(
        has_api_key=facts.usable_keys > 0,
        has_writable_key=facts.writable_keys > 0,
        has_positive_balance=facts.totals.balance_micro > facts.totals.held_micro,
    )
    ready = checks.has_api_key and checks.has_writable_key and checks.has_positive_balance
    actions: list[NextAction] = []
    if not checks.has_writable_key:
        actions.append("create_api_key")
    if not checks.has_positive_balance:
        actions.append("add_credit")
    paths = {
        "create_api_key": "/v2/control/api-keys",
        "add_credit": credit_path(deps),
        "quote": "/v2/quote",
        "models": "/v2/models",
        "create_task": "/v2/task/create",
    }
    return FirstCall(
        account_id=facts.totals.account_id,
        ready=ready,
        checks=checks,
        suggested_next_actions=actions or ["create_task"],
        routes={name: deps.urls.base + path for name, path in paths.items() if path is not None},
    )


def credit_path(deps: Dependencies) -> str | None:
    """Return the path by which an account can get credit by itself: sandbox, else card, else None."""
    if deps.settings.sandbox_enabled:
        return "/v2/control/sandbox/recharge"
    return None if deps.payments.card is None else "/v2/control/payments/cardprovider"


def session_context(session: SessionRecord) -> SessionContext:
    """Render the session of the caller."""
    auth = render(AuthContext, session, type="session", api_key_id=None, api_key_prefix=None, scopes=[])
    return render(SessionContext, session, auth=auth)
