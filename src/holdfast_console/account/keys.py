"""API keys: what each may do, spend and has spent; and the limits of the whole account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.http.endpoints.api_keys import (
    ApiKeyList,
    ApiKeyRequest,
    ApiKeyRevokedBody,
    ApiKeySecret,
    change_api_key,
    create_api_key,
    list_api_keys,
    revoke_api_key,
)
from holdfast.http.endpoints.catalog import list_models
from holdfast.http.endpoints.key_groups import (
    KeyGroupList,
    change_key_group,
    create_key_group,
    delete_key_group,
    list_key_groups,
)
from holdfast.http.endpoints.limits import AccountLimitList, KeyLimit, KeyLimitGiven, read_limits, set_limits
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.models import ModelList
from holdfast.ledger.api_keys import ALL_SCOPES, SCOPES
from holdfast.ledger.credit.limits import WINDOWS
from holdfast.ledger.refusals import Refusal
from holdfast_console.account.samples import create_samples, example_body
from holdfast_console.account.tasks import model_ids
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

KEYS: Final = "/account/keys"
SCOPE_WORDS: Final[dict[str, dict[str, str]]] = {
    "It may": {
        "tasks:read": "Read tasks and their results",
        "tasks:write": "Create, retry and cancel tasks, upload and delete files",
        "files:write": "Upload and delete files only",
    },
    "It may read": {
        "account:read": "The balance, limits, statement, orders and history",
        "orders:read": "Orders only",
        "usage:read": "The usage of all keys",
        "keys:read": "The list of keys, without their secrets",
    },
    "It may manage the account": {
        "keys:write": "Make keys that may no more than it, change and revoke these",
        "limits:write": "Set the limits of the whole account",
        "orders:write": "Create orders of credit, but charge no saved card",
        "webhooks:write": "Create, change and delete webhooks, read and rotate their secret",
    },
}
"""What each scope allows, in the groups of the form."""
AGENT_SCOPES: Final = ("tasks:read", "tasks:write", "account:read")
AGENT_MODELS_MAX: Final = 20
"""How many models the form for an agent's key lists; with more, the owner names those that it may use."""
WINDOW_WORDS: Final = {"day": "a day", "week": "a week", "month": "a month", "total": "in total"}

view = ViewTable(Auth.SESSION)


@view(KEYS)
async def keys(visit: Visit) -> ViewResult:
    """The keys that work, or with ``?all=1`` the revoked ones too, and the account's limits."""
    found = await visit.read(list_api_keys, ApiKeyList)
    shows_all = visit.parameter("all") == "1"
    listed = [] if isinstance(found, Refusal) else found.data
    limits = await visit.read(read_limits, AccountLimitList)
    found_groups = await visit.read(list_key_groups, KeyGroupList)
    groups = [] if isinstance(found_groups, Refusal) else found_groups.data
    models, is_for_agent = await model_ids(visit), visit.parameter("preset") == "agent"
    values = {
        "found": found,
        "names": {key.api_key_id: key.name for key in listed},
        "makers": {key.created_by for key in listed},
        "keys": [key for key in listed if shows_all or key.revoked_at is None],
        "found_groups": found_groups,
        "groups": groups,
        "group_choices": [("", "No group"), *((each.group_id, each.name) for each in groups)],
        "group_names": {each.group_id: each.name for each in groups},
        "revoked": sum(key.revoked_at is not None for key in listed),
        "shows_all": shows_all,
        "scopes": SCOPE_WORDS,
        "usual": AGENT_SCOPES if is_for_agent else SCOPES,
        "windows": list(WINDOW_WORDS.items()),
        "window_words": WINDOW_WORDS,
        "models": models,
        "is_for_agent": is_for_agent,
        "new": _agent_preset(models) if is_for_agent else ApiKeyRequest(),
        "mcp_url": f"{visit.call.deps.urls.base}/mcp",
        "limits": limits,
        "by_window": {} if isinstance(limits, Refusal) else {each.window: each for each in limits.limits},
    }
    return Html("keys.html", values, is_live=True)


@view(f"{KEYS}/create", method="POST")
async def create(visit: Visit) -> ViewResult:
    """Create a key, and show its secret once with a call that uses it."""
    scopes = [scope for scope in ALL_SCOPES if f"scope.{scope}" in visit.form]
    created = await visit.submit(create_api_key, ApiKeySecret, {**_terms(visit), "scopes": scopes}, path={})
    if isinstance(created, Refusal):
        return created
    models = await visit.read(list_models, ModelList)
    body = example_body([] if isinstance(models, Refusal) else models.data)
    samples = create_samples(visit.call.deps.urls.base, body, created.api_key)
    return Html("key_created.html", {"key": created, "samples": samples, "window_words": WINDOW_WORDS})


