"""What an API key may do, and until when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, TypedDict

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_amount, format_time

TASKS_READ: Final = "tasks:read"
TASKS_WRITE: Final = "tasks:write"
ACCOUNT_READ: Final = "account:read"
USAGE_READ: Final = "usage:read"
FILES_WRITE: Final = "files:write"
KEYS_READ: Final = "keys:read"
KEYS_WRITE: Final = "keys:write"
LIMITS_WRITE: Final = "limits:write"
WEBHOOKS_WRITE: Final = "webhooks:write"
ORDERS_READ: Final = "orders:read"
ORDERS_WRITE: Final = "orders:write"
SCOPES: Final = (TASKS_READ, TASKS_WRITE)
"""What an API key may do if its creator names no scopes."""
ALL_SCOPES: Final = (
    *SCOPES, FILES_WRITE, ACCOUNT_READ, USAGE_READ, ORDERS_READ, ORDERS_WRITE, KEYS_READ, KEYS_WRITE, LIMITS_WRITE,
    WEBHOOKS_WRITE,
)  # fmt: skip
INCLUDED: Final[Mapping[str, str]] = {FILES_WRITE: TASKS_WRITE, ORDERS_READ: ACCOUNT_READ}
"""The scopes that a wider one includes, with that one."""
MAKERS_MAX: Final = 8
"""How many keys may have made one another, one after the other."""
KEY_GROUPS_MAX: Final = 100
"""The most key groups of an account."""
OF_PROVIDER: Final = "/*"
"""The end of a pattern for all models whose ids begin as it does, such as ``studio/*``."""

API_KEY_EXPIRED: Final = Refusal(code="api_key_expired", message="The API key has expired.")
API_KEY_PAUSED: Final = Refusal(code="api_key_paused", message="The API key is paused by its owner.")


def lacking_scope(scope: str) -> Refusal:
    """Return the refusal of a live key without a scope."""
    return Refusal(code="insufficient_scope", message=f"The API key does not have the scope {scope}.")


def has_scope(scopes: Collection[str], scope: str) -> bool:
    """Whether a key with these scopes has one, by itself or in a wider one."""
    return scope in scopes or INCLUDED.get(scope) in scopes


class KeyTerms(msgspec.Struct, frozen=True):
    """What the owner of a key decides about it, but for its limit: each a column of its row, as it is named here.

    Without ``models`` it may use every model, without ``max_credits_per_task_micro`` hold any amount for a task.
    """

    name: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()
    expires_at: datetime | None = None
    is_paused: bool = False
    max_credits_per_task_micro: int | None = None

    def refuse_use(self, now: Now) -> Refusal | None:
        """Refuse a key that cannot be used now: 1. ``api_key_expired``; 2. ``api_key_paused``."""
        if self.expires_at is not None and self.expires_at <= now():
            return API_KEY_EXPIRED
        return API_KEY_PAUSED if self.is_paused else None

    def refuse_excess(self, own: KeyTerms) -> Refusal | None:
        """Refuse these terms for a key that is made or changed by one with the terms ``own``, if they are more.

        Refuses: 1. ``insufficient_scope``; 2. ``exceeds_calling_key``.
        """
        missing = [each for each in self.scopes if not has_scope(own.scopes, each)]
        if missing:
            message = f"The API key does not have the scope {missing[0]}, so it cannot give it."
            return Refusal(code="insufficient_scope", message=message, param="scopes")
        foreign = [each for each in self.models if own.models and not is_model_allowed(own.models, each)]
        if own.models and (foreign or not self.models):
            wanted = repr(foreign[0]) if foreign else "every model"
            return exceeds_calling_key("models", f"{wanted} is more than its {', '.join(own.models)}")
        if own.expires_at is not None and (self.expires_at is None or self.expires_at > own.expires_at):
            return exceeds_calling_key("expires_at", f"it expires at {format_time(own.expires_at)} itself")
        most_micro = own.max_credits_per_task_micro
        given_micro = self.max_credits_per_task_micro
        if most_micro is not None and (given_micro is None or given_micro > most_micro):
            return exceeds_calling_key(
                "max_credits_per_task", f"a task of it may cost {format_amount(most_micro)} at most"
            )
        return None

    def refuse_hold(self, amount_micro: int) -> Refusal | None:
        """Refuse a task that could cost more than each may: 1. ``max_credits_exceeded``."""
        most_micro = self.max_credits_per_task_micro
        if most_micro is None or amount_micro <= most_micro:
            return None
        return Refusal(
            code="max_credits_exceeded",
            message=f"The task can cost {format_amount(amount_micro)} credits; a task of this API key may cost "
            f"{format_amount(most_micro)} at most.",
            required_micro=amount_micro,
            final=True,
        )


class KeyChanges(TypedDict, total=False):
    """The terms that a change of a key gives; the others stay."""

    name: str
    models: tuple[str, ...]
    expires_at: datetime | None
    is_paused: bool
    max_credits_per_task_micro: int | None


def is_model_allowed(models: Iterable[str], model_id: str) -> bool:
    """Whether a key with these models, or patterns of models, may use one. At least one must be given."""
    return any(matches(each, model_id) for each in models)


def matches(model: str, model_id: str) -> bool:
    """Whether a model of a key is this one, or a pattern for it."""
    return model == model_id or (model.endswith(OF_PROVIDER) and model_id.startswith(model[:-1]))


def exceeds_calling_key(param: str, why: str) -> Refusal:
    """Return the refusal of what would give more than the key has that asks for it."""
    message = f"An API key gives no more than it has: {why}."
    return Refusal(code="exceeds_calling_key", message=message, param=param)
