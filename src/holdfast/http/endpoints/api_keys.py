"""The account's API keys, and the limits of what a key or the whole account may spend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Final, TypeAlias

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    RevokeApiKey,
    RevokeWithMade,
    SetLimits,
)
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.listing import read_given_time
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.values import invalid_parameter, read_amount, shown
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.ledger.api_keys import (
    ACCOUNT_READ,
    ALL_SCOPES,
    KEYS_READ,
    KEYS_WRITE,
    LIMITS_WRITE,
    OF_PROVIDER,
    SCOPES,
    KeyChanges,
    KeyTerms,
    matches,
)
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.quotes import some_models
from holdfast.ledger.clock import format_time, time_or_none
from holdfast.ledger.credit.limits import WINDOWS, Limit, LimitKind, Spending
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, LimitWindow, SpendingLimit, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.expired import REVOKED_KEYS_MAX
from holdfast.persistence.queries.credentials import api_keys_of_account, find_api_key
from holdfast.persistence.queries.spending import keys_with_spending, spending_of_account, spendings_of_key
from holdfast.persistence.records.rows import ApiKeyRecord

route = RouteTable("API keys")

STORED_KEYS_MAX: Final = 500
"""The most keys of an account. It is met only by one that revokes hundreds between two sweeps of the oldest."""
MODELS_MAX: Final = 100
LIMITS_MAX: Final = 8
LIMIT_MODELS_MAX: Final = 20
NAMELESS: Final = "API key"

Window: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(WINDOWS), "examples": ["day"]})]
KeyName: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]
KeyModels: TypeAlias = Annotated[list[str], msgspec.Meta(examples=[["studio/*"]])]
Scope: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ALL_SCOPES)})]


class LimitGiven(msgspec.Struct, frozen=True):
    """The most credit that may be spent in each window."""

    credits: AmountGiven
    """The credit."""
    window: Window
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""


class KeyLimitGiven(LimitGiven, frozen=True):
    """The most credit that a key may spend in each window, also for some models alone."""

    models: KeyModels | None = None
    """The models that the limit is for: ids, or all of a provider as `studio/*`; null or omitted: every model."""


KeyLimits: TypeAlias = Annotated[list[KeyLimitGiven], msgspec.Meta(max_length=LIMITS_MAX)]


class ApiKeyRequest(msgspec.Struct, frozen=True):
    """The API key to create."""

    name: Annotated[KeyName | None, msgspec.Meta(examples=["server"])] = None
    """A name of your choice; null, blank or omitted: `API key`."""
    scopes: list[Scope] | None = None
    """What the key may do; null or omitted: `tasks:read` and `tasks:write`."""
    expires_at: Time | None = None
    """From when on the key is refused, later than now; null or omitted: it does not expire."""
    models: KeyModels | None = None
    """The models that new tasks may use: ids, or all of a provider as `studio/*`; null or omitted: every model."""
    limit: LimitGiven | None = None
    """What the key may spend, as one of `limits` for every model; null or omitted: as much as the account has."""
    limits: KeyLimits | None = None
    """All of its limits, instead of `limit`, each for another window or other models; null or omitted: none."""
    max_credits_per_task: AmountGiven | None = None
    """The most credit that may be held for each of its tasks; null or omitted: any."""


class ApiKeyChange(msgspec.Struct, frozen=True):
    """What to change of an API key; what is omitted stays."""

    name: Annotated[KeyName | msgspec.UnsetType, msgspec.Meta(examples=["server"])] = msgspec.UNSET
    """A name of your choice; blank: `API key`."""
    expires_at: Time | msgspec.UnsetType | None = msgspec.UNSET
    """From when on the key is refused, later than now; null: it does not expire."""
    models: KeyModels | msgspec.UnsetType | None = msgspec.UNSET
    """The models that new tasks may use: ids, or all of a provider as `studio/*`; null: every model."""
    limit: LimitGiven | msgspec.UnsetType | None = msgspec.UNSET
    """What the key may spend, with what it has spent already, instead of all its `limits`; null: any amount."""
    limits: KeyLimits | msgspec.UnsetType | None = msgspec.UNSET
    """All of its limits, instead of `limit`; null or empty: it may spend as much as the account has."""
    max_credits_per_task: AmountGiven | msgspec.UnsetType | None = msgspec.UNSET
    """The most credit that may be held for each task that it creates from now on; null: any."""
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the key is refused until it is false again."""


