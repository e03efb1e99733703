"""An account's API keys, and the limits of what they and the whole account spend: what each command changes.

What a key asks for is compared here with what that key has at this moment: another request may have paused,
narrowed or revoked it since it was authenticated. It gives no more than it has, and what it gives of its own limit
it has no longer, so that all the keys it makes, and those that they make, never spend more than it might have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.actors.account.by_keys import NoteChange, calling_key
from holdfast.actors.account.counted_limits import CountedLimits
from holdfast.actors.account.group_messages import GroupCommand
from holdfast.actors.account.key_groups import KeyGroups
from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    RecordKeyUse,
    RevokeApiKey,
    RevokedKeys,
    RevokeWithMade,
    SetCeiling,
    SetLimits,
)
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit, Turn
from holdfast.ledger.api_keys import MAKERS_MAX, TASKS_WRITE, KeyTerms, exceeds_calling_key, has_scope
from holdfast.ledger.credit.limits import (
    BEGINNING,
    WHOLE_ACCOUNT,
    Limit,
    Spending,
    more_of,
    most_within,
    window_start,
)
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_amount
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.records.key_rows import (
    ApiKeyLimitRow,
    ApiKeyMoreLimitsRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyTermsRow,
    ApiKeyUsedRow,
)
from holdfast.persistence.records.rows import Row

KeyCommand: TypeAlias = (
    CreateApiKey
    | ChangeApiKey
    | RevokeApiKey
    | RevokeWithMade
    | RecordKeyUse
    | NoteChange
    | SetLimits
    | SetCeiling
    | GroupCommand
)


_NOT_MADE = Refusal(
    code="not_made_by_key",
    message="An API key changes and revokes only keys that it has made, and those that were made by these.",
)
_NO_LIVE_KEY = Refusal(code="api_key_not_found", message="This account has no such live API key.")


class AccountKeys:
    """The live keys of one account, for one incarnation of its actor.

    ``live`` has the terms of each key, ``makers`` the keys that have made one, in their order, of each that was
    made so. ``limits`` are those of the account, its keys and its ``groups``.
    """

    __slots__ = ("_await_durable", "_live_max", "_now", "_units", "groups", "limits", "live", "makers")

    def __init__(
        self,
        units: AccountUnits,
        live: dict[str, KeyTerms],
        makers: dict[str, tuple[str, ...]],
        limits: CountedLimits,
        groups: KeyGroups,
        *,
        now: Now,
        await_durable: Callable[[], Awaitable[None]],
        live_max: int,
    ) -> None:
        self._units = units
        self.live = live
        self.makers = makers
        self.limits = limits
        self.groups = groups
        self._now = now
        self._await_durable = await_durable
        self._live_max = live_max

    def decide(self, command: KeyCommand) -> Turn[Any] | Awaitable[Turn[Any]]:
        """Decide a command."""
        match command:
            case CreateApiKey():
                return self._create_api_key(command)
            case ChangeApiKey():
                return self._change_api_key(command)
            case RevokeApiKey():
                return self._revoke_api_key(command)
            case RevokeWithMade():
                return self._revoke_with_made(command)
            case RecordKeyUse():
                used = ApiKeyUsedRow(self._units.state.account_id, command.key_id, command.at)
                return Commit(Unit(rows=(used,)), None)
            case NoteChange():
                noted = self._units.noted(command, command.what, command.subject)
                return self._units.change(command, None, rows=noted)
            case SetLimits():
                return self._set_limits(command)
            case SetCeiling():
                return self._set_ceiling(command)
            case _:
                return self.groups.decide(command)

    def _create_api_key(self, command: CreateApiKey) -> Turn[ApiKeyRecord]:
        """Refuses: 1. too many live keys, or too many that made one another; 2. an unknown group;
        3. more than the calling key has.
        """
        by, key_id = calling_key(command), command.key_id
        makers = () if by is None else (*self.makers.get(by, ()), by)
        if len(self.live) >= self._live_max:
            return self._units.refuse(command, _limit_reached(f"This account has {len(self.live)} live API keys"))
        if len(makers) > MAKERS_MAX:
            return self._units.refuse(command, _limit_reached(f"{MAKERS_MAX} API keys have made one another"))
        group_id = self.groups.for_new(command.group_id, by)
        if isinstance(group_id, Refusal):
            return self._units.refuse(command, group_id)
        made: tuple[Row, ...] = ()
        if by is not None:
            excess = command.terms.refuse_excess(self.live[by])
            taken = excess or self._take(by, command.terms, _limits_of(command), ())
            if isinstance(taken, Refusal):
                return self._units.refuse(command, taken)
            self.makers[key_id] = makers
            made = taken
        at, limit = self._now(), command.limit
        about = (self._units.state.account_id, key_id, command.prefix, command.terms)
        key = ApiKeyRecord(*about, created_at=at, more_limits=command.more_limits)
        if limit is not None:
            start, micro = window_start(limit.window, at), limit.credits_micro
            key = msgspec.structs.replace(key, limit_micro=micro, limit_window=limit.window, window_start=start)
        for each in _limits_of(command):
            spending = Spending(key_id, each.window, each.credits_micro, starts_at=window_start(each.window, at))
            spending.models, spending.is_in_row = each.models, each is limit
            self.limits.add(spending)
        self.live[key_id] = command.terms
        if group_id is not None:
            made = (*made, self.groups.put(key_id, group_id))
        noted = self._units.noted(command, "api_key_created", key_id)
        return self._units.change(
            command, key, rows=(ApiKeyRow(key, command.secret_sha256, makers or None), *made, *noted)
        )

    async def _change_api_key(self, command: ChangeApiKey) -> Turn[None]:
        """Refuses: 1. a key that is not live here, or not the calling key's; 2. an unknown group; 3. more than
        the calling key has.
        """
        by, key_id, limit = calling_key(command), command.key_id, command.limit
        refusal = self._refuse_managing(by, key_id)
        if refusal is not None:
            return self._units.refuse(command, refusal)
        only_lessens = _may_only_lessen(command)
        refusal = self.groups.refuse_change(key_id, command.group_id, by, only_lessens=only_lessens)
        if refusal is not None:
            return self._units.refuse(command, refusal)
        rows: tuple[Row, ...] = ()
        if limit is not msgspec.UNSET:
            await self._await_durable()
        terms = msgspec.structs.replace(self.live[key_id], **command.changes)
        if by is not None and not only_lessens:
            before = [each.limit for each in self.limits.of(key_id)]
            wanted = before if limit is msgspec.UNSET else _limits_of(command)
            taken = terms.refuse_excess(self.live[by]) or self._take(by, terms, wanted, before)
            if isinstance(taken, Refusal):
                return self._units.refuse(command, taken)
            rows = taken
        if limit is not msgspec.UNSET:
            rows = (*rows, *await self._set_key_limits(key_id, _limits_of(command), limit))
        if command.group_id is not msgspec.UNSET:
            rows = (*rows, *await self.groups.move(key_id, command.group_id))
        self.live[key_id] = terms
        changed = ApiKeyTermsRow(self._units.state.account_id, key_id, terms)
        rows = (changed, *rows, *self._units.noted(command, "api_key_changed", key_id))
        return self._units.change(command, None, rows=rows)

    def _revoke_api_key(self, command: RevokeApiKey) -> Turn[ApiKeyRevokedRow]:
        """Refuses: 1. a key that is not live here, or not the calling key's."""
        refusal = self._refuse_managing(calling_key(command), command.key_id)
        if refusal is not None:
            return self._units.refuse(command, refusal)
        row, rows = self._revoke(command, command.key_id)
        return self._units.change(command, row, rows=rows)

    def _revoke_with_made(self, command: RevokeWithMade) -> Turn[RevokedKeys]:
        """Refuses: 1. a key that is not live here, nor any that it has made; 2. one not the calling key's."""
        by, key_id = calling_key(command), command.key_id
        revoked = [each for each in self.live if each == key_id or key_id in self.makers.get(each, ())]
        refusals = [self._refuse_managing(by, each) for each in revoked] or [_NO_LIVE_KEY]
        refusal = next((each for each in refusals if each is not None), None)
        if refusal is not None:
            return self._units.refuse(command, refusal)
        found = [self._revoke(command, each) for each in revoked]
        reply = RevokedKeys(tuple(row for row, _ in found))
        return self._units.change(command, reply, rows=tuple(each for _, rows in found for each in rows))

    def _revoke(
        self, command: RevokeApiKey | RevokeWithMade, key_id: str
    ) -> tuple[ApiKeyRevokedRow, tuple[Row, ...]]:
        """Revoke a live key; return the row of that, and all rows."""
        del self.live[key_id]
        self.groups.revoked(key_id)
        row = ApiKeyRevokedRow(self._units.state.account_id, key_id, self._now())
        rows = self.limits.forget(self.limits.of(key_id))
        return row, (row, *rows, *self._units.noted(command, "api_key_revoked", key_id))

    def _refuse_managing(self, by: str | None, key_id: str) -> Refusal | None:
        """Refuse a key that is not live here, or that a calling key has not made, itself or by others."""
        if key_id not in self.live:
            return _NO_LIVE_KEY
        return None if by is None or by in self.makers.get(key_id, ()) else _NOT_MADE

    def _take(
        self, by: str, terms: KeyTerms, limits: Sequence[Limit], before: Sequence[Limit]
    ) -> tuple[Row, ...] | Refusal:
        """Take what a key may spend more than ``before`` from the calling key's limits; return the rows of that.

        It is not given back: the key may have spent it. Refuses with ``exceeds_calling_key``.
        """
        own = self.limits.of(by)
        if not own or not has_scope(terms.scopes, TASKS_WRITE):
            return ()
        assert self.limits.spending is not None
        self.limits.spending.advance(self._now())
        taken: list[tuple[Spending, int]] = []
        for each in own:
            amount = f"{format_amount(each.most_micro)} {each.per}"
            if not limits:
                return exceeds_calling_key("limit", f"it has a limit of {amount} itself")
            more_micro = more_of(each.limit, limits, before)
            left_micro = each.most_micro - each.spent_micro
            if more_micro is None or more_micro > max(left_micro, 0):
                left = f"{format_amount(max(left_micro, 0))} is left of its limit of {amount}"
                return exceeds_calling_key("limit", left)
            if more_micro > 0:
                taken.append((each, each.most_micro - more_micro))
        for each, limit_micro in taken:
            each.limit_micro = limit_micro
        return (*self._key_limit_rows(by), *self.limits.alert_rows(own, self._now())) if taken else ()

    async def _set_limits(self, command: SetLimits) -> Turn[None]:
        """Refuses: 1. a limit above its window's ceiling; 2. one that is raised above the calling key's own."""
        wanted = {each.window: each.credits_micro for each in command.limits}
        before = self._limits_of_account()
        for window, limit_micro in wanted.items():
            spending = before.get(window)
            ceiling_micro = None if spending is None else spending.ceiling_micro
            if ceiling_micro is not None and limit_micro > ceiling_micro:
                return self._units.refuse(command, _above_ceiling(window, limit_micro, ceiling_micro))
        excess = self._refuse_raise(calling_key(command), wanted, before)
        if excess is not None:
            return self._units.refuse(command, excess)
        await self._await_durable()
        rows: list[Row] = []
        for window in dict.fromkeys((*wanted, *before)):
            spending = before.get(window) or await self.limits.begin(WHOLE_ACCOUNT, (window, ()))
            rows += self.limits.change(spending, limit_micro=wanted.get(window))
        rows += self._units.noted(command, "limits_set", self._units.state.account_id)
        return self._units.change(command, None, rows=tuple(rows)) if rows else self._units.confirm(None)

    def _refuse_raise(
        self, by: str | None, wanted: Mapping[LimitWindow, int], before: Mapping[LimitWindow, Spending]
    ) -> Refusal | None:
        """Refuse to raise or remove a limit of the account beyond those of the calling key, and of its group."""
        own = [] if by is None else [*self.limits.of(by), *self.groups.limits_of(by)]
        for window, spending in before.items():
            limit_micro = wanted.get(window)
            if spending.limit_micro is None or (limit_micro is not None and limit_micro <= spending.limit_micro):
                continue
            for each in own:
                most = None if limit_micro is None else most_within(Limit(limit_micro, window), each.window)
                if most is None or most > each.most_micro:
                    amount = format_amount(each.most_micro)
                    return exceeds_calling_key("limits", f"its own limit is {amount} {each.per}")
        return None

    def _limits_of_account(self) -> dict[LimitWindow, Spending]:
        return {} if self.limits.spending is None else self.limits.spending.of_account()

    async def _set_ceiling(self, command: SetCeiling) -> Turn[None]:
        before = self._limits_of_account()
        spending = before.get(command.window)
        if spending is None and command.ceiling_micro is None:
            return self._units.confirm(None)
        if spending is None:
            await self._await_durable()
            spending = await self.limits.begin(WHOLE_ACCOUNT, (command.window, ()))
        spending.ceiling_micro = command.ceiling_micro
        rows = self.limits.change(spending, limit_micro=spending.limit_micro)
        return self._units.change(command, None, rows=rows)

    async def _set_key_limits(self, key_id: str, limits: Sequence[Limit], in_row: Limit | None) -> tuple[Row, ...]:
        """Replace a key's limits; return the rows of that."""
        rows = await self.limits.replace(key_id, limits, in_row)
        return (*self._key_limit_rows(key_id), *rows)

    def _key_limit_rows(self, key_id: str) -> tuple[Row, ...]:
        """Return the rows of all limits of a key, as they are now."""
        account_id, limits = self._units.state.account_id, self.limits.of(key_id)
        in_row = [self.limits.row(each) for each in limits if each.is_in_row]
        more = tuple(each.limit for each in limits if not each.is_in_row)
        none = ApiKeyLimitRow(account_id, key_id, None, None, BEGINNING, 0)
        return (*(in_row or [none]), ApiKeyMoreLimitsRow(account_id, key_id, more))


