"""Limits of what a key, a group of keys or the whole account may spend: in bodies, and those of the account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Final, TypeAlias

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import SetLimits
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import invalid_parameter, read_amount, shown
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.ledger.api_keys import ACCOUNT_READ, LIMITS_WRITE, OF_PROVIDER, matches
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.pricing import some_models
from holdfast.ledger.credit.limits import WINDOWS, Limit, LimitKind, Spending
from holdfast.ledger.public_types import Amount, LimitWindow, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, time_or_none
from holdfast.persistence.queries.spending import spending_of_account

route = RouteTable("API keys", auth=Auth.SESSION_OR_KEY)

MODELS_MAX: Final = 100
LIMITS_MAX: Final = 8
LIMIT_MODELS_MAX: Final = 20

Window: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(WINDOWS), "examples": ["day"]})]
KeyModels: TypeAlias = Annotated[list[str], msgspec.Meta(examples=[["studio/*"]])]


class LimitGiven(msgspec.Struct, frozen=True):
    """The most credit that may be spent in each window."""

    credits: AmountGiven
    """The credit."""
    window: Window
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""


class KeyLimitGiven(LimitGiven, frozen=True):
    """The most credit that a key or key group may spend in each window, also for some models alone."""

    models: KeyModels | None = None
    """The models that the limit is for: ids, or all of a provider as `studio/*`; null or omitted: every model."""


KeyLimits: TypeAlias = Annotated[list[KeyLimitGiven], msgspec.Meta(max_length=LIMITS_MAX)]


class LimitsRequest(msgspec.Struct, frozen=True):
    """The limits of the whole account. Those of before are replaced."""

    limits: list[LimitGiven]
    """The limits, at most one for each kind of window; empty: none."""


class KeyLimit(msgspec.Struct, frozen=True):
    """A limit of a key or key group, and what is spent of it."""

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


@route(
    "GET",
    "/v2/control/limits",
    summary="Retrieve the limits of the whole account; with what is spent of them",
    scope=ACCOUNT_READ,
    reply=AccountLimitList,
)
async def read_limits(call: Call) -> Outcome:
    """The limits of the account of the credential; those of its API keys and key groups are listed with these."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return await call.read(partial(shown_limits, account_id=account_id, now=call.deps.now()))


@route(
    "PUT",
    "/v2/control/limits",
    summary="Replace the limits of the whole account; effective with the next request",
    scope=LIMITS_WRITE,
    body=LimitsRequest,
    reply=AccountLimitList,
    errors=("invalid_amount", "limit_above_ceiling", "exceeds_calling_key"),
)
async def set_limits(call: Call) -> Outcome:
    """What was held and captured in each window before counts too. An operator's ceiling stays.

    An API key raises none above its own limits and those of its group.
    """
    account_id, limits = call.known_key.account_id, []
    for index, wanted in enumerate(call.body(LimitsRequest).limits):
        limit = read_limit(wanted, f"limits[{index}]")
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


def key_limits(limits: Iterable[Limit], spendings: Iterable[Spending]) -> list[KeyLimit]:
    """Return the limits of a key or group, and what is spent of those that ``spendings`` has."""
    of_kind = {each.kind: each for each in spendings}
    return [_key_limit(each, of_kind.get(each.kind)) for each in sorted(limits, key=in_order)]


def _key_limit(limit: Limit, spending: Spending | None) -> KeyLimit:
    return KeyLimit(
        format_amount(limit.credits_micro),
        limit.window,
        list(limit.models) or None,
        None if spending is None else format_amount(spending.spent_micro),
        None if spending is None else time_or_none(spending.resets_at),
    )


def in_order(limit: Limit) -> tuple[int, tuple[str, ...]]:
    """Return what the limits of a key are sorted by: the window, and for every model before others."""
    return WINDOWS.index(limit.window), limit.models


def read_limit_window(window: str, param: str) -> LimitWindow | Refusal:
    """Read a kind of window. Refuses with ``invalid_parameter``."""
    if window in WINDOWS:
        return window
    return invalid_parameter(param, f"must be one of {', '.join(WINDOWS)}", window)


def read_limit(sent: LimitGiven, param: str) -> Limit | Refusal:
    """Read a limit for every model. Refuses with ``invalid_amount``, ``invalid_parameter``."""
    window = read_limit_window(sent.window, f"{param}.window")
    if isinstance(window, Refusal):
        return window
    credits_micro = read_amount(sent.credits, param=f"{param}.credits")
    return credits_micro if isinstance(credits_micro, Refusal) else Limit(credits_micro, window)


def read_key_limits(call: Call, sent: Iterable[KeyLimitGiven]) -> tuple[Limit, ...] | Refusal:
    """Read all limits of a key or group. Refuses with ``invalid_amount``, ``model_not_found``, or a parameter."""
    limits: dict[LimitKind, Limit] = {}
    for index, each in enumerate(sent):
        param = f"limits[{index}]"
        limit = read_limit(each, param)
        if isinstance(limit, Refusal):
            return limit
        models = read_models(each.models, call.deps.registry.catalog.models, f"{param}.models", LIMIT_MODELS_MAX)
        if isinstance(models, Refusal):
            return models
        limit = msgspec.structs.replace(limit, models=tuple(sorted(models)))
        if limit.kind in limits:
            return invalid_parameter("limits", f"has the window {limit.window} twice for the same models")
        limits[limit.kind] = limit
    return tuple(limits.values())


def read_models(
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
