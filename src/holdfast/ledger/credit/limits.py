"""Limits on what an API key, a group of keys, or a whole account, spends in a window of time.

What is spent of a limit are the holds made in its window: one that is open counts with its amount, one that was
captured with its charge, one that was released not at all. A capture never exceeds its hold, so whatever becomes of
a task later never raises what was spent above the limit. A hold belongs to the window of its own time, however late
it is settled.

What a group has spent is what its keys have spent, each since the window began, also before it came into the group.

Windows are computed from the time, in UTC; nothing has to be reset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias, assert_never, get_args

import msgspec

from holdfast.ledger.api_keys import is_model_allowed
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import ExceededLimit, Refusal
from holdfast.ledger.values import format_amount, format_time

WINDOWS: Final[tuple[LimitWindow, ...]] = get_args(LimitWindow)
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of the window ``total``."""
WHOLE_ACCOUNT: Final = ""
"""Stands for the id of a key or group where a limit is the account's."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most credit that may be spent in each window; with ``models``, for tasks of these alone."""

    credits_micro: int
    window: LimitWindow
    models: tuple[str, ...] = ()

    @property
    def kind(self) -> LimitKind:
        """What distinguishes it from the other limits of a key."""
        return self.window, self.models


LimitKind: TypeAlias = tuple[LimitWindow, tuple[str, ...]]
"""The window of a limit, and its models."""
_OVERLAPPED: Final[Mapping[LimitWindow, Mapping[LimitWindow, int]]] = {
    "day": {"day": 1, "week": 7, "month": 31},
    "week": {"day": 1, "week": 1, "month": 6},
    "month": {"day": 1, "week": 2, "month": 1},
    "total": {"day": 1, "week": 1, "month": 1, "total": 1},
}
"""In how many windows of a kind one of another kind lies at most, in part or whole."""


def most_within(limit: Limit, window: LimitWindow) -> int | None:
    """Return the most that may be spent of a limit within one window of another kind; None: it has no end.

    A month has days of up to six weeks, and a week those of two months.
    """
    count = _OVERLAPPED[limit.window].get(window)
    return None if count is None else limit.credits_micro * count


def more_of(own: Limit, wanted: Iterable[Limit], before: Iterable[Limit]) -> int | None:
    """Return how much more may be spent within one window of ``own`` by a key with limits ``wanted`` instead.

    None: any amount. ``before`` are the key's limits, of which what they allow was counted already. If none of them
    is raised or removed, nothing can be spent beyond that. Otherwise all that the new ones allow may be spent in
    addition to what was spent under the old ones, unless it is the only one of before that was raised.
    """
    after, known = _most_of(own, wanted), _most_of(own, before)
    if not after:
        return None
    if known and all(kind in after and after[kind] <= most for kind, most in known.items()):
        return 0
    raised = [after[kind] - most for kind, most in known.items() if kind in after] if len(known) == 1 else []
    return min([*after.values(), *raised])


def _most_of(own: Limit, limits: Iterable[Limit]) -> dict[LimitKind, int]:
    """Return how much each limit allows within one window of ``own``, of those that count for all that it does."""
    return {
        each.kind: most
        for each in limits
        if _covers(each.models, own.models) and (most := most_within(each, own.window)) is not None
    }


def _covers(models: Sequence[str], other: Sequence[str]) -> bool:
    """Whether every task of the models ``other`` is one of ``models``; none are all models."""
    return not models or (bool(other) and all(is_model_allowed(models, each) for each in other))


def window_start(window: LimitWindow, at: datetime) -> datetime:
    """Return when the window that a time is in began. A week begins on Monday."""
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match window:
        case "day":
            return midnight
        case "week":
            return midnight - timedelta(days=midnight.weekday())
        case "month":
            return midnight.replace(day=1)
        case "total":
            return BEGINNING
        case _:
            assert_never(window)


def window_end(window: LimitWindow, start: datetime) -> datetime | None:
    """Return when the window that began at ``start`` ends; None if it does not."""
    match window:
        case "day":
            return start + timedelta(days=1)
        case "week":
            return start + timedelta(days=7)
        case "month":
            return window_start("month", start + timedelta(days=31))
        case "total":
            return None
        case _:
            assert_never(window)


class LimitedHold(NamedTuple):
    """An open hold of a limited account: the API key of its task, its amount, its time and its model.

    ``group_id`` is the group that the key is in now; empty: in none.
    """

    key_id: str
    amount_micro: int
    at: datetime
    model: str = ""
    group_id: str = ""