class LimitsRequest(msgspec.Struct, frozen=True):
    """The limits of the whole account. Those of before are replaced."""

    limits: list[LimitGiven]
    """The limits, at most one for each kind of window; empty: none."""


class KeyLimit(msgspec.Struct, frozen=True):
    """A limit of a key, and what is spent of it."""

    credits: Amount
    """The most that may be spent in each window."""
    window: LimitWindow
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""
    models: list[str] | None
    """The models that it is for, with `/*` for all of a provider; null: every model."""
    spent: Amount | None
    """What is captured and held for such tasks created in the current window; null of a revoked key."""
    resets_at: Time | None
    """When the current window ends; null for `total`, and of a revoked key."""


class ApiKeyFacts(msgspec.Struct, frozen=True):
    """An API key without its secret."""

    api_key_id: str
    """The key's id, `key_…`."""
    api_key_prefix: str
    """The first 12 characters of the secret, to tell keys apart."""
    name: str
    """The name given to the key; `API key` if none was."""
    scopes: list[Scope]
    """What the key may do."""
    created_at: Time
    """When the key was created."""
    created_by: str | None
    """The API key that has made it, `key_…`; null: the account's owner has."""
    expires_at: Time | None
    """From when on the key is refused; null: it does not expire."""
    paused: bool
    """Whether the key is refused until its owner changes that."""
    models: list[str] | None
    """The models that new tasks may use, with `/*` for all of a provider; null: every model."""
    limit: SpendingLimit | None
    """The longest one of `limits` for every model; null: it has none."""
    spent: Amount | None
    """What is captured and held for the tasks that the key created in the limit's current window; null without a
    limit, and of a revoked key.
    """
    resets_at: Time | None
    """When the current window ends; null without a limit, for `total`, and of a revoked key."""
    limits: list[KeyLimit]
    """All limits of the key, the shortest window first; empty: it may spend as much as the account has."""
    max_credits_per_task: Amount | None
    """The most credit that may be held for each of its tasks; null: any."""


class ApiKeySecret(ApiKeyFacts, frozen=True):
    """A new API key."""

    api_key: str
    """The secret, `hk_…`; it is returned only here."""


class ApiKeyBody(ApiKeyFacts, frozen=True):
    """An API key without its secret."""

    last_used_at: Time | None
    """When the key was used last, to about a minute; null before its first use."""
    revoked_at: Time | None
    """When the key was revoked; null while it is valid."""


class ApiKeyList(msgspec.Struct, frozen=True):
    """Every API key of the account, newest first."""

    data: list[ApiKeyBody]
    """The keys, newest first."""


class ApiKeyRevokedBody(msgspec.Struct, frozen=True):
    """The API key is revoked."""

    api_key_id: str
    """The key's id, `key_…`."""
    revoked_at: Time
    """Since when the key is refused."""
    made_keys: list[str]
    """The keys that were revoked with it, which it has made or which were made by these."""


class AccountLimit(msgspec.Struct, frozen=True):
    """The limit of the whole account in a kind of window. The lower one of `credits` and `ceiling` counts."""

    window: LimitWindow
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""
    credits: Amount | None
    """The most that may be spent, as the owner has set it; null: the owner has not."""
    ceiling: Amount | None
    """The most that an operator allows; null: any."""
    spent: Amount
    """What is captured and held for the tasks created in the current window."""
    resets_at: Time | None
    """When the current window ends; null for `total`."""