def _limits_of(command: CreateApiKey | ChangeApiKey) -> tuple[Limit, ...]:
    """Return the limits that a command gives."""
    return (command.limit, *command.more_limits) if isinstance(command.limit, Limit) else command.more_limits


def _may_only_lessen(command: ChangeApiKey) -> bool:
    """Whether a change lets a key do no more, whatever the key and its group are."""
    is_of_use = command.changes.get("is_paused") is False or command.changes.keys() - {"name", "is_paused"}
    return command.limit is msgspec.UNSET and command.group_id is msgspec.UNSET and not is_of_use


def model_not_allowed(model_id: str, models: Sequence[str]) -> Refusal:
    """Return the refusal of a task of a model that its key may not use."""
    message = f"This API key may not use the model '{model_id}', only {', '.join(models)}."
    return Refusal(code="model_not_allowed", message=message, param="model")


def _limit_reached(what: str) -> Refusal:
    return Refusal(code="api_key_limit_reached", message=f"{what}, the most allowed.", final=True)


def _above_ceiling(window: LimitWindow, limit_micro: int, ceiling_micro: int) -> Refusal:
    return Refusal(
        code="limit_above_ceiling",
        message=f"The limit of {format_amount(limit_micro)} ({window}) is above the operator's ceiling of "
        f"{format_amount(ceiling_micro)}.",
        param="limits",
    )
