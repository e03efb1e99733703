"""The request and response bodies of sign-in, account and API keys. Every field is present, null if unset.

Amounts are decimal strings, times RFC 3339 in UTC with milliseconds. Each struct's docstring is its description in
the OpenAPI document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from holdfast.http.kit.dependencies import Dependencies
from holdfast.ledger.clock import format_time
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, FreeForm, Time
from holdfast.persistence.queries.accounts import FirstCallFacts
from holdfast.persistence.queries.credentials import SessionRecord
from holdfast.persistence.records.rows import ApiKeyRecord

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
    msgspec.Meta(extra_json_schema={"pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,6})?$", "examples": ["10.00"]}),
]


class CodeRequest(msgspec.Struct, frozen=True):
    """The e-mail address to send a sign-in code to."""

    email: Email


class VerifyRequest(msgspec.Struct, frozen=True):
    """A code, with the id that its request returned."""

    email: Email
    otp_id: Annotated[str, msgspec.Meta(examples=["otp_01935f6c2b7d7c3e8a4d5e6f70819203"])]
    otp: Code


class ApiKeyRequest(msgspec.Struct, frozen=True):
    """The API key to create. Without ``scopes`` it may read and write tasks."""

    name: Annotated[Annotated[str, msgspec.Meta(max_length=100)] | None, msgspec.Meta(examples=["server"])] = None
    scopes: list[str] | None = None


class RechargeRequest(msgspec.Struct, frozen=True):
    """The sandbox credit to add: a plain decimal string with at most 6 decimals."""

    amount: AmountGiven


class QuoteRequest(msgspec.Struct, frozen=True):
    """The input to price, and its model."""

    model: ModelId
    input: Input


# ------------------------------------------------------------------------------------------- responses


class Delivery(msgspec.Struct, frozen=True):
    """How the code is delivered."""

    channel: str
    destination: str
    status: str


class CodeSent(msgspec.Struct, frozen=True):
    """The code was sent. ``debug_otp`` is the code itself in development, else null."""

    otp_id: str
    expires_in_seconds: int
    delivery: Delivery
    debug_otp: str | None


class AccountBody(msgspec.Struct, frozen=True):
    """An account's totals. ``available_balance`` is the balance less the credit held for running tasks."""

    account_id: str
    balance: Amount
    held_total: Amount
    available_balance: Amount
    tier: FreeForm


class Checks(msgspec.Struct, frozen=True):
    """The requirements of a first call. ``has_positive_balance`` is about the available balance."""

    has_api_key: bool
    has_writable_key: bool
    has_positive_balance: bool


class FirstCall(msgspec.Struct, frozen=True):
    """Whether the account is ready for its first call, and the steps that are missing.

    ``routes`` has ``add_credit`` only if accounts can get credit by themselves.
    """

    account_id: str
    ready: bool
    checks: Checks
    suggested_next_actions: list[str]
    routes: dict[str, str]


class SessionToken(msgspec.Struct, frozen=True):
    """The bearer token of a new session."""

    type: str
    token: str
    expires_at: Time


class Verified(msgspec.Struct, frozen=True):
    """The new session and its account."""

    account_id: str
    email: str
    role: str
    session: SessionToken
    account: AccountBody
    first_call: FirstCall


class AuthContext(msgspec.Struct, frozen=True):
    """The credential of the request."""

    type: str
    api_key_id: str | None
    api_key_prefix: str | None
    session_id: str | None
    expires_at: Time | None
    scopes: list[str]


class SessionContext(msgspec.Struct, frozen=True):
    """The account and user of the session."""

    account_id: str
    email: str
    role: str
    auth: AuthContext


class SignedOutBody(msgspec.Struct, frozen=True):
    """The session has ended; its token is no longer valid."""

    session_id: str
    signed_out: bool


class ApiKeySecret(msgspec.Struct, frozen=True):
    """A new API key. ``api_key`` is the secret; it is returned only here."""

    api_key_id: str
    api_key: str
    api_key_prefix: str
    name: str
    scopes: list[str]
    created_at: Time


class ApiKeyBody(msgspec.Struct, frozen=True):
    """An API key without its secret."""

    api_key_id: str
    api_key_prefix: str
    name: str
    scopes: list[str]
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class ApiKeyList(msgspec.Struct, frozen=True):
    """Every API key of the account, newest first."""

    data: list[ApiKeyBody]


class ApiKeyRevokedBody(msgspec.Struct, frozen=True):
    """The API key is revoked."""

    api_key_id: str
    revoked_at: Time


class RechargedBody(msgspec.Struct, frozen=True):
    """The sandbox credit that was added, and the account's totals after it."""

    operation_id: str
    amount: Amount
    currency: str
    account: AccountBody


# -------------------------------------------------------------------------------------------- rendering


def account_body(totals: AccountTotals) -> AccountBody:
    """Render an account's totals."""
    return render(
        AccountBody,
        totals,
        held_total=format_amount(totals.held_micro),
        available_balance=format_amount(totals.balance_micro - totals.held_micro),
        tier={},
    )


def first_call(deps: Dependencies, facts: FirstCallFacts) -> FirstCall:
    """Return whether an account is ready: it has a live key, a live key that may write, and available credit."""
    checks = Checks(
        has_api_key=facts.live_keys > 0,
        has_writable_key=facts.writable_keys > 0,
        has_positive_balance=facts.totals.balance_micro > facts.totals.held_micro,
    )
    ready = checks.has_api_key and checks.has_writable_key and checks.has_positive_balance
    actions = []
    if not checks.has_writable_key:
        actions.append("create_api_key")
    if not checks.has_positive_balance:
        actions.append("add_credit")
    paths = {
        "create_api_key": "/v2/control/api-keys",
        "add_credit": _credit_path(deps),
        "quote": "/v2/quote",
        "models": "/v2/models",
        "create_task": "/v2/task/create",
    }
    return FirstCall(
        account_id=facts.totals.account_id,
        ready=ready,
        checks=checks,
        suggested_next_actions=actions or ["create_task"],
        routes={name: deps.urls.url(path) for name, path in paths.items() if path is not None},
    )


def _credit_path(deps: Dependencies) -> str | None:
    """Return the path by which an account can get credit by itself: sandbox, else card, else None."""
    if deps.settings.sandbox_enabled:
        return "/v2/control/sandbox/recharge"
    return None if deps.card is None else "/v2/control/payments/cardprovider"


def session_context(session: SessionRecord) -> SessionContext:
    """Render the session of the caller."""
    auth = render(AuthContext, session, type="session", api_key_id=None, api_key_prefix=None, scopes=[])
    return render(SessionContext, session, auth=auth)


def api_key_body(key: ApiKeyRecord) -> ApiKeyBody:
    """Render an API key without its secret."""
    return render(ApiKeyBody, key, api_key_id=key.key_id, api_key_prefix=key.prefix)
