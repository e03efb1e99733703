"""What is spent of the limits of an account, its keys and its groups: counted, written to rows, and announced.

What is spent is counted in the account's turn, with the holds and captures that it is the sum of. A limit that is
set later counts what the rows have, so the turn waits until all that was decided before is in them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial

from holdfast.actors.account.messages import CreateTask
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit
from holdfast.ledger.alerts.account_events import LimitReached
from holdfast.ledger.alerts.alerts import limit_subject
from holdfast.ledger.credit.limits import WHOLE_ACCOUNT, AccountSpending, Limit, LimitedHold, LimitKind, Spending
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_amount, time_or_none
from holdfast.persistence.queries.spending import new_spending, spending_of_key
from holdfast.persistence.records.key_rows import ApiKeyLimitRow
from holdfast.persistence.records.rows import AccountLimitRow, Row
from holdfast.persistence.server.database import Database

_EXCEEDED = " exceeded"
"""The end of the marker of a limit's alert if a hold was refused before the set share was spent."""


class CountedLimits:
    """The limits of one account, for one incarnation of its actor. ``spending`` is None without any."""

    __slots__ = ("_await_durable", "_database", "_now", "_units", "spending")

    def __init__(
        self,
        units: AccountUnits,
        spending: AccountSpending | None,
        *,
        database: Database,
        now: Now,
        await_durable: Callable[[], Awaitable[None]],
    ) -> None:
        self._units = units
        self.spending = spending
        self._database = database
        self._now = now
        self._await_durable = await_durable

    def of(self, limited_id: str) -> list[Spending]:
        """Return the limits of a key or group."""
        return [] if self.spending is None else self.spending.of(limited_id)

    def opened(self, hold_id: str, hold: LimitedHold) -> tuple[Row, ...]:
        """Count a new hold, where there are limits; return the rows of their alerts."""
        assert self.spending is not None
        self.spending.opened(hold_id, hold)
        return self.alert_rows(self.spending.counting(hold), hold.at)

    def settled(self, hold_id: str, charge_micro: int, at: datetime) -> tuple[Row, ...]:
        """Count the outcome of a hold, where there are limits; return the rows of those that it counts for."""
        assert self.spending is not None
        limits = self.spending.settled(hold_id, charge_micro)
        captured = [self.row(each) for each in limits if each.is_in_row] if charge_micro else []
        return (*captured, *self.alert_rows(limits, at))

    def refuse_hold(self, command: CreateTask, limit: Spending, at: datetime) -> Commit[Refusal]:
        """Refuse a hold that would exceed a limit. That is announced once in a window, as the limit's alert is."""
        refusal = limit.refusal(command.request.hold_micro)
        subject, marker = _subject_of(limit), self._marker_of(limit)
        if self._units.alerts.announced.get(subject) in (marker, marker + _EXCEEDED):
            return self._units.refuse(command, refusal)
        rows = self._units.alert_rows(subject, marker + _EXCEEDED, partial(self._reached, limit), at)
        return self._units.change(command, refusal, rows=rows)

    def add(self, spending: Spending, holds: dict[str, LimitedHold] | None = None) -> None:
        """Begin to count for a limit, and with ``holds`` the account's open ones."""
        if self.spending is None:
            self.spending = AccountSpending((), {})
        self.spending.add(spending, holds)

    async def begin(self, limited_id: str, kind: LimitKind, group_name: str | None = None) -> Spending:
        """Begin to count for a limit with what the rows have of it. Earlier decisions must be durable."""
        account_id, now = self._units.state.account_id, self._now()
        spending, holds = await self._database.read(
            new_spending, account_id, limited_id, *kind, group_name=group_name, now=now
        )
        self.add(spending, holds)
        return spending

    async def replace(
        self, limited_id: str, limits: Sequence[Limit], in_row: Limit | None = None, group_name: str | None = None
    ) -> tuple[Row, ...]:
        """Replace the limits of a key or group; return the rows of their alerts.

        ``in_row`` is the limit whose row has what was captured. Waits until earlier decisions are durable.
        """
        await self._await_durable()
        known = {each.kind: each for each in self.of(limited_id)}
        wanted = {each.kind: each for each in limits}
        rows = self.forget([each for kind, each in known.items() if kind not in wanted])
        for kind, limit in wanted.items():
            spending = known.get(kind) or await self.begin(limited_id, kind, group_name)
            spending.limit_micro, spending.is_in_row = limit.credits_micro, limit is in_row
        if self.spending is not None:
            self.spending.advance(self._now())  # nothing of a window that has ended is announced
        return (*rows, *self.alert_rows(self.of(limited_id), self._now()))

    async def move(self, key_id: str, before: str | None, after: str | None) -> tuple[Row, ...]:
        """Count a key in another group, None for in none; return the rows of alerts of both groups' limits."""
        limits = [each for group_id in (before, after) if group_id is not None for each in self.of(group_id)]
        if self.spending is None:
            return ()
        self.spending.advance(self._now())
        await self._await_durable()
        found = await self._database.read(spending_of_key, self._units.state.account_id, key_id, limits)
        self.spending.move(key_id, after or "", *found)
        return self.alert_rows(limits, self._now())

    def change(self, spending: Spending, *, limit_micro: int | None) -> tuple[Row, ...]:
        """Set the amount of a limit that has a row, None to remove it; return the rows of that and of its alert."""
        assert self.spending is not None
        self.spending.advance(self._now())  # nothing of a window that has ended is announced
        spending.limit_micro = limit_micro
        row = self.row(spending)
        if limit_micro is None and spending.ceiling_micro is None:
            return (row, *self.forget([spending]))
        return (row, *self.alert_rows([spending], self._now()))

    def row(self, spending: Spending) -> ApiKeyLimitRow | AccountLimitRow:
        """Return the row of a limit as it is now, of one that has such a row."""
        account_id, of_window = self._units.state.account_id, (spending.starts_at, spending.captured_micro)
        if spending.limited_id != WHOLE_ACCOUNT:
            key_id = spending.limited_id
            return ApiKeyLimitRow(account_id, key_id, spending.limit_micro, spending.window, *of_window)
        ceiling_micro = spending.ceiling_micro
        return AccountLimitRow(account_id, spending.window, spending.limit_micro, ceiling_micro, *of_window)

    def forget(self, limits: Iterable[Spending]) -> tuple[Row, ...]:
        """Count no more for some limits; return the rows of their alerts."""
        rows: tuple[Row, ...] = ()
        for each in limits:
            assert self.spending is not None
            self.spending.remove(each)
            if not any(self.spending):
                self.spending = None
            rows += self._units.alert_rows(_subject_of(each), None, partial(self._reached, each), self._now())
        return rows

    def alert_rows(self, limits: Iterable[Spending], at: datetime) -> tuple[Row, ...]:
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
        is_of_group = limit.group_name is not None
        return LimitReached(
            account_id=self._units.state.account_id,
            api_key_id=None if is_of_group else limit.limited_id or None,
            limit=format_amount(limit.most_micro),
            window=limit.window,
            models=list(limit.models) or None,
            spent=format_amount(limit.spent_micro),
            limit_share=self._units.alerts.limit_share,
            resets_at=time_or_none(limit.resets_at),
            group_id=limit.limited_id if is_of_group else None,
        )


def _subject_of(limit: Spending) -> str:
    """Return the subject of a limit's alert."""
    return limit_subject(limit.limited_id, limit.window, limit.models)
