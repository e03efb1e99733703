"""An account's API keys, and the limits of what they and the whole account spend: what each command changes.

What is spent is counted in the account's turn, with the holds and captures that it is the sum of. A limit that is
set later counts what the rows have, so the turn waits until all that was decided before is in them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import msgspec

from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    CreateTask,
    RevokeApiKey,
    SetCeiling,
    SetLimits,
)
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit, Turn
from holdfast.ledger.alerts.account_events import LimitReached
from holdfast.ledger.alerts.alerts import limit_subject
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.clock import Now, time_or_none
from holdfast.ledger.credit.limits import (
    BEGINNING,
    WHOLE_ACCOUNT,
    AccountSpending,
    Limit,
    LimitedHold,
    Spending,
    window_start,
)
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.spending import new_spending
from holdfast.persistence.records.rows import (
    AccountLimitRow,
    ApiKeyLimitRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyTermsRow,
    Row,
)
from holdfast.persistence.server.database import Database

KeyCommand: TypeAlias = CreateApiKey | ChangeApiKey | RevokeApiKey | SetLimits | SetCeiling


_NO_LIVE_KEY = Refusal(code="api_key_not_found", message="This account has no such live API key.")
_EXCEEDED = " exceeded"
"""The end of the marker of a limit's alert if a hold was refused before the set share was spent."""


