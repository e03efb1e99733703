"""Groups of API keys, which share limits: what all keys of a group together may spend, and have spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Final

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup
from holdfast.http.endpoints.api_keys import KeyName, read_name
from holdfast.http.endpoints.limits import KeyLimit, KeyLimits, key_limits, read_key_limits
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.common import render
from holdfast.ledger.api_keys import KEYS_READ, LIMITS_WRITE
from holdfast.ledger.credit.limits import Spending
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id, new_id
from holdfast.persistence.queries.spending import groups_with_spending, keys_of_groups
from holdfast.persistence.records.key_rows import KeyGroupRow

route = RouteTable("API keys", auth=Auth.SESSION_OR_KEY)

NAMELESS: Final = "Key group"


class KeyGroupRequest(msgspec.Struct, frozen=True):
    """The key group to create."""

    name: Annotated[KeyName | None, msgspec.Meta(examples=["render farm"])] = None
    """A name of your choice; null, blank or omitted: `Key group`."""
    limits: KeyLimits | None = None
    """What its keys together may spend, each limit for another window or other models; null: any amount."""


class KeyGroupChange(msgspec.Struct, frozen=True):
    """What to change of a key group; what is omitted stays."""

    name: Annotated[KeyName | msgspec.UnsetType, msgspec.Meta(examples=["render farm"])] = msgspec.UNSET
    """A name of your choice; blank: `Key group`."""
    limits: KeyLimits | msgspec.UnsetType | None = msgspec.UNSET
    """All of its limits, with what its keys have spent already; null or empty: they may spend any amount."""


class KeyGroupBody(msgspec.Struct, frozen=True):
    """A group of API keys, and what they have spent together."""

    group_id: str
    """The group's id, `grp_…`."""
    name: str
    """The name given to the group; `Key group` if none was."""
    limits: list[KeyLimit]
    """All limits of the group, the shortest window first. What a key has spent since the window began counts, also
    before it came into the group, and after it was revoked.
    """
    api_key_ids: list[str]
    """The keys in the group that are not revoked, oldest first."""
    created_at: Time
    """When the group was created."""


class KeyGroupList(msgspec.Struct, frozen=True):
    """Every key group of the account, newest first."""

    data: list[KeyGroupBody]
    """The groups, newest first."""


class KeyGroupDeleted(msgspec.Struct, frozen=True):
    """The key group is deleted."""

    group_id: str
    """The group's id."""
    deleted: bool
    """Always true."""


@route(
    "POST",
    "/v2/control/key-groups",
    summary="Create a key group; keys that share limits",
    scope=LIMITS_WRITE,
    body=KeyGroupRequest,
    reply=KeyGroupBody,
    errors=("key_group_limit_reached", "model_not_found", "invalid_amount"),
)
async def create_key_group(call: Call) -> Outcome:
    """A task of a key in the group must fit in every limit: of the key, of the group and of the account.

    Put keys into it with `group_id` when you create or change them. A key is in one group at most.
    """
    wanted = call.body(KeyGroupRequest)
    name = read_name(wanted.name, NAMELESS)
    if isinstance(name, Refusal):
        return name
    limits = read_key_limits(call, wanted.limits or ())
    if isinstance(limits, Refusal):
        return limits
    created = await call.act(CreateKeyGroup(new_id("grp"), name, limits))
    return created if isinstance(created, Refusal) else await _shown(call, created.group_id)


@route(
    "GET",
    "/v2/control/key-groups",
    summary="List the account's key groups; newest first",
    scope=KEYS_READ,
    reply=KeyGroupList,
)
async def list_key_groups(call: Call) -> Outcome:
    """Each with what its keys have spent of its limits."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return KeyGroupList(await call.read(partial(shown_key_groups, account_id=account_id, now=call.deps.now())))


@route(
    "GET",
    "/v2/control/key-groups/{group_id}",
    summary="Retrieve a key group; with what is spent of its limits",
    scope=KEYS_READ,
    reply=KeyGroupBody,
    errors=("key_group_not_found",),
)
async def read_key_group(call: Call) -> Outcome:
    """The group of the account of the credential."""
    account_id = await call.verify_caller()
    return account_id if isinstance(account_id, Refusal) else await _shown(call, call.path["group_id"], account_id)


@route(
    "PATCH",
    "/v2/control/key-groups/{group_id}",
    summary="Change a key group's name or limits; effective with the next request",
    scope=LIMITS_WRITE,
    body=KeyGroupChange,
    reply=KeyGroupBody,
    errors=("key_group_not_found", "model_not_found", "invalid_amount", "exceeds_calling_key"),
)
async def change_key_group(call: Call) -> Outcome:
    """What was held and captured for its keys' tasks counts in a new limit too.

    An API key that has a limit, or is in a group, raises and removes no limit of a group.
    """
    wanted, group_id = call.body(KeyGroupChange), call.path["group_id"]
    if not is_id(group_id):
        return _not_found(group_id)
    command = ChangeKeyGroup(group_id)
    if wanted.name is not msgspec.UNSET:
        name = read_name(wanted.name, NAMELESS)
        if isinstance(name, Refusal):
            return name
        command = msgspec.structs.replace(command, name=name)
    if wanted.limits is not msgspec.UNSET:
        limits = read_key_limits(call, wanted.limits or ())
        if isinstance(limits, Refusal):
            return limits
        command = msgspec.structs.replace(command, limits=limits)
    changed = await call.act(command)
    return changed if isinstance(changed, Refusal) else await _shown(call, group_id)


@route(
    "DELETE",
    "/v2/control/key-groups/{group_id}",
    summary="Delete a key group without keys",
    scope=LIMITS_WRITE,
    reply=KeyGroupDeleted,
    errors=("key_group_not_found", "key_group_in_use"),
)
async def delete_key_group(call: Call) -> Outcome:
    """Refused while keys that are not revoked are in it, so that no key loses a limit unnoticed."""
    group_id = call.path["group_id"]
    if not is_id(group_id):
        return _not_found(group_id)
    deleted = await call.act(DeleteKeyGroup(group_id))
    return deleted if isinstance(deleted, Refusal) else KeyGroupDeleted(group_id, deleted=True)


def shown_key_groups(rows: Connection, account_id: str, *, now: datetime) -> list[KeyGroupBody]:
    """Return all key groups of an account, newest first, with what is spent of their limits."""
    groups, spending = groups_with_spending(rows, account_id)
    if not groups:
        return []
    spending.advance(now)
    keys = keys_of_groups(rows, account_id)
    return [_body(each, spending.of(each.group_id), keys) for each in reversed(groups)]


def _body(group: KeyGroupRow, spendings: Sequence[Spending], keys: Mapping[str, list[str]]) -> KeyGroupBody:
    limits, api_key_ids = key_limits(group.limits, spendings), keys.get(group.group_id, [])
    return render(KeyGroupBody, group, limits=limits, api_key_ids=api_key_ids)


async def _shown(call: Call, group_id: str, account_id: str | None = None) -> KeyGroupBody | Refusal:
    account_id = account_id or call.known_key.account_id
    groups = await call.read(partial(shown_key_groups, account_id=account_id, now=call.deps.now()))
    return next((each for each in groups if each.group_id == group_id), None) or _not_found(group_id)


def _not_found(group_id: str) -> Refusal:
    return Refusal(code="key_group_not_found", message=f"The key group {shown(group_id)} does not exist.")
