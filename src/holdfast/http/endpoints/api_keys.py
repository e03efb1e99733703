"""The account's API keys, and the limits of what a key or the whole account may spend."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import ChangeApiKey, CreateApiKey, RevokeApiKey, SetLimits
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import ACCOUNT_READ, ALL_SCOPES, SCOPES, mint_api_key
from holdfast.http.kit.listing import read_given_time
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter, read_amount, shown
from holdfast.http.schemas.common import (
    AccountLimitList,
    ApiKeyBody,
    ApiKeyChange,
    ApiKeyList,
    ApiKeyRequest,
    ApiKeyRevokedBody,
    ApiKeySecret,
    LimitGiven,
    LimitsRequest,
    account_limits_body,
    api_key_body,
    api_key_facts,
    render,
)
from holdfast.ledger.api_keys import OF_PROVIDER, matches
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.quotes import some_models
from holdfast.ledger.credit.limits import WINDOWS, Limit
from holdfast.ledger.ids import new_id
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.expired import REVOKED_KEYS_MAX
from holdfast.persistence.queries.credentials import api_keys_of_account, find_api_key
from holdfast.persistence.queries.spending import keys_with_spending, spending_of_account, spending_of_key

route = RouteTable("Account")

STORED_KEYS_MAX: Final = 500
"""The most keys of an account. It is met only by one that revokes hundreds between two sweeps of the oldest."""
MODELS_MAX: Final = 100


@route(
    "POST",
    "/v2/control/api-keys",
    summary="Create an API key; only this response has its secret",
    auth=Auth.SESSION,
    body=ApiKeyRequest,
    reply=ApiKeySecret,
    errors=("api_key_limit_reached", "model_not_found", "invalid_amount"),
)
async def create_api_key(call: Call) -> Outcome:
    """Only a hash of the secret is stored, so it cannot be shown again."""
    wanted = call.body(ApiKeyRequest)
    scopes = SCOPES if wanted.scopes is None else tuple(dict.fromkeys(wanted.scopes))
    unknown = [scope for scope in scopes if scope not in ALL_SCOPES]
    if unknown or not scopes:
        found = f"The scope {shown(unknown[0])} does not exist" if unknown else "The list of scopes is empty"
        message = f"{found}; the scopes are {', '.join(ALL_SCOPES)}."
        return Refusal(code="invalid_parameter", message=message, param="scopes")
    account_id = call.session.account_id
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
    minted = mint_api_key(account_id, live=call.deps.settings.env == "production")
    command = CreateApiKey(
        key_id=new_id("key"), secret_sha256=minted.sha256, prefix=minted.prefix, scopes=scopes, **given
    )
    created = await call.ask(call.deps.accounts.ref(account_id), command)
    if isinstance(created, Refusal):
        return created
    return render(ApiKeySecret, created, api_key=minted.secret, **api_key_facts(created, spending_of_key(created)))


@route(
    "GET",
    "/v2/control/api-keys",
    summary="List the account's API keys, newest first",
    auth=Auth.SESSION,
    reply=ApiKeyList,
)
async def list_api_keys(call: Call) -> Outcome:
    """Revoked keys are listed with the time of their revocation."""
    account_id, now = call.session.account_id, call.deps.now()
    return ApiKeyList(await call.read(partial(shown_api_keys, account_id=account_id, now=now)))


@route(
    "PATCH",
    "/v2/control/api-keys/{api_key_id}",
    summary="Change an API key, effective with the next request",
    auth=Auth.SESSION,
    body=ApiKeyChange,
    reply=ApiKeyBody,
    errors=("api_key_not_found", "api_key_revoked", "model_not_found", "invalid_amount"),
)
async def change_api_key(call: Call) -> Outcome:
    """What was held and captured for the key's tasks counts in a new limit too."""
    wanted, account_id, key_id = call.body(ApiKeyChange), call.session.account_id, call.path["api_key_id"]
    given = _read_given(call, wanted)
    if isinstance(given, Refusal):
        return given
    key = await call.read(partial(find_api_key, account_id=account_id, key_id=key_id))
    if key is None:
        return _not_found(key_id)
    if key.revoked_at is not None:
        return Refusal(code="api_key_revoked", message=f"The API key {shown(key_id)} was revoked.")
    command = ChangeApiKey(key_id=key_id, is_paused=wanted.paused, **given)
    changed = await call.ask(call.deps.accounts.ref(account_id), command)
    if isinstance(changed, Refusal):
        return changed
    keys = await call.read(partial(shown_api_keys, account_id=account_id, now=call.deps.now()))
    return next(key for key in keys if key.api_key_id == key_id)


