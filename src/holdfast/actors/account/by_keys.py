"""What an owner's session may ask an account for, asked by an API key that has the scope for it.

They are commands of their own, not commands with one field more, because a process of the release before would
ignore the field: it would do without any check what the key asks for. What it does not know it refuses.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar, get_args

from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup
from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    CreateOrder,
    DeleteWebhook,
    PutWebhook,
    RevokeApiKey,
    RevokeWithMade,
    SetLimits,
)
from holdfast.actors.runtime.messages import Command
from holdfast.persistence.records.rows import AccountChange

T = TypeVar("T")


class CreateApiKeyByKey(CreateApiKey, frozen=True, kw_only=True):
    """Create an API key that has no more than the key ``by``.

    Of a limit of that key the new one's is taken, and it is in that key's group. Refused with
    ``insufficient_scope``, ``exceeds_calling_key``.
    """

    by: str
    scope: str


class ChangeApiKeyByKey(ChangeApiKey, frozen=True, kw_only=True):
    """Change a key that the key ``by`` has made, or one that was made by such a key, to no more than that has.

    It takes none out of a group. Refused for any other key with ``not_made_by_key``, else as
    :class:`CreateApiKeyByKey`.
    """

    by: str
    scope: str


class RevokeApiKeyByKey(RevokeApiKey, frozen=True, kw_only=True):
    """Revoke a key that the key ``by`` may change. Refused for any other with ``not_made_by_key``."""

    by: str
    scope: str


class RevokeWithMadeByKey(RevokeWithMade, frozen=True, kw_only=True):
    """Revoke such a key, and those that it has made. Refused for any other with ``not_made_by_key``."""

    by: str
    scope: str


class SetLimitsByKey(SetLimits, frozen=True, kw_only=True):
    """Replace the limits of the account. A key with a limit raises none above its own: ``exceeds_calling_key``."""

    by: str
    scope: str


class CreateKeyGroupByKey(CreateKeyGroup, frozen=True, kw_only=True):
    """Create a key group."""

    by: str
    scope: str


class ChangeKeyGroupByKey(ChangeKeyGroup, frozen=True, kw_only=True):
    """Change a key group. A key that has a limit or is in a group raises and removes no limit of any group.

    That is refused with ``exceeds_calling_key``.
    """

    by: str
    scope: str


class DeleteKeyGroupByKey(DeleteKeyGroup, frozen=True, kw_only=True):
    """Delete a key group without live keys."""

    by: str
    scope: str


class PutWebhookByKey(PutWebhook, frozen=True, kw_only=True):
    """Create a webhook, or change one. Refused with ``insufficient_scope`` if the key may not read what it gets."""

    by: str
    scope: str


class DeleteWebhookByKey(DeleteWebhook, frozen=True, kw_only=True):
    """Delete a webhook."""

    by: str
    scope: str


class CreateOrderByKey(CreateOrder, frozen=True, kw_only=True):
    """Store a new order that saved cards do not pay."""

    by: str
    scope: str


class NoteChange(Command[None], frozen=True):
    """Note in the account's history what a key is about to do that is not done by the account. Reply: None."""

    what: AccountChange
    subject: str
    by: str
    scope: str


ByKey: TypeAlias = (
    CreateApiKeyByKey
    | ChangeApiKeyByKey
    | RevokeApiKeyByKey
    | RevokeWithMadeByKey
    | SetLimitsByKey
    | CreateKeyGroupByKey
    | ChangeKeyGroupByKey
    | DeleteKeyGroupByKey
    | PutWebhookByKey
    | DeleteWebhookByKey
    | CreateOrderByKey
    | NoteChange
)
"""Asked for by the API key ``by``, which must be usable when it is decided, and have the scope ``scope``."""

_BY_KEY: Final = {each.__base__: each for each in get_args(ByKey) if each is not NoteChange}


def by_key(command: Command[T], key_id: str, scope: str) -> Command[T]:
    """Return a command of the owner's as an API key asks for it."""
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    found: Command[T] = _BY_KEY[type(command)](**fields, by=key_id, scope=scope)
    return found


def calling_key(command: Command[Any]) -> str | None:
    """Return the API key that asks; None: it is the owner's session, an operator or the service."""
    return command.by if isinstance(command, ByKey) else None