class AccountLimitList(msgspec.Struct, frozen=True):
    """The limits of the whole account."""

    limits: list[AccountLimit]
    """The limits, the shortest window first."""


_MADE_KEYS: Final = Parameter(
    "made_keys",
    "query",
    "Whether to revoke the keys that it has made, too, and those that were made by these.",
    schema={"type": "boolean", "default": False},
)


@route(
    "POST",
    "/v2/control/api-keys",
    summary="Create an API key; only this response has its secret",
    auth=Auth.SESSION_OR_KEY,
    scope=KEYS_WRITE,
    body=ApiKeyRequest,
    reply=ApiKeySecret,
    errors=("api_key_limit_reached", "model_not_found", "invalid_amount", "exceeds_calling_key"),
)
async def create_api_key(call: Call) -> Outcome:
    """Only a hash of the secret is stored, so it cannot be shown again.

    An API key gives the new one no more than it has: no other scopes or models, no later end, and what it gives of
    its own limit it has no longer.
    """
    wanted = call.body(ApiKeyRequest)
    scopes = SCOPES if wanted.scopes is None else tuple(dict.fromkeys(wanted.scopes))
    unknown = [scope for scope in scopes if scope not in ALL_SCOPES]
    if unknown or not scopes:
        found = f"The scope {shown(unknown[0])} does not exist" if unknown else "The list of scopes is empty"
        message = f"{found}; the scopes are {', '.join(ALL_SCOPES)}."
        return Refusal(code="invalid_parameter", message=message, param="scopes")
    account_id = call.known_key.account_id
    stored = await call.read(lambda rows: len(api_keys_of_account(rows, account_id)))
    if stored >= STORED_KEYS_MAX:
        return Refusal(
            code="api_key_limit_reached",
            message=f"This account has {stored} API keys with the revoked ones, the most allowed; "
            f"all but the newest {REVOKED_KEYS_MAX} revoked ones are deleted within minutes.",
        )
    given = _read_given(call, wanted)
    if isinstance(given, Refusal):
        return given
    changes, limits = given
    terms = KeyTerms(NAMELESS, scopes)._replace(**changes)
    minted = mint_api_key(account_id, live=call.deps.settings.env == "production")
    command = CreateApiKey(new_id("key"), minted.sha256, minted.prefix, terms, *_in_row(limits or ()))
    created = await call.act(command)
    if isinstance(created, Refusal):
        return created
    facts = api_key_facts(created, call.known_key.key_id or None, spendings_of_key(created))
    return render(ApiKeySecret, created, created.terms, api_key=minted.secret, **facts)