class AccountKeys:
    """The live keys of one account and what is spent of its limits, for one incarnation of its actor.

    ``live`` has the terms of each key. ``spending`` is None without any limit.
    """

    __slots__ = ("_await_durable", "_database", "_live_max", "_now", "_units", "live", "spending")

    def __init__(
        self,
        units: AccountUnits,
        live: dict[str, KeyTerms],
        spending: AccountSpending | None,
        *,
        database: Database,
        now: Now,
        await_durable: Callable[[], Awaitable[None]],
        live_max: int,
    ) -> None:
        self._units = units
        self.live = live
        self.spending = spending
        self._database = database
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
            case SetLimits():
                return self._set_limits(command)
            case SetCeiling():
                return self._set_ceiling(command)

    def opened(self, hold_id: str, hold: LimitedHold) -> tuple[Row, ...]:
        """Count a new hold, where there are limits; return the rows of their alerts."""
        assert self.spending is not None
        self.spending.opened(hold_id, hold)
        return self._alert_rows(self.spending.counting(hold.key_id), hold.at)

    def settled(self, hold_id: str, charge_micro: int, at: datetime) -> tuple[Row, ...]:
        """Count the outcome of a hold, where there are limits; return the rows of those of its key and account."""
        assert self.spending is not None
        limits = self.spending.settled(hold_id, charge_micro)
        captured = [self._limit_row(each) for each in limits] if charge_micro else []
        return (*captured, *self._alert_rows(limits, at))

    def refuse_hold(self, command: CreateTask, limit: Spending, at: datetime) -> Commit[Refusal]:
        """Refuse a hold that would exceed a limit. That is announced once in a window, as the limit's alert is."""
        refusal = limit.refusal(command.request.hold_micro)
        subject, marker = _subject_of(limit), self._marker_of(limit)
        if self._units.alerts.announced.get(subject) in (marker, marker + _EXCEEDED):
            return self._units.refuse(command, refusal)
        rows = self._units.alert_rows(subject, marker + _EXCEEDED, partial(self._reached, limit), at)
        return self._units.change(command, refusal, rows=rows)

    def _create_api_key(self, command: CreateApiKey) -> Turn[ApiKeyRecord]:
        """Refuses: 1. too many live keys."""
        if len(self.live) >= self._live_max:
            refusal = Refusal(
                code="api_key_limit_reached",
                message=f"This account has {len(self.live)} live API keys, the most allowed.",
                final=True,
            )
            return self._units.refuse(command, refusal)
        at, limit = self._now(), command.limit
        key = ApiKeyRecord(
            self._units.state.account_id, command.key_id, command.prefix, command.terms, created_at=at
        )
        if limit is not None:
            start = window_start(limit.window, at)
            key = key._replace(limit_micro=limit.credits_micro, limit_window=limit.window, window_start=start)
            self._limit(Spending(key.key_id, limit.window, limit.credits_micro, starts_at=start))
        self.live[key.key_id] = command.terms
        return self._units.change(command, key, rows=(ApiKeyRow(key, command.secret_sha256),))

    async def _change_api_key(self, command: ChangeApiKey) -> Turn[None]:
        """Refuses: 1. a key that is not live here."""
        key_id = command.key_id
        if key_id not in self.live:
            return self._units.refuse(command, _NO_LIVE_KEY)
        rows: tuple[Row, ...] = ()
        if command.limit is not msgspec.UNSET:
            await self._await_durable()
            rows = await self._set_key_limit(key_id, command.limit)
        terms = self.live[key_id] = self.live[key_id]._replace(**command.changes)
        changed = ApiKeyTermsRow(self._units.state.account_id, key_id, terms)
        return self._units.change(command, None, rows=(changed, *rows))

    def _revoke_api_key(self, command: RevokeApiKey) -> Turn[ApiKeyRevokedRow]:
        """Refuses: 1. a key that is not live here."""
        if self.live.pop(command.key_id, None) is None:
            return self._units.refuse(command, _NO_LIVE_KEY)
        row = ApiKeyRevokedRow(self._units.state.account_id, command.key_id, self._now())
        spending = None if self.spending is None else self.spending.of_key(command.key_id)
        rows = () if spending is None else self._forget(spending)
        return self._units.change(command, row, rows=(row, *rows))

    async def _set_limits(self, command: SetLimits) -> Turn[None]:
        """Refuses: 1. a limit above its window's ceiling."""
        wanted = {each.window: each.credits_micro for each in command.limits}
        before = {} if self.spending is None else self.spending.of_account()
        for window, limit_micro in wanted.items():
            spending = before.get(window)
            ceiling_micro = None if spending is None else spending.ceiling_micro
            if ceiling_micro is not None and limit_micro > ceiling_micro:
                return self._units.refuse(command, _above_ceiling(window, limit_micro, ceiling_micro))
        await self._await_durable()
        rows: list[Row] = []
        for window in dict.fromkeys((*wanted, *before)):
            spending = before.get(window) or await self._begin_spending(WHOLE_ACCOUNT, window)
            rows += self._change_limit(spending, limit_micro=wanted.get(window))
        return self._units.change(command, None, rows=tuple(rows)) if rows else self._units.confirm(None)

    async def _set_ceiling(self, command: SetCeiling) -> Turn[None]:
        before = {} if self.spending is None else self.spending.of_account()
        spending = before.get(command.window)
        if spending is None and command.ceiling_micro is None:
            return self._units.confirm(None)
        if spending is None:
            await self._await_durable()
            spending = await self._begin_spending(WHOLE_ACCOUNT, command.window)
        spending.ceiling_micro = command.ceiling_micro
        rows = self._change_limit(spending, limit_micro=spending.limit_micro)
        return self._units.change(command, None, rows=rows)

    async def _set_key_limit(self, key_id: str, limit: Limit | None) -> tuple[Row, ...]:
        """Replace a key's limit; return the rows of that. Earlier decisions must be durable."""
        spending = None if self.spending is None else self.spending.of_key(key_id)
        rows: tuple[Row, ...] = ()
        if spending is not None and (limit is None or limit.window != spending.window):
            rows = self._forget(spending)
            spending = None
        if limit is None:
            return (ApiKeyLimitRow(self._units.state.account_id, key_id, None, None, BEGINNING, 0), *rows)
        if spending is None:
            spending = await self._begin_spending(key_id, limit.window)
        return (*rows, *self._change_limit(spending, limit_micro=limit.credits_micro))

    async def _begin_spending(self, key_id: str, window: LimitWindow) -> Spending:
        """Return the spending of a limit that is new, from the rows. Earlier decisions must be durable."""
        account_id, now = self._units.state.account_id, self._now()
        spending, holds = await self._database.read(new_spending, account_id, key_id, window, now=now)
        self._limit(spending, holds)
        return spending

    def _limit(self, spending: Spending, holds: dict[str, LimitedHold] | None = None) -> None:
        """Begin to count for a limit, and with ``holds`` the account's open ones."""
        if self.spending is None:
            self.spending = AccountSpending((), {})
        self.spending.add(spending, holds)

    def _change_limit(self, spending: Spending, *, limit_micro: int | None) -> tuple[Row, ...]:
        """Set the amount of a limit, None to remove it; return the rows of that and of its alert."""
        assert self.spending is not None
        self.spending.advance(self._now())  # nothing of a window that has ended is announced
        spending.limit_micro = limit_micro
        row = self._limit_row(spending)
        if limit_micro is None and spending.ceiling_micro is None:
            return (row, *self._forget(spending))
        return (row, *self._alert_rows([spending], self._now()))

    def _limit_row(self, spending: Spending) -> ApiKeyLimitRow | AccountLimitRow:
        """Return the row of a limit as it is now."""
        account_id, of_window = self._units.state.account_id, (spending.starts_at, spending.captured_micro)
        if spending.key_id != WHOLE_ACCOUNT:
            return ApiKeyLimitRow(account_id, spending.key_id, spending.limit_micro, spending.window, *of_window)
        ceiling_micro = spending.ceiling_micro
        return AccountLimitRow(account_id, spending.window, spending.limit_micro, ceiling_micro, *of_window)

    def _forget(self, spending: Spending) -> tuple[Row, ...]:
        """Count no more for a limit; return the rows of its alert."""
        assert self.spending is not None
        self.spending.remove(spending)
        if not any(self.spending):
            self.spending = None
        return self._units.alert_rows(_subject_of(spending), None, partial(self._reached, spending), self._now())

    def _alert_rows(self, limits: Iterable[Spending], at: datetime) -> tuple[Row, ...]:
        """Return the rows of the alerts of limits of which the set share is spent, or in a new window is not."""
        rows: list[Row] = []
        alerts = self._units.alerts
        for each in limits:
            subject, marker = _subject_of(each), self._marker_of(each)
            # Once in a window, although a release may have made room since.
            if alerts.announced.get(subject) in (marker, marker + _EXCEEDED):
                continue
            is_reached = each.spent_micro >= alerts.limit_share * each.most_micro
            rows += self._units.alert_rows(
                subject, marker if is_reached else None, partial(self._reached, each), at
            )
        return tuple(rows)

    def _marker_of(self, limit: Spending) -> str:
        """Return the marker of a limit's alert: the window, the amount, and the share that is reached."""
        return f"{limit.starts_at:%Y-%m-%d} {limit.most_micro} {self._units.alerts.limit_share}"

    def _reached(self, limit: Spending) -> LimitReached:
        """Return the event of a limit of which the set share is spent, or that a hold would have exceeded."""
        return LimitReached(
            account_id=self._units.state.account_id,
            api_key_id=limit.key_id or None,
            limit=format_amount(limit.most_micro),
            window=limit.window,
            spent=format_amount(limit.spent_micro),
            limit_share=self._units.alerts.limit_share,
            resets_at=time_or_none(limit.resets_at),
        )


def _subject_of(limit: Spending) -> str:
    """Return the subject of a limit's alert."""
    return limit_subject(limit.key_id, limit.window)


def model_not_allowed(model_id: str, models: Sequence[str]) -> Refusal:
    """Return the refusal of a task of a model that its key may not use."""
    message = f"This API key may not use the model '{model_id}', only {', '.join(models)}."
    return Refusal(code="model_not_allowed", message=message, param="model")


def _above_ceiling(window: LimitWindow, limit_micro: int, ceiling_micro: int) -> Refusal:
    return Refusal(
        code="limit_above_ceiling",
        message=f"The limit of {format_amount(limit_micro)} ({window}) is above the operator's ceiling of "
        f"{format_amount(ceiling_micro)}.",
        param="limits",
    )
