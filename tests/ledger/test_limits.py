"""Limits: their windows, and what is spent of them compared with a model that only adds up holds and captures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.ledger.api_keys import API_KEY_EXPIRED, API_KEY_PAUSED, KeyChanges, KeyTerms, is_model_allowed
from holdfast.ledger.credit.limits import (
    BEGINNING,
    WHOLE_ACCOUNT,
    WINDOWS,
    AccountSpending,
    Limit,
    LimitedHold,
    Spending,
    more_of,
    window_end,
    window_start,
)
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import ExceededLimit, Refusal

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
"""A Wednesday."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("window", "time", "start", "end"),
    [
        ("day", "2026-11-25T12:00:00Z", "2026-11-25T00:00:00Z", "2026-11-26T00:00:00Z"),
        ("day", "2026-11-25T00:00:00Z", "2026-11-25T00:00:00Z", "2026-11-26T00:00:00Z"),
        ("day", "2026-11-25T23:59:59.999Z", "2026-11-25T00:00:00Z", "2026-11-26T00:00:00Z"),
        ("day", "2026-11-26T01:30:00+03:00", "2026-11-25T00:00:00Z", "2026-11-26T00:00:00Z"),
        ("week", "2026-11-25T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("week", "2026-11-29T23:59:59.999Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("week", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"),
        ("week", "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"),
        ("month", "2026-12-31T23:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("month", "2026-12-01T02:00:00+05:00", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_windows_are_in_utc_and_weeks_begin_on_monday(window: LimitWindow, time: str, start: str, end: str) -> None:
    assert window_start(window, at(time)) == at(start)
    assert window_end(window, at(start)) == at(end)


def test_a_total_has_no_end() -> None:
    assert window_start("total", NOON) == BEGINNING
    assert window_end("total", BEGINNING) is None


def of_key(credits_micro: int, window: LimitWindow = "day", key_id: str = "key_1") -> Spending:
    return Spending(key_id, window, credits_micro, starts_at=window_start(window, NOON))


def of_account(credits_micro: int | None, window: LimitWindow = "day", *, ceiling: int | None = None) -> Spending:
    return Spending(WHOLE_ACCOUNT, window, credits_micro, ceiling, window_start(window, NOON))


def opened(
    spending: AccountSpending,
    hold_id: str,
    amount_micro: int,
    time: datetime = NOON,
    key_id: str = "key_1",
    *,
    group_id: str = "",
) -> Refusal | None:
    """Make a hold as an account does, unless a limit refuses it."""
    hold = LimitedHold(key_id, amount_micro, time, group_id=group_id)
    hold = hold._replace(at=spending.time_of(hold))
    limit = spending.exceeded(hold)
    if limit is not None:
        return limit.refusal(amount_micro)
    spending.opened(hold_id, hold)
    return None


def test_a_refusal_says_what_is_spent_and_when_it_resets() -> None:
    spending = AccountSpending([of_key(5_000_000)], {})
    assert opened(spending, "h1", 4_980_000) is None
    refusal = opened(spending, "h2", 40_000)
    assert refusal is not None
    assert (refusal.code, refusal.required_micro) == ("key_limit_exceeded", 40_000)
    assert refusal.limit == ExceededLimit(
        credits_micro=5_000_000, window="day", spent_micro=4_980_000, resets_at=at("2026-11-26T00:00:00Z")
    )
    assert refusal.message == (
        "The hold of 0.04 exceeds the API key's limit of 5.00 a day, of which 4.98 is spent until "
        "2026-11-26T00:00:00.000Z."
    )
    # Exactly the rest, and what is free, are not too much.
    assert opened(spending, "h3", 20_000) is None
    assert opened(spending, "h4", 0) is None
    assert opened(spending, "h5", 1) is not None


def test_the_keys_limit_is_refused_before_the_accounts() -> None:
    spending = AccountSpending([of_account(10, "total"), of_key(10)], {})
    first, other = opened(spending, "h1", 11), opened(spending, "h2", 11, key_id="key_2")
    assert first is not None
    assert other is not None
    assert [first.code, other.code] == ["key_limit_exceeded", "account_limit_exceeded"]
    assert (
        other.message
        == "The hold of 0.000011 exceeds the account's limit of 0.00001 in total, of which 0.00 is spent."
    )


def of_group(credits_micro: int, group_id: str = "grp_1") -> Spending:
    return Spending(group_id, "day", credits_micro, starts_at=window_start("day", NOON), group_name="team")


def test_the_keys_of_a_group_share_its_limit_and_its_refusal_names_it() -> None:
    spending = AccountSpending([of_account(100, "total"), of_group(10), of_key(8)], {})
    assert opened(spending, "h1", 6, group_id="grp_1") is None
    own = opened(spending, "h2", 5, group_id="grp_1")
    shared = opened(spending, "h3", 5, key_id="key_2", group_id="grp_1")
    assert (own and own.message.split(" of ")[1]) == "0.000005 exceeds the API key's limit"
    assert shared is not None
    assert (shared.code, shared.limit and shared.limit.group_id) == ("key_limit_exceeded", "grp_1")
    assert shared.message == (
        "The hold of 0.000005 exceeds the limit of the API key's group 'team', of 0.00001 a day, of which 0.000006 "
        "is spent until 2026-11-26T00:00:00.000Z."
    )
    assert opened(spending, "h4", 5, key_id="key_2") is None
    assert opened(spending, "h5", 4, key_id="key_2", group_id="grp_1") is None


def test_a_key_brings_what_it_has_spent_into_a_group_and_takes_it_away() -> None:
    holds = {"h1": LimitedHold("key_1", 6, NOON), "h2": LimitedHold("key_2", 3, NOON, group_id="grp_1")}
    spending = AccountSpending([first := of_group(10), other := of_group(10, "grp_2")], holds)
    assert (first.spent_micro, other.spent_micro) == (3, 0)
    spending.move("key_1", "grp_1", {first: 5}, holds)
    assert (first.captured_micro, first.held_micro) == (5, 9)
    assert opened(spending, "h3", 1, key_id="key_2", group_id="grp_1") is not None
    spending.settled("h1", 2)
    assert (first.captured_micro, first.held_micro) == (7, 3)
    holds = {"h2": holds["h2"]}
    spending.move("key_1", "grp_2", {first: 7, other: 7}, holds)
    spending.move("key_2", "", {first: 0}, holds)
    assert [(each.captured_micro, each.held_micro) for each in (first, other)] == [(0, 0), (7, 0)]


def test_the_lower_one_of_a_limit_and_a_ceiling_counts() -> None:
    for limit, ceiling in ((10, 20), (20, 10), (None, 10)):
        spending = AccountSpending([of_account(limit, ceiling=ceiling)], {})
        assert opened(spending, "h1", 10) is None
        assert opened(spending, "h2", 1) is not None


def test_a_capture_counts_in_the_window_of_its_hold() -> None:
    spending = AccountSpending([limit := of_key(10)], {})
    assert opened(spending, "h1", 10, at("2026-11-25T23:59:59Z")) is None
    # The next day is empty, and yesterday's hold takes nothing of it, open or captured.
    assert opened(spending, "h2", 4, at("2026-11-26T00:00:00Z")) is None
    assert spending.settled("h1", 10) == [limit]
    assert (limit.captured_micro, limit.held_micro) == (0, 4)
    assert spending.settled("h2", 3) == [limit]
    assert (limit.captured_micro, limit.held_micro) == (3, 0)
    assert opened(spending, "h3", 8, at("2026-11-26T09:00:00Z")) is not None


def test_a_release_and_the_rest_of_a_capture_can_be_spent_again() -> None:
    spending = AccountSpending([limit := of_key(10)], {})
    assert opened(spending, "h1", 6) is None
    assert opened(spending, "h2", 4) is None
    assert opened(spending, "h3", 1) is not None
    assert spending.settled("h1", 0) == [limit]
    assert opened(spending, "h4", 6) is None
    spending.settled("h4", 2)
    assert opened(spending, "h5", 4) is None
    assert opened(spending, "h6", 1) is not None


def test_a_limit_lowered_below_what_is_spent_refuses_from_then_on() -> None:
    spending = AccountSpending([limit := of_key(10)], {})
    assert opened(spending, "h1", 8) is None
    limit.limit_micro = 5
    refusal = opened(spending, "h2", 1)
    assert refusal is not None
    assert refusal.limit is not None
    assert (refusal.limit.credits_micro, refusal.limit.spent_micro) == (5, 8)
    assert opened(spending, "h3", 5, at("2026-11-26T00:00:00Z")) is None


def test_a_clock_that_is_set_back_stays_in_the_newest_window() -> None:
    spending = AccountSpending([limit := of_key(10)], {})
    midnight = at("2026-11-26T00:00:00Z")
    assert opened(spending, "h1", 6, midnight) is None
    back = midnight - timedelta(minutes=5)
    assert spending.time_of(LimitedHold("key_1", 6, back)) == midnight
    assert opened(spending, "h2", 6, back) is not None
    assert opened(spending, "h3", 4, back) is None
    spending.settled("h3", 4)
    assert (limit.starts_at, limit.spent_micro) == (midnight, 10)
    # Another process that reads the rows finds the window by its holds, also with its clock behind.
    read = AccountSpending([again := of_key(10)], {"h1": LimitedHold("key_1", 6, midnight)})
    assert (again.starts_at, again.spent_micro) == (midnight, 6)
    assert opened(read, "h2", 5, back) is not None


def test_a_limit_set_later_counts_the_open_holds() -> None:
    holds = {"h1": LimitedHold("key_1", 6, NOON), "h2": LimitedHold("key_2", 3, NOON)}
    spending = AccountSpending([], {})
    spending.add(of_key(10), holds)
    spending.add(of_account(10), holds)
    assert opened(spending, "h3", 5) is not None
    assert opened(spending, "h3", 2, key_id="key_2") is not None
    assert opened(spending, "h3", 1, key_id="key_2") is None
    spending.settled("h1", 6)
    assert [each.spent_micro for each in spending] == [6, 10]
    [removed] = [each for each in spending if each.limited_id == "key_1"]
    spending.remove(removed)
    assert spending.of("key_1") == []
    assert list(spending.of_account()) == ["day"]


def test_a_hold_from_before_a_new_keys_limit_is_not_its_own() -> None:
    spending = AccountSpending([of_key(10)], {})
    assert spending.settled("of another key", 3) == []


@pytest.mark.parametrize(
    ("own", "wanted", "before", "more"),
    [
        (Limit(9, "month"), [], [], None),
        (Limit(9, "month"), [Limit(1, "day")], [], 31),
        (Limit(9, "month"), [Limit(1, "day"), Limit(5, "month")], [], 5),
        (Limit(9, "total"), [Limit(1, "day")], [], None),
        # Only what counts for all that the calling key's limit counts is a bound on it.
        (Limit(9, "day"), [Limit(1, "day", ("studio/*",))], [], None),
        (Limit(9, "day", ("studio/image-1",)), [Limit(1, "day", ("studio/*",))], [], 1),
        (Limit(9, "day", ("studio/*",)), [Limit(1, "day", ("studio/image-1",))], [], None),
        (Limit(9, "day", ("studio/*",)), [Limit(2, "day")], [], 2),
        # The only limit is raised by the difference; lowered, or with another beside it, it allows no more.
        (Limit(9, "day"), [Limit(3, "day")], [Limit(1, "day")], 2),
        (Limit(9, "day"), [Limit(1, "day")], [Limit(3, "day")], 0),
        (Limit(9, "month"), [Limit(1, "day"), Limit(20, "month")], [Limit(1, "day")], 0),
        # What was spent under a limit that is removed or not the only one comes on top.
        (Limit(9, "month"), [Limit(1, "day")], [Limit(1, "day"), Limit(5, "month")], 31),
        (Limit(9, "month"), [Limit(1, "day"), Limit(6, "month")], [Limit(1, "day"), Limit(5, "month")], 6),
        (Limit(9, "month"), [Limit(5, "week")], [Limit(5, "month")], 30),
    ],
)
def test_what_a_key_may_spend_more_of_a_limit_of_its_maker(
    own: Limit, wanted: list[Limit], before: list[Limit], more: int | None
) -> None:
    assert more_of(own, wanted, before) == more


# ------------------------------------------------------------------------------------------- against a model


KEYS = ("key_1", "key_2", "key_3")
TIMES = st.integers(-40 * 24, 40 * 24).map(lambda hours: NOON + timedelta(hours=hours))


@given(
    limits=st.lists(
        st.tuples(st.sampled_from([WHOLE_ACCOUNT, *KEYS]), st.sampled_from(WINDOWS), TIMES), max_size=8
    ),
    holds=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9), TIMES), max_size=8),
    now=TIMES,
)
def test_limits_read_from_rows_are_in_the_newest_window_of_any_hold(
    limits: list[tuple[str, LimitWindow, datetime]], holds: list[tuple[str, int, datetime]], now: datetime
) -> None:
    """A limit at a time, a hold at a time: what rows had captured counts only in their own window."""
    read = [Spending(key_id, each, 9, None, window_start(each, at), 100) for key_id, each, at in limits]
    spending = AccountSpending(read, {f"h{n}": LimitedHold(*hold) for n, hold in enumerate(holds)})

    def expected(limit: tuple[str, LimitWindow, datetime], times: list[datetime]) -> tuple[datetime, int, int]:
        key_id, window, at = limit
        before = start = window_start(window, at)
        for time in times:
            start = max(start, window_start(window, time))
        held = sum(hold[1] for hold in holds if key_id in (hold[0], WHOLE_ACCOUNT) and hold[2] >= start)
        return start, 100 if start == before else 0, held

    def found() -> list[tuple[datetime, int, int]]:
        return [(each.starts_at, each.captured_micro, each.held_micro) for each in read]

    times = [hold[2] for hold in holds]
    assert found() == [expected(limit, times) for limit in limits]
    spending.advance(now)
    assert found() == [expected(limit, [*times, now]) for limit in limits]


def test_a_hold_is_looked_at_for_its_own_limits_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[LimitedHold] = []
    counts, day = Spending.counts, timedelta(days=1)

    def counting(self: Spending, hold: LimitedHold) -> bool:
        looked.append(hold)
        return counts(self, hold)

    monkeypatch.setattr(Spending, "counts", counting)
    holds = {f"h{n}": LimitedHold(f"key_{n % 100}", 1, NOON + day) for n in range(1000)}
    limits = [*(of_key(9, key_id=f"key_{n}") for n in range(100)), *(of_account(9, each) for each in WINDOWS)]
    spending = AccountSpending(limits, holds)
    assert [each.held_micro for each in limits] == [10] * 100 + [1000] * 4
    assert len(looked) == 5 * len(holds)
    looked.clear()
    spending.advance(NOON + day)
    assert looked == []
    spending.advance(NOON + 2 * day)
    assert [each.held_micro for each in limits] == [0] * 101 + [1000] * 3
    assert len(looked) == 2 * len(holds)


class Hold(NamedTuple):
    key_id: str
    amount_micro: int
    at: datetime
    model: str
    outcome_micro: int | None = None


class Histories(RuleBasedStateMachine):
    """Holds and settlements of two keys with several limits and groups, which change; the clock moves, too."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.holds: dict[str, Hold] = {}
        self.groups: dict[str, str] = {}
        self.spending = AccountSpending([], {})

    def is_of(self, hold: Hold, limited_id: str, models: tuple[str, ...]) -> bool:
        """Whether a hold counts for such a limit, by the ids of the models alone."""
        is_of_owner = limited_id in (hold.key_id, self.groups.get(hold.key_id), WHOLE_ACCOUNT)
        return is_of_owner and (not models or hold.model.split("/")[0] in models[0])

    def spent(self, limit: Spending) -> int:
        """Add up what counts, from all that ever happened."""
        end = window_end(limit.window, limit.starts_at)
        return sum(
            hold.amount_micro if hold.outcome_micro is None else hold.outcome_micro
            for hold in self.holds.values()
            if self.is_of(hold, limit.limited_id, limit.models)
            and hold.at >= limit.starts_at
            and (end is None or hold.at < end)
        )

    def captured(self, key_id: str, models: tuple[str, ...], start: datetime) -> int:
        """What rows say of a window: the captures of its holds."""
        return sum(
            hold.outcome_micro or 0
            for hold in self.holds.values()
            if self.is_of(hold, key_id, models) and hold.at >= start
        )

    def open_holds(self) -> dict[str, LimitedHold]:
        return {
            hold_id: LimitedHold(
                hold.key_id, hold.amount_micro, hold.at, hold.model, self.groups.get(hold.key_id, "")
            )
            for hold_id, hold in self.holds.items()
            if hold.outcome_micro is None
        }

    @rule(hours=st.sampled_from([-1, 1, 7, 24, 24 * 9]))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)

    @rule(
        key_id=st.sampled_from([WHOLE_ACCOUNT, "key_1", "key_2", "grp_1", "grp_2"]),
        window=st.sampled_from(WINDOWS),
        models=st.sampled_from([(), ("studio/*",), ("gpu/*",)]),
        most=st.integers(0, 30),
    )
    def set_limit(self, key_id: str, window: LimitWindow, models: tuple[str, ...], most: int) -> None:
        """Set a limit, or with zero remove it."""
        models = () if key_id == WHOLE_ACCOUNT else models
        known = next(
            (each for each in self.spending if (each.limited_id, *each.kind) == (key_id, window, models)), None
        )
        if known is not None and most:
            known.limit_micro = most
        if known is not None and not most:
            self.spending.remove(known)
        if known is not None or not most:
            return
        newest = max([self.now, *(hold.at for hold in self.holds.values())])
        start = window_start(window, newest)
        captured = self.captured(key_id, models, start)
        new = Spending(key_id, window, most, starts_at=start, captured_micro=captured, models=models)
        new.group_name = key_id if key_id.startswith("grp") else None
        self.spending.add(new, self.open_holds())

    @rule(key_id=st.sampled_from(["key_1", "key_2"]), group_id=st.sampled_from(["", "grp_1", "grp_2"]))
    def move(self, key_id: str, group_id: str) -> None:
        """Put a key into another group, or into none."""
        before = self.groups.get(key_id, "")
        if group_id == before:
            return
        self.spending.advance(self.now)
        limits = [each for each_id in (before, group_id) if each_id for each in self.spending.of(each_id)]
        captured = {each: self.captured(key_id, each.models, each.starts_at) for each in limits}
        self.spending.move(key_id, group_id, captured, self.open_holds())
        self.groups[key_id] = group_id

    @rule()
    def restart(self) -> None:
        """The limits are counted again from rows, in the window of the newest task at first."""
        newest = max((hold.at for hold in self.holds.values()), default=BEGINNING)
        again = [
            replace(each, starts_at=max(each.starts_at, window_start(each.window, newest)), held_micro=0)
            for each in self.spending
        ]
        for each in again:
            each.captured_micro = self.captured(each.limited_id, each.models, each.starts_at)
        self.spending = AccountSpending(again, self.open_holds())

    @rule(
        key_id=st.sampled_from(["key_1", "key_2"]),
        amount=st.integers(0, 12),
        model=st.sampled_from(["studio/image-1", "gpu/clip-1"]),
    )
    def hold(self, key_id: str, amount: int, model: str) -> None:
        hold_id, group_id = f"h{len(self.holds)}", self.groups.get(key_id, "")
        time = self.spending.time_of(LimitedHold(key_id, amount, self.now, model, group_id))
        self.spending.advance(time)
        hold = Hold(key_id, amount, time, model)
        counting = [each for each in self.spending if self.is_of(hold, each.limited_id, each.models)]
        fits = amount == 0 or all(self.spent(each) + amount <= each.most_micro for each in counting)
        limited = LimitedHold(key_id, amount, time, model, group_id)
        exceeded = self.spending.exceeded(limited)
        assert (exceeded is None) == fits
        if exceeded is None:
            self.spending.opened(hold_id, limited)
            self.holds[hold_id] = hold

    @precondition(lambda self: any(hold.outcome_micro is None for hold in self.holds.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        hold_id = data.draw(st.sampled_from([k for k, hold in self.holds.items() if hold.outcome_micro is None]))
        hold = self.holds[hold_id]
        charge = data.draw(st.integers(0, hold.amount_micro))
        limited = self.open_holds()[hold_id]
        changed = self.spending.settled(hold_id, charge)
        self.holds[hold_id] = hold._replace(outcome_micro=charge)
        assert changed in ([], list(self.spending.counting(limited)))

    @invariant()
    def what_is_spent_is_what_a_model_adds_up(self) -> None:
        for each in self.spending:
            assert each.spent_micro == self.spent(each)
            assert each.captured_micro == self.captured(each.limited_id, each.models, each.starts_at)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


# ------------------------------------------------------------------------------------------- keys


def test_a_key_is_refused_from_its_expiry_on_and_while_it_is_paused() -> None:
    def refused(expires_at: datetime | None, *, is_paused: bool = False) -> Refusal | None:
        return KeyTerms("k", (), expires_at=expires_at, is_paused=is_paused).refuse_use(lambda: NOON)

    moment = timedelta(milliseconds=1)
    assert refused(None) is None
    assert refused(NOON + moment) is None
    assert refused(NOON) == API_KEY_EXPIRED
    assert refused(NOON.astimezone(timezone(timedelta(hours=5)))) == API_KEY_EXPIRED
    assert refused(None, is_paused=True) == API_KEY_PAUSED
    assert refused(NOON - moment, is_paused=True) == API_KEY_EXPIRED


def test_what_changes_of_a_key_are_its_terms() -> None:
    terms = get_type_hints(KeyTerms)
    changes = get_type_hints(KeyChanges)
    assert changes == {name: terms[name] for name in terms if name != "scopes"}


@pytest.mark.parametrize(
    ("models", "model_id", "is_allowed"),
    [
        (("studio/image-1",), "studio/image-1", True),
        (("studio/image-1",), "studio/image-10", False),
        (("studio/*",), "studio/image-1", True),
        (("studio/*",), "studio2/image-1", False),
        (("studio/*",), "studio", False),
        (("other/*", "studio/image-1"), "studio/image-1", True),
    ],
)
def test_a_key_uses_its_models(models: tuple[str, ...], model_id: str, is_allowed: bool) -> None:
    assert is_model_allowed(models, model_id) == is_allowed
