"""The messages to an account about its key groups: API keys that together may spend no more than its limits.

A key is put into a group, or taken out of it, by the commands that create and change the key.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.credit.limits import Limit
from holdfast.persistence.records.key_rows import KeyGroupDeletedRow, KeyGroupRow


class CreateKeyGroup(Command[KeyGroupRow], frozen=True):
    """Create a group without keys. ``limits`` are each of another kind. Reply: its row.

    Refused with ``key_group_limit_reached``.
    """

    group_id: str
    name: str
    limits: tuple[Limit, ...]


class ChangeKeyGroup(Command[None], frozen=True):
    """Change a group's name or limits; what is unset stays. New limits count what its keys have spent before.

    Refused with ``key_group_not_found``.
    """

    is_idempotent: ClassVar[bool] = True

    group_id: str
    name: str | msgspec.UnsetType = msgspec.UNSET
    limits: tuple[Limit, ...] | msgspec.UnsetType = msgspec.UNSET


class DeleteKeyGroup(Command[KeyGroupDeletedRow], frozen=True):
    """Delete a group without live keys. Reply: the row that was written.

    Refused with ``key_group_not_found``, ``key_group_in_use``.
    """

    group_id: str


GroupCommand: TypeAlias = CreateKeyGroup | ChangeKeyGroup | DeleteKeyGroup
