"""The account's API keys: what each may do, spend and has spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
)
from holdfast.http.endpoints.limits import (
    KeyLimit,
    KeyLimits,
    KeyModels,
    LimitGiven,
    in_order,
    key_limits,
    read_key_limits,
    read_limit,
    read_models,
)
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.values import invalid_parameter, read_amount, read_given_time, shown
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.ledger.api_keys import (
    ALL_SCOPES,
    KEYS_READ,
    KEYS_WRITE,
    SCOPES,
    KeyChanges,
    KeyTerms,
)
from holdfast.ledger.credit.limits import Limit, Spending
from holdfast.ledger.public_types import Amount, SpendingLimit, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, format_time, new_id
from holdfast.persistence.claims.expired import REVOKED_KEYS_MAX
from holdfast.persistence.queries.credentials import api_keys_of_account, find_api_key, find_group
from holdfast.persistence.queries.spending import OwnedKey, keys_with_spending, spendings_of_key

route = RouteTable("API keys", auth=Auth.SESSION_OR_KEY)

STORED_KEYS_MAX: Final = 500
"""The most keys of an account. It is met only by one that revokes hundreds between two sweeps of the oldest."""
NAMELESS: Final = "API key"

GroupId: TypeAlias = Annotated[str, msgspec.Meta(examples=["grp_0199f3c2a1b4c5d6e7f8a9b0c1d2e3f4"])]
KeyName: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]
Scope: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ALL_SCOPES)})]


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
    group_id: GroupId | None = None
    """The key group whose limits it shares, `grp_…`; null or omitted: that of the key that makes it."""
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
    group_id: GroupId | msgspec.UnsetType | None = msgspec.UNSET
    """The key group whose limits it shares, which count what it has spent before; null: none."""
    max_credits_per_task: AmountGiven | msgspec.UnsetType | None = msgspec.UNSET
    """The most credit that may be held for each task that it creates from now on; null: any."""
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the key is refused until it is false again."""


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
    group_id: str | None
    """The key group whose limits it shares, `grp_…`; null: none."""
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
    scope=KEYS_WRITE,
    body=ApiKeyRequest,
    reply=ApiKeySecret,
    errors=(
        "api_key_limit_reached",
        "model_not_found",
        "invalid_amount",
        "key_group_not_found",
        "exceeds_calling_key",
    ),
)
async def create_api_key(call: Call) -> Outcome:
    """Only a hash of the secret is stored, so it cannot be shown again.

    An API key gives the new one no more than it has: no other scopes or models, no later end, no other group,
    and what it gives of its own limit it has no longer.
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
    terms = msgspec.structs.replace(KeyTerms(NAMELESS, scopes), **changes)
    minted = mint_api_key(account_id, live=call.deps.settings.env == "production")
    command = CreateApiKey(
        new_id("key"), minted.sha256, minted.prefix, terms, *_in_row(limits or ()), group_id=wanted.group_id
    )
    created = await call.act(command)
    if isinstance(created, Refusal):
        return created
    group_id = await call.read(partial(find_group, account_id=account_id, key_id=created.key_id))
    owned = OwnedKey(created, call.known_key.key_id or None, group_id)
    facts = _facts(owned, spendings_of_key(created))
    return render(ApiKeySecret, created, created.terms, api_key=minted.secret, **facts)


@route(
    "GET",
    "/v2/control/api-keys",
    summary="List the account's API keys; newest first",
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
    scope=KEYS_WRITE,
    body=ApiKeyChange,
    reply=ApiKeyBody,
    errors=(
        "api_key_not_found", "api_key_revoked", "model_not_found", "invalid_amount", "key_group_not_found",
        "not_made_by_key", "exceeds_calling_key",
    ),
)  # fmt: skip
async def change_api_key(call: Call) -> Outcome:
    """What was held and captured for the key's tasks counts in a new limit too.

    An API key changes only keys that it has made, and those that were made by these, to no more than it has.
    It takes none out of a key group.
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
    limit, more = (limits, ()) if limits is msgspec.UNSET else _in_row(limits)
    changed = await call.act(ChangeApiKey(key_id, changes, limit, more, wanted.group_id))
    if isinstance(changed, Refusal):
        return changed
    keys = await call.read(partial(shown_api_keys, account_id=account_id, now=call.deps.now()))
    return next(key for key in keys if key.api_key_id == key_id)