@route(
    "GET",
    "/v2/control/api-keys",
    summary="List the account's API keys; newest first",
    auth=Auth.SESSION_OR_KEY,
    scope=KEYS_READ,
    reply=ApiKeyList,
)
async def list_api_keys(call: Call) -> Outcome:
    """Revoked keys are listed with the time of their revocation."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return ApiKeyList(await call.read(partial(shown_api_keys, account_id=account_id, now=call.deps.now())))


@route(
    "PATCH",
    "/v2/control/api-keys/{api_key_id}",
    summary="Change an API key; effective with the next request",
    auth=Auth.SESSION_OR_KEY,
    scope=KEYS_WRITE,
    body=ApiKeyChange,
    reply=ApiKeyBody,
    errors=(
        "api_key_not_found", "api_key_revoked", "model_not_found", "invalid_amount", "not_made_by_key",
        "exceeds_calling_key",
    ),
)  # fmt: skip
async def change_api_key(call: Call) -> Outcome:
    """What was held and captured for the key's tasks counts in a new limit too.

    An API key changes only keys that it has made, and those that were made by these, to no more than it has.
    """
    wanted, account_id, key_id = call.body(ApiKeyChange), call.known_key.account_id, call.path["api_key_id"]
    given = _read_given(call, wanted)
    if isinstance(given, Refusal):
        return given
    key = await call.read(partial(find_api_key, account_id=account_id, key_id=key_id))
    if key is None:
        return _not_found(key_id)
    if key.revoked_at is not None:
        return Refusal(code="api_key_revoked", message=f"The API key {shown(key_id)} was revoked.")
    changes, limits = given
    of_key = (limits, ()) if limits is msgspec.UNSET else _in_row(limits)
    changed = await call.act(ChangeApiKey(key_id, changes, *of_key))
    if isinstance(changed, Refusal):
        return changed
    keys = await call.read(partial(shown_api_keys, account_id=account_id, now=call.deps.now()))
    return next(key for key in keys if key.api_key_id == key_id)


@route(
    "DELETE",
    "/v2/control/api-keys/{api_key_id}",
    summary="Revoke an API key; effective with the next request",
    auth=Auth.SESSION_OR_KEY,
    scope=KEYS_WRITE,
    reply=ApiKeyRevokedBody,
    parameters=(_MADE_KEYS,),
    errors=("api_key_not_found", "not_made_by_key"),
)
async def revoke_api_key(call: Call) -> Outcome:
    """A key that is revoked already is returned unchanged. The keys that it has made work on, unless `made_keys`.

    An API key revokes only keys that it has made, and those that were made by these.
    """
    key_id, account_id = call.path["api_key_id"], call.known_key.account_id
    with_made = _read_made_keys(call)
    if isinstance(with_made, Refusal):
        return with_made
    key = await call.read(partial(find_api_key, account_id=account_id, key_id=key_id))
    if key is None:
        return _not_found(key_id)
    revoked_at, made = key.revoked_at, []
    if with_made:
        done = await call.act(RevokeWithMade(key_id))
        if isinstance(done, Refusal) and not (revoked_at and done.code == "api_key_not_found"):
            return done
        rows = () if isinstance(done, Refusal) else done.rows
        made = [row.key_id for row in rows if row.key_id != key_id]
        revoked_at = next((row.revoked_at for row in rows if row.key_id == key_id), revoked_at)
    elif revoked_at is None:
        revoked = await call.act(RevokeApiKey(key_id=key_id))
        if isinstance(revoked, Refusal):
            return revoked
        revoked_at = revoked.revoked_at
    assert revoked_at is not None
    return ApiKeyRevokedBody(api_key_id=key_id, revoked_at=format_time(revoked_at), made_keys=made)


@route(
    "GET",
    "/v2/control/limits",
    summary="Retrieve the limits of the whole account; with what is spent of them",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=AccountLimitList,
)
async def read_limits(call: Call) -> Outcome:
    """The limits of the account of the credential; those of its API keys are listed with them."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return await call.read(partial(shown_limits, account_id=account_id, now=call.deps.now()))


@route(
    "PUT",
    "/v2/control/limits",
    summary="Replace the limits of the whole account; effective with the next request",
    auth=Auth.SESSION_OR_KEY,
    scope=LIMITS_WRITE,
    body=LimitsRequest,
    reply=AccountLimitList,
    errors=("invalid_amount", "limit_above_ceiling", "exceeds_calling_key"),
)
async def set_limits(call: Call) -> Outcome:
    """What was held and captured in each window before counts too. An operator's ceiling stays.

    An API key that has a limit raises none above its own.
    """
    account_id, limits = call.known_key.account_id, []
    for index, wanted in enumerate(call.body(LimitsRequest).limits):
        limit = _read_limit(wanted, f"limits[{index}]")
        if isinstance(limit, Refusal):
            return limit
        limits.append(limit)
    windows = [each.window for each in limits]
    twice = next((each for each in windows if windows.count(each) > 1), None)
    if twice is not None:
        return invalid_parameter("limits", f"has the window {twice} more than once")
    done = await call.act(SetLimits(tuple(limits)))
    if isinstance(done, Refusal):
        return done
    return await call.read(partial(shown_limits, account_id=account_id, now=call.deps.now()))