@route(
    "DELETE",
    "/v2/control/api-keys/{api_key_id}",
    summary="Revoke an API key, effective with the next request",
    auth=Auth.SESSION,
    reply=ApiKeyRevokedBody,
    errors=("api_key_not_found",),
)
async def revoke_api_key(call: Call) -> Outcome:
    """A key that is revoked already is returned unchanged."""
    key_id, account_id = call.path["api_key_id"], call.session.account_id
    key = await call.read(partial(find_api_key, account_id=account_id, key_id=key_id))
    if key is None:
        return _not_found(key_id)
    if key.revoked_at is not None:
        return render(ApiKeyRevokedBody, key, api_key_id=key_id)
    revoked = await call.ask(call.deps.accounts.ref(account_id), RevokeApiKey(key_id=key_id))
    if isinstance(revoked, Refusal):
        return revoked
    return render(ApiKeyRevokedBody, revoked, api_key_id=key_id)


@route(
    "GET",
    "/v2/control/limits",
    summary="Retrieve the limits of the whole account, and what is spent of them",
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
    summary="Replace the limits of the whole account, effective with the next request",
    auth=Auth.SESSION,
    body=LimitsRequest,
    reply=AccountLimitList,
    errors=("invalid_amount", "limit_above_ceiling"),
)
async def set_limits(call: Call) -> Outcome:
    """What was held and captured in each window before counts too. An operator's ceiling stays."""
    account_id, limits = call.session.account_id, []
    for place, wanted in enumerate(call.body(LimitsRequest).limits):
        limit = _read_limit(wanted, f"limits[{place}]")
        if isinstance(limit, Refusal):
            return limit
        limits.append(limit)
    windows = [each.window for each in limits]
    twice = next((each for each in windows if windows.count(each) > 1), None)
    if twice is not None:
        return invalid_parameter("limits", f"has the window {twice} more than once")
    done = await call.ask(call.deps.accounts.ref(account_id), SetLimits(tuple(limits)))
    if isinstance(done, Refusal):
        return done
    return await call.read(partial(shown_limits, account_id=account_id, now=call.deps.now()))


def shown_api_keys(rows: Connection, account_id: str, *, now: datetime) -> list[ApiKeyBody]:
    """Return all keys of an account, with what is spent of their limits."""
    keys, spending = keys_with_spending(rows, account_id)
    spending.advance(now)
    return [api_key_body(key, spending.of_key(key.key_id)) for key in keys]


def shown_limits(rows: Connection, account_id: str, *, now: datetime) -> AccountLimitList:
    """Return the limits of a whole account, and what is spent of them."""
    spending = spending_of_account(rows, account_id)
    spending.advance(now)
    return account_limits_body(spending)


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


def _read_given(call: Call, wanted: ApiKeyRequest | ApiKeyChange) -> dict[str, Any] | Refusal:
    """Return the fields of a command that a request gives: a name, an expiry, models and a limit."""
    given: dict[str, Any] = {}
    if wanted.name is not msgspec.UNSET:
        given["name"] = _read_name(wanted.name or "")
    if wanted.expires_at is not msgspec.UNSET:
        given["expires_at"] = read_given_time("expires_at", wanted.expires_at, after=call.deps.now())
    if wanted.models is not msgspec.UNSET:
        given["models"] = _read_models(wanted.models, call.deps.catalog().models)
    if wanted.limit is not msgspec.UNSET:
        limit = wanted.limit
        given["limit"] = None if limit is None else _read_limit(limit, "limit")
    return next((each for each in given.values() if isinstance(each, Refusal)), given)


def _read_name(sent: str) -> str | Refusal:
    name = sent.strip()
    if not name.isprintable():
        message = f"The name {shown(name)} has unprintable characters."
        return Refusal(code="invalid_parameter", message=message, param="name")
    return name or "API key"


def _read_models(sent: list[str] | None, known: Mapping[str, Model]) -> tuple[str, ...] | Refusal:
    """Read the models of a key; an id or pattern must be one of, or for, the catalog's. No models: every one."""
    if sent is None:
        return ()
    models = tuple(dict.fromkeys(sent))
    if not 0 < len(models) <= MODELS_MAX:
        return invalid_parameter("models", f"must have 1 to {MODELS_MAX} models; null is every model")
    for each in models:
        if not any(matches(each, model_id) for model_id in known):
            what = "No model's id begins as" if each.endswith(OF_PROVIDER) else "There is no model"
            message = f"{what} {shown(each)}. {some_models(each, known)}"
            return Refusal(code="model_not_found", message=message, param="models")
    return models


def _not_found(key_id: str) -> Refusal:
    return Refusal(code="api_key_not_found", message=f"The API key {shown(key_id)} does not exist.")
