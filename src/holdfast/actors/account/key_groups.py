"""An account's key groups: which keys are in which, and what each command about groups changes.

A key is in one group at most. A group's limits count what its keys have spent, revoked ones too, since each window
began: a key that comes brings what it has spent, and one that goes takes it away. So what is spent is at any time
the sum of what the usage says of these keys.

A key that asks takes no key out of a group. If it is in a group itself, the keys that it makes are in the same, and
it can only pause or rename one that is not. If it is in a group or has a limit, it raises and removes no limit of a
group.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from holdfast.actors.account.by_keys import calling_key
from holdfast.actors.account.counted_limits import CountedLimits
from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup, GroupCommand
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Turn
from holdfast.ledger.api_keys import KEY_GROUPS_MAX, exceeds_calling_key
from holdfast.ledger.credit.limits import Limit, Spending
from holdfast.ledger.public_types import counted
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_amount
from holdfast.persistence.records.key_rows import GroupKeyRow, KeyGroupDeletedRow, KeyGroupRow
from holdfast.persistence.records.rows import Row

_NO_GROUP = Refusal(code="key_group_not_found", message="This account has no such key group.", param="group_id")


class KeyGroups:
    """The groups of one account by their ids, and the group of each live key that is in one."""

    __slots__ = ("_limits", "_now", "_units", "groups", "of_keys")

    def __init__(
        self,
        units: AccountUnits,
        groups: dict[str, KeyGroupRow],
        of_keys: dict[str, str],
        limits: CountedLimits,
        now: Now,
    ) -> None:
        self._units = units
        self.groups = groups
        self.of_keys = of_keys
        self._limits = limits
        self._now = now

    def decide(self, command: GroupCommand) -> Turn[Any] | Awaitable[Turn[Any]]:
        """Decide a command."""
        match command:
            case CreateKeyGroup():
                return self._create(command)
            case ChangeKeyGroup():
                return self._change(command)
            case DeleteKeyGroup():
                return self._delete(command)

    def limits_of(self, key_id: str) -> list[Spending]:
        """Return the limits of the group that a key is in."""
        group_id = self.of_keys.get(key_id)
        return [] if group_id is None else self._limits.of(group_id)

    def for_new(self, wanted: str | None, by: str | None) -> str | Refusal | None:
        """Return the group of a new key; None: it is in none.

        Refuses: 1. ``key_group_not_found``; 2. one that the calling key, which is in a group, is not in.
        """
        if wanted is not None and wanted not in self.groups:
            return _NO_GROUP
        own = None if by is None else self.of_keys.get(by)
        if own is not None and wanted not in (None, own):
            return exceeds_calling_key("group_id", f"what it makes is in its group {own}")
        return own or wanted

    def refuse_change(
        self, key_id: str, wanted: str | msgspec.UnsetType | None, by: str | None, *, only_lessens: bool
    ) -> Refusal | None:
        """Refuse a change of a key that puts it into the group ``wanted``, None for none; unset: it stays.

        Refuses: 1. ``key_group_not_found``; 2. of a calling key, to take it out of a group; 3. to change a key
        outside of the calling key's group, unless it may do no more then.
        """
        if isinstance(wanted, str) and wanted not in self.groups:
            return _NO_GROUP
        if by is None:
            return None
        before, own = self.of_keys.get(key_id), self.of_keys.get(by)
        after = before if wanted is msgspec.UNSET else wanted
        if before is not None and after != before:
            return exceeds_calling_key("group_id", f"it takes no API key out of its group {before}")
        if own is not None and after != own and not only_lessens:
            return exceeds_calling_key("group_id", f"it is in the group {own}, which the other is not in")
        return None

    def put(self, key_id: str, group_id: str) -> GroupKeyRow:
        """Put a new key into a group; return the row of that."""
        self.of_keys[key_id] = group_id
        return GroupKeyRow(self._units.state.account_id, key_id, group_id)

    async def move(self, key_id: str, group_id: str | None) -> tuple[Row, ...]:
        """Put a key into another group, or with None into none; return the rows of that."""
        before = self.of_keys.get(key_id)
        if before == group_id:
            return ()
        rows = await self._limits.move(key_id, before, group_id)
        self.of_keys.pop(key_id, None)
        if group_id is not None:
            self.of_keys[key_id] = group_id
        return (GroupKeyRow(self._units.state.account_id, key_id, group_id), *rows)

    def revoked(self, key_id: str) -> None:
        """A key is live no more. What it has spent counts on in its group."""
        self.of_keys.pop(key_id, None)

    async def _create(self, command: CreateKeyGroup) -> Turn[KeyGroupRow]:
        """Refuses: 1. too many groups."""
        if len(self.groups) >= KEY_GROUPS_MAX:
            message = f"This account has {counted(len(self.groups), 'key group')}, the most allowed."
            return self._units.refuse(command, Refusal(code="key_group_limit_reached", message=message, final=True))
        account_id, group_id = self._units.state.account_id, command.group_id
        row = KeyGroupRow(account_id, group_id, command.name, command.limits, self._now())
        self.groups[group_id] = row
        await self._limits.replace(group_id, command.limits, group_name=command.name)
        noted = self._units.noted(command, "key_group_created", group_id)
        return self._units.change(command, row, rows=(row, *noted))

    async def _change(self, command: ChangeKeyGroup) -> Turn[None]:
        """Refuses: 1. an unknown group; 2. of a calling key with a budget, a limit that is raised or removed."""
        by, before = calling_key(command), self.groups.get(command.group_id)
        if before is None:
            return self._units.refuse(command, _NO_GROUP)
        name = before.name if command.name is msgspec.UNSET else command.name
        limits = before.limits if command.limits is msgspec.UNSET else command.limits
        excess = None if by is None else self._refuse_raise(by, before.limits, limits)
        if excess is not None:
            return self._units.refuse(command, excess)
        after = msgspec.structs.replace(before, name=name, limits=limits)
        rows: tuple[Row, ...] = (after,)
        if command.limits is not msgspec.UNSET:
            rows += await self._limits.replace(command.group_id, limits, group_name=name)
        for each in self._limits.of(command.group_id):
            each.group_name = name
        self.groups[command.group_id] = after
        rows += self._units.noted(command, "key_group_changed", command.group_id)
        return self._units.change(command, None, rows=rows)

    def _refuse_raise(self, by: str, before: tuple[Limit, ...], after: tuple[Limit, ...]) -> Refusal | None:
        if by not in self.of_keys and not self._limits.of(by):
            return None
        wanted = {each.kind: each.credits_micro for each in after}
        for each in before:
            if each.kind not in wanted or wanted[each.kind] > each.credits_micro:
                amount = f"{format_amount(each.credits_micro)} ({each.window})"
                why = "it has a limit or is in a group, so it raises and removes no limit of a group, as that of"
                return exceeds_calling_key("limits", f"{why} {amount}")
        return None

    def _delete(self, command: DeleteKeyGroup) -> Turn[KeyGroupDeletedRow]:
        """Refuses: 1. an unknown group; 2. one that live keys are in."""
        group_id = command.group_id
        if group_id not in self.groups:
            return self._units.refuse(command, _NO_GROUP)
        live = sum(each == group_id for each in self.of_keys.values())
        if live:
            message = f"This group has {counted(live, 'API key')}: take out or revoke all of its keys first."
            return self._units.refuse(command, Refusal(code="key_group_in_use", message=message))
        del self.groups[group_id]
        row = KeyGroupDeletedRow(self._units.state.account_id, group_id)
        rows = self._limits.forget(self._limits.of(group_id))
        noted = self._units.noted(command, "key_group_deleted", group_id)
        return self._units.change(command, row, rows=(row, *rows, *noted))