@route(
    "DELETE",
    "/v2/control/api-keys/{api_key_id}",
    summary="Revoke an API key; effective with the next request",
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


def shown_api_keys(rows: Connection, account_id: str, *, now: datetime) -> list[ApiKeyBody]:
    """Return all keys of an account, with what is spent of their limits."""
    keys, spending = keys_with_spending(rows, account_id)
    spending.advance(now)
    return [
        render(ApiKeyBody, each.key, each.key.terms, **_facts(each, spending.of(each.key.key_id))) for each in keys
    ]


def _facts(owned: OwnedKey, spendings: Sequence[Spending]) -> dict[str, object]:
    """Return the fields of an API key that are not those of its record: who made it, what is spent of limits."""
    key, limit, of_kind = owned.key, None, {each.kind: each for each in spendings}
    if key.limit_micro is not None and key.limit_window is not None:
        limit = SpendingLimit(format_amount(key.limit_micro), key.limit_window)
    spending = None if limit is None else of_kind.get((limit.window, ()))
    return {
        "api_key_id": key.key_id,
        "api_key_prefix": key.prefix,
        "created_by": owned.maker,
        "group_id": owned.group_id,
        "paused": key.terms.is_paused,
        "models": list(key.terms.models) or None,
        "limit": limit,
        "spent": None if spending is None else format_amount(spending.spent_micro),
        "resets_at": None if spending is None else spending.resets_at,
        "limits": key_limits(key.limits, spendings),
    }


def _read_given(
    call: Call, wanted: ApiKeyRequest | ApiKeyChange
) -> tuple[KeyChanges, tuple[Limit, ...] | msgspec.UnsetType] | Refusal:
    """Return the terms that a request gives, and the limits."""
    changes: KeyChanges = {}
    if wanted.name is not msgspec.UNSET:
        name = read_name(wanted.name, NAMELESS)
        if isinstance(name, Refusal):
            return name
        changes["name"] = name
    if wanted.expires_at is not msgspec.UNSET:
        expires_at = read_given_time("expires_at", wanted.expires_at, after=call.deps.now())
        if isinstance(expires_at, Refusal):
            return expires_at
        changes["expires_at"] = expires_at
    if wanted.models is not msgspec.UNSET:
        models = read_models(wanted.models, call.deps.registry.catalog.models)
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
    limits = _read_limits(call, wanted)
    return limits if isinstance(limits, Refusal) else (changes, limits)


def _read_limits(
    call: Call, wanted: ApiKeyRequest | ApiKeyChange
) -> tuple[Limit, ...] | msgspec.UnsetType | Refusal:
    """Read ``limit`` or ``limits``, of which a request has one at most."""
    if wanted.limit and wanted.limits:
        return invalid_parameter("limits", "cannot be sent with limit, which is one of them")
    if isinstance(wanted.limit, LimitGiven):
        limit = read_limit(wanted.limit, "limit")
        return limit if isinstance(limit, Refusal) else (limit,)
    if isinstance(wanted.limits, list):
        return read_key_limits(call, wanted.limits)
    is_unset = wanted.limit is msgspec.UNSET and wanted.limits is msgspec.UNSET
    return msgspec.UNSET if is_unset else ()


def _in_row(limits: Iterable[Limit]) -> tuple[Limit | None, tuple[Limit, ...]]:
    """Return the longest limit for every model, which a key's row has, and the others."""
    ordered = sorted(limits, key=in_order)
    found = next((each for each in reversed(ordered) if not each.models), None)
    return found, tuple(each for each in ordered if each is not found)


def _read_made_keys(call: Call) -> bool | Refusal:
    sent = call.query().get("made_keys", ["false"])
    if sent in (["true"], ["false"]):
        return sent == ["true"]
    return invalid_parameter("made_keys", "must be true or false, once")


def read_name(sent: str | None, nameless: str) -> str | Refusal:
    """Read the name of a key or group; blank or None: ``nameless``."""
    name = (sent or "").strip()
    if not name.isprintable():
        message = f"The name {shown(name)} has unprintable characters."
        return Refusal(code="invalid_parameter", message=message, param="name")
    return name or nameless


def _not_found(key_id: str) -> Refusal:
    return Refusal(code="api_key_not_found", message=f"The API key {shown(key_id)} does not exist.")