@dataclass(slots=True, eq=False)
class Spending:
    """One limit and what is spent of it in the window that began at ``starts_at``.

    ``limited_id`` is that of the limited key or group, or :data:`WHOLE_ACCOUNT`; a group has its ``group_name``.
    ``limit_micro`` is the owner's limit, ``ceiling_micro`` the operator's; the lower one counts, and at least one
    is set. ``held_micro`` is the sum of the window's open holds, ``captured_micro`` what was captured of others.
    Only tasks of its ``models`` count, if it has any. ``is_in_row``: a row has what was captured; of other limits
    it is summed from the usage totals.
    """

    limited_id: str
    window: LimitWindow
    limit_micro: int | None
    ceiling_micro: int | None = None
    starts_at: datetime = BEGINNING
    captured_micro: int = 0
    held_micro: int = 0
    models: tuple[str, ...] = ()
    is_in_row: bool = True
    group_name: str | None = None

    @property
    def kind(self) -> LimitKind:
        """What distinguishes it from the other limits of its key, group or account."""
        return self.window, self.models

    @property
    def limit(self) -> Limit:
        """The limit as it counts."""
        return Limit(self.most_micro, self.window, self.models)

    @property
    def per(self) -> str:
        """For what the limit is, in words."""
        per = "in total" if self.window == "total" else f"a {self.window}"
        return f"{per} for {', '.join(self.models)}" if self.models else per

    @property
    def most_micro(self) -> int:
        """The most that may be spent in a window."""
        return min(each for each in (self.limit_micro, self.ceiling_micro) if each is not None)

    @property
    def spent_micro(self) -> int:
        """What is spent in this window. Above the limit only if that was lowered."""
        return self.captured_micro + self.held_micro

    @property
    def resets_at(self) -> datetime | None:
        """When the window ends; None if it does not."""
        return window_end(self.window, self.starts_at)

    def counts(self, hold: LimitedHold) -> bool:
        """Whether a hold is of this limit and window."""
        return self.limited_id in _limited_by(hold) and hold.at >= self.starts_at and self.is_of_model(hold.model)

    def is_of_model(self, model_id: str) -> bool:
        """Whether tasks of a model count."""
        return not self.models or is_model_allowed(self.models, model_id)

    def advance(self, at: datetime) -> bool:
        """Go on to the window of ``at``, never back: a clock that was set back stays in the newest window.

        Return whether it is another window, whose open holds are to be summed.
        """
        start = window_start(self.window, at)
        if start <= self.starts_at:
            return False
        self.starts_at, self.captured_micro = start, 0
        return True

    def hold_again(self, holds: Iterable[LimitedHold]) -> None:
        """Sum the window's open holds."""
        self.held_micro = sum(hold.amount_micro for hold in holds if self.counts(hold))

    def is_exceeded_by(self, amount_micro: int) -> bool:
        """Whether a hold would exceed the limit; one of zero never does."""
        return amount_micro > 0 and self.spent_micro + amount_micro > self.most_micro

    def refusal(self, amount_micro: int) -> Refusal:
        """Return the refusal of a hold that would exceed the limit."""
        most_micro, spent_micro = self.most_micro, self.spent_micro
        is_of_account = self.limited_id == WHOLE_ACCOUNT
        whose = "account's limit" if is_of_account else "API key's limit"
        if self.group_name is not None:
            whose = f"limit of the API key's group '{self.group_name}',"
        resets_at = self.resets_at
        until = "" if resets_at is None else f" until {format_time(resets_at)}"
        return Refusal(
            code="account_limit_exceeded" if is_of_account else "key_limit_exceeded",
            message=(
                f"The hold of {format_amount(amount_micro)} exceeds the {whose} of "
                f"{format_amount(most_micro)} {self.per}, of which {format_amount(spent_micro)} is spent{until}."
            ),
            required_micro=amount_micro,
            limit=ExceededLimit(
                credits_micro=most_micro,
                window=self.window,
                spent_micro=spent_micro,
                resets_at=resets_at,
                models=self.models,
                group_id=None if self.group_name is None else self.limited_id,
            ),
        )


def _limited_by(hold: LimitedHold) -> tuple[str, str, str]:
    """Return whose limits a hold counts for: its key's before its group's before the account's."""
    return hold.key_id, hold.group_id, WHOLE_ACCOUNT