def shown_api_keys(rows: Connection, account_id: str, *, now: datetime) -> list[ApiKeyBody]:
    """Return all keys of an account, with what is spent of their limits."""
    keys, spending = keys_with_spending(rows, account_id)
    spending.advance(now)
    return [
        render(ApiKeyBody, key, key.terms, **api_key_facts(key, maker, spending.of_key(key.key_id)))
        for key, maker in keys
    ]


def shown_limits(rows: Connection, account_id: str, *, now: datetime) -> AccountLimitList:
    """Return the limits of a whole account, and what is spent of them."""
    spending = spending_of_account(rows, account_id)
    spending.advance(now)
    of_account = spending.of_account()
    found = [of_account[window] for window in WINDOWS if window in of_account]
    limits = []
    for each in found:
        amount = None if each.limit_micro is None else format_amount(each.limit_micro)
        limits.append(render(AccountLimit, each, credits=amount))
    return AccountLimitList(limits)


def api_key_facts(key: ApiKeyRecord, maker: str | None, spendings: Sequence[Spending]) -> dict[str, object]:
    """Return the fields of an API key that are not those of its record: who made it, what is spent of limits."""
    limit, of_kind = None, {each.kind: each for each in spendings}
    if key.limit_micro is not None and key.limit_window is not None:
        limit = SpendingLimit(format_amount(key.limit_micro), key.limit_window)
    spending = None if limit is None else of_kind.get((limit.window, ()))
    return {
        "api_key_id": key.key_id,
        "api_key_prefix": key.prefix,
        "created_by": maker,
        "paused": key.terms.is_paused,
        "models": list(key.terms.models) or None,
        "limit": limit,
        "spent": None if spending is None else format_amount(spending.spent_micro),
        "resets_at": None if spending is None else spending.resets_at,
        "limits": [_key_limit(each, of_kind.get(each.kind)) for each in sorted(key.limits, key=_in_order)],
    }


def _key_limit(limit: Limit, spending: Spending | None) -> KeyLimit:
    return KeyLimit(
        format_amount(limit.credits_micro),
        limit.window,
        list(limit.models) or None,
        None if spending is None else format_amount(spending.spent_micro),
        None if spending is None else time_or_none(spending.resets_at),
    )


def _in_order(limit: Limit) -> tuple[int, tuple[str, ...]]:
    """Return the place of a limit among those of a key: by its window, for every model before others."""
    return WINDOWS.index(limit.window), limit.models


def _in_row(limits: Iterable[Limit]) -> tuple[Limit | None, tuple[Limit, ...]]:
    """Return the longest limit for every model, which a key's row has, and the others."""
    in_order = sorted(limits, key=_in_order)
    found = next((each for each in reversed(in_order) if not each.models), None)
    return found, tuple(each for each in in_order if each is not found)


def read_limit_window(window: str, param: str) -> LimitWindow | Refusal:
    """Read a kind of window. Refuses with ``invalid_parameter``."""
    if window in WINDOWS:
        return window
    return invalid_parameter(param, f"must be one of {', '.join(WINDOWS)}", window)


def _read_limit(sent: LimitGiven, param: str) -> Limit | Refusal:
    window = read_limit_window(sent.window, f"{param}.window")
    if isinstance(window, Refusal):
        return window
    credits_micro = read_amount(sent.credits, param=f"{param}.credits")
    return credits_micro if isinstance(credits_micro, Refusal) else Limit(credits_micro, window)