@view(f"{KEYS}/{{api_key_id}}/change", method="POST")
async def change(visit: Visit) -> ViewResult:
    """Change a key's name, expiry, models and limits. Those for some models alone, which no form has, stay."""
    found = await visit.read(list_api_keys, ApiKeyList)
    if isinstance(found, Refusal):
        return found
    [limits] = [each.limits for each in found.data if each.api_key_id == visit.path["api_key_id"]] or [[]]
    return await visit.act(change_api_key, KEYS, "The key is changed.", _terms(visit, _kept(limits)))


@view(f"{KEYS}/{{api_key_id}}/pause", method="POST")
async def pause(visit: Visit) -> ViewResult:
    """Pause a key, or let it work again."""
    paused = visit.form.get("paused") == "true"
    text = "The key is paused: it is refused until you resume it." if paused else "The key works again."
    return await visit.act(change_api_key, KEYS, text, {"paused": paused})


@view(f"{KEYS}/{{api_key_id}}/revoke", method="POST")
async def revoke(visit: Visit) -> ViewResult:
    """Revoke a key for good, and if it is asked for, the keys that it has made."""
    made_keys = "true" if "made_keys" in visit.form else "false"
    revoked = await visit.submit(revoke_api_key, ApiKeyRevokedBody, query={"made_keys": made_keys})
    if isinstance(revoked, Refusal):
        return revoked
    made = f", nor do the {len(revoked.made_keys)} that it has made" if revoked.made_keys else ""
    return Redirect(KEYS, Message(f"The key is revoked: it never works again{made}."))


@view(f"{KEYS}/groups/create", method="POST")
async def create_group(visit: Visit) -> ViewResult:
    """Create a key group."""
    fields = {"name": visit.form.get("name", ""), "limits": _limits(visit)}
    text = "The group is created. Put keys into it when you create or change them."
    return await visit.act(create_key_group, KEYS, text, fields, path={})


@view(f"{KEYS}/groups/{{group_id}}/change", method="POST")
async def change_group(visit: Visit) -> ViewResult:
    """Change a group's name and limits. Those for some models alone, which no form has, stay."""
    found = await visit.read(list_key_groups, KeyGroupList)
    if isinstance(found, Refusal):
        return found
    [limits] = [each.limits for each in found.data if each.group_id == visit.path["group_id"]] or [[]]
    fields = {"name": visit.form.get("name", ""), "limits": [*_limits(visit), *_kept(limits)]}
    return await visit.act(change_key_group, KEYS, "The group is changed.", fields)


@view(f"{KEYS}/groups/{{group_id}}/delete", method="POST")
async def delete_group(visit: Visit) -> ViewResult:
    """Delete a group without keys."""
    return await visit.act(delete_key_group, KEYS, "The group is deleted.")


@view(f"{KEYS}/limits", method="POST")
async def change_limits(visit: Visit) -> ViewResult:
    """Replace the limits of the whole account."""
    return await visit.act(set_limits, KEYS, "The account's limits are set.", {"limits": _limits(visit)}, path={})


def _kept(limits: Sequence[KeyLimit]) -> list[dict[str, object]]:
    """Return the limits that no form has, to be sent again."""
    return [
        {"credits": each.credits, "window": each.window, "models": each.models} for each in limits if each.models
    ]


def _limits(visit: Visit) -> list[dict[str, object]]:
    return [{"credits": visit.form[window], "window": window} for window in WINDOWS if window in visit.form]


def _agent_preset(models: Sequence[str]) -> ApiKeyRequest:
    """Return the first values of the form for an agent's key: a limit a day, a cap on each task, and models."""
    named = list(models) if len(models) <= AGENT_MODELS_MAX else None
    limits = [KeyLimitGiven("5.00", "day")]
    return ApiKeyRequest("agent", models=named, limits=limits, max_credits_per_task="0.50")


def _terms(visit: Visit, kept: Sequence[dict[str, object]] = ()) -> dict[str, object]:
    """Return the fields of a key's form as the endpoints take them. What is left empty has no bound."""
    form = visit.form
    models = [text.strip() for text in form.get("models", "").split(",") if text.strip()]
    return {
        "name": form.get("name", ""),
        "expires_at": f"{form['expires_at']}T00:00:00Z" if "expires_at" in form else None,
        "models": models or None,
        "limits": [*_limits(visit), *kept],
        **({"group_id": form.get("group_id")} if "has_group" in form else {}),
        "max_credits_per_task": form.get("max_credits_per_task"),
    }