class AccountSpending:
    """What is spent of the limits of one account, its keys and groups, with its open holds, as decided."""

    __slots__ = ("_by_id", "_holds")

    def __init__(self, limits: Iterable[Spending], holds: dict[str, LimitedHold]) -> None:
        self._holds = holds
        self._by_id: defaultdict[str, list[Spending]] = defaultdict(list)
        self._add(list(limits))

    def __iter__(self) -> Iterator[Spending]:
        return (each for of_id in self._by_id.values() for each in of_id)

    def add(self, spending: Spending, holds: dict[str, LimitedHold] | None = None) -> None:
        """Add a limit, with what was captured in its window.

        ``holds`` are all open ones; without them the limit must be one of which there are none yet.
        """
        self._holds = self._holds if holds is None else holds
        self._add([spending])

    def _add(self, limits: Sequence[Spending]) -> None:
        newest = max((hold.at for hold in self._holds.values()), default=BEGINNING)
        for each in limits:
            self._by_id[each.limited_id].append(each)
            each.advance(newest)
        self._sum_holds(limits)

    def _sum_holds(self, limits: Sequence[Spending]) -> None:
        """Sum the open holds of some limits. There may be many of both, so each hold is looked at for its own."""
        by_id: defaultdict[str, list[LimitedHold]] = defaultdict(list)
        for hold in self._holds.values():
            for limited_id in dict.fromkeys(_limited_by(hold)):
                by_id[limited_id].append(hold)
        for each in limits:
            each.hold_again(by_id[each.limited_id])

    def remove(self, spending: Spending) -> None:
        """Remove a limit."""
        others = self._by_id[spending.limited_id]
        others.remove(spending)
        if not others:
            del self._by_id[spending.limited_id]

    def of(self, limited_id: str) -> list[Spending]:
        """Return the limits of a key or group."""
        return list(self._by_id.get(limited_id, ()))

    def of_account(self) -> dict[LimitWindow, Spending]:
        """Return the account's own limits by their windows."""
        return {each.window: each for each in self._by_id.get(WHOLE_ACCOUNT, ())}

    def advance(self, at: datetime) -> None:
        """Go on to the windows of ``at``."""
        self._advance(self, at)

    def _advance(self, limits: Iterable[Spending], at: datetime) -> None:
        moved = [each for each in limits if each.advance(at)]
        if moved:
            self._sum_holds(moved)

    def move(
        self, key_id: str, group_id: str, captured: Mapping[Spending, int], holds: Mapping[str, LimitedHold]
    ) -> None:
        """Count a key in another group, or with an empty id in none.

        ``captured`` is what was captured of the key's holds in the window of each limit of either group, ``holds``
        all open ones.
        """
        self._holds = {
            hold_id: hold._replace(group_id=group_id) if hold.key_id == key_id else hold
            for hold_id, hold in holds.items()
        }
        for each, captured_micro in captured.items():
            each.captured_micro += captured_micro if each.limited_id == group_id else -captured_micro
        self._sum_holds(list(captured))

    def time_of(self, hold: LimitedHold) -> datetime:
        """Return the time of a hold that is made now: not before the windows that it counts in."""
        return max([hold.at, *(each.starts_at for each in self.counting(hold))])

    def exceeded(self, hold: LimitedHold) -> Spending | None:
        """Return a limit that a hold would exceed, the key's, its group's or the account's; None: it is allowed."""
        counting = list(self.counting(hold))
        self._advance(counting, hold.at)
        return next((each for each in counting if each.is_exceeded_by(hold.amount_micro)), None)

    def opened(self, hold_id: str, hold: LimitedHold) -> None:
        """Count a new hold."""
        self._holds[hold_id] = hold
        for each in self.counting(hold):
            each.held_micro += hold.amount_micro

    def settled(self, hold_id: str, charge_micro: int) -> list[Spending]:
        """Count the outcome of a hold; return the limits of its key, its group and the account.

        They include those that have gone on to a newer window: the rows do not know of that window yet, and what is
        captured now is not in it.
        """
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return []  # it was opened before any limit that it could count for
        limits = list(self.counting(hold))
        for each in limits:
            if each.counts(hold):
                each.held_micro -= hold.amount_micro
                each.captured_micro += charge_micro
        return limits

    def counting(self, hold: LimitedHold) -> Iterator[Spending]:
        """Yield the limits that a hold counts for, in whatever window it is."""
        for limited_id in dict.fromkeys(_limited_by(hold)):
            for each in self._by_id.get(limited_id, ()):
                if each.is_of_model(hold.model):
                    yield each