def _read_given(
    call: Call, wanted: ApiKeyRequest | ApiKeyChange
) -> tuple[KeyChanges, tuple[Limit, ...] | msgspec.UnsetType] | Refusal:
    """Return the terms that a request gives, and the limits."""
    changes: KeyChanges = {}
    if wanted.name is not msgspec.UNSET:
        name = _read_name(wanted.name or "")
        if isinstance(name, Refusal):
            return name
        changes["name"] = name
    if wanted.expires_at is not msgspec.UNSET:
        expires_at = read_given_time("expires_at", wanted.expires_at, after=call.deps.now())
        if isinstance(expires_at, Refusal):
            return expires_at
        changes["expires_at"] = expires_at
    if wanted.models is not msgspec.UNSET:
        models = _read_models(wanted.models, call.deps.catalog().models)
        if isinstance(models, Refusal):
            return models
        changes["models"] = models
    if isinstance(wanted, ApiKeyChange) and wanted.paused is not msgspec.UNSET:
        changes["is_paused"] = wanted.paused
    if wanted.max_credits_per_task is None:
        changes["max_credits_per_task_micro"] = None
    elif wanted.max_credits_per_task is not msgspec.UNSET:
        most_micro = read_amount(wanted.max_credits_per_task, param="max_credits_per_task")
        if isinstance(most_micro, Refusal):
            return most_micro
        changes["max_credits_per_task_micro"] = most_micro
    limits = _read_key_limits(call, wanted)
    return limits if isinstance(limits, Refusal) else (changes, limits)


def _read_key_limits(
    call: Call, wanted: ApiKeyRequest | ApiKeyChange
) -> tuple[Limit, ...] | msgspec.UnsetType | Refusal:
    """Read ``limit`` or ``limits``, of which a request has one at most."""
    if wanted.limit and wanted.limits:
        return invalid_parameter("limits", "cannot be sent with limit, which is one of them")
    if isinstance(wanted.limit, LimitGiven):
        limit = _read_limit(wanted.limit, "limit")
        return limit if isinstance(limit, Refusal) else (limit,)
    if not isinstance(wanted.limits, list):
        is_unset = wanted.limit is msgspec.UNSET and wanted.limits is msgspec.UNSET
        return msgspec.UNSET if is_unset else ()
    limits: dict[LimitKind, Limit] = {}
    for index, each in enumerate(wanted.limits):
        param = f"limits[{index}]"
        limit = _read_limit(each, param)
        if isinstance(limit, Refusal):
            return limit
        models = _read_models(each.models, call.deps.catalog().models, f"{param}.models", LIMIT_MODELS_MAX)
        if isinstance(models, Refusal):
            return models
        limit = msgspec.structs.replace(limit, models=tuple(sorted(models)))
        if limit.kind in limits:
            return invalid_parameter("limits", f"has the window {limit.window} twice for the same models")
        limits[limit.kind] = limit
    return tuple(limits.values())


def _read_made_keys(call: Call) -> bool | Refusal:
    sent = call.query().get("made_keys", ["false"])
    if sent in (["true"], ["false"]):
        return sent == ["true"]
    return invalid_parameter("made_keys", "must be true or false, once")


def _read_name(sent: str) -> str | Refusal:
    name = sent.strip()
    if not name.isprintable():
        message = f"The name {shown(name)} has unprintable characters."
        return Refusal(code="invalid_parameter", message=message, param="name")
    return name or NAMELESS


def _read_models(
    sent: list[str] | None, known: Mapping[str, Model], param: str = "models", most: int = MODELS_MAX
) -> tuple[str, ...] | Refusal:
    """Read the models of a key or limit; each is in the catalog, or a pattern for some of it. None: every one."""
    if sent is None:
        return ()
    models = tuple(dict.fromkeys(sent))
    if not 0 < len(models) <= most:
        return invalid_parameter(param, f"must have 1 to {most} models; null is every model")
    for each in models:
        if not any(matches(each, model_id) for model_id in known):
            what = "No model's id begins as" if each.endswith(OF_PROVIDER) else "There is no model"
            message = f"{what} {shown(each)}. {some_models(each, known)}"
            return Refusal(code="model_not_found", message=message, param=param)
    return models


def _not_found(key_id: str) -> Refusal:
    return Refusal(code="api_key_not_found", message=f"The API key {shown(key_id)} does not exist.")
