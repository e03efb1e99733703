"""Lots of credit against a model of their own: which are used, what is left, what expires and what is owed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.lot_model import Model, ModelLot

from holdfast.ledger.credit.account import (
    LOTS_MAX,
    AccountState,
    decide_adjustment,
    decide_bonus,
    decide_bonus_void,
    decide_capture,
    decide_credit,
    decide_expiry,
    decide_grant,
    decide_hold,
    decide_release,
    decide_reversal,
    decide_void,
)
from holdfast.ledger.credit.operations import Lot, LotPart, Lots, Operation, OperationKind, amounts_of
from holdfast.ledger.refusals import Refusal

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
amounts = st.integers(1, 30)
hours = st.one_of(st.none(), st.integers(1, 6))
references = st.sampled_from(["ord_1", "ord_2", "ord_3"])


class Credit(RuleBasedStateMachine):
    """Any history of an account, with a clock that the history advances."""

    def __init__(self) -> None:
        super().__init__()
        self.state = AccountState("acct_1")
        self.model = Model()
        self.at = NOON
        self.history: list[Operation] = []
        self.posted: Counter[tuple[int | None, str]] = Counter()
        self.open: dict[str, int] = {}

    @property
    def details(self) -> dict[str, Any]:
        return {"operation_id": f"op_{self.state.number + 1}", "reason": "why", "at": self.at}

    def happen(self, decided: Operation | Refusal) -> Operation:
        assert isinstance(decided, Operation)
        assert sum(posting.amount_micro for posting in decided.postings) == 0
        self.state.apply(decided)
        self.history.append(decided)
        for ledger_account, amount_micro, lot in decided.postings:
            assert (lot is None) or ledger_account in ("available", "held")
            self.posted[lot, ledger_account] += amount_micro
        return decided

    def until(self, in_hours: int | None) -> datetime | None:
        return None if in_hours is None else self.at + in_hours * HOUR

    @rule(in_hours=st.integers(0, 4))
    def wait(self, in_hours: int) -> None:
        self.at += in_hours * HOUR

    @rule(amount=amounts, in_hours=hours, reference=references)
    def credit(self, amount: int, in_hours: int | None, reference: str) -> None:
        until = self.until(in_hours)
        self.model.give(ModelLot(self.state.number + 1, True, until, reference, amount))
        self.happen(
            decide_credit(
                self.state, amount_micro=amount, source="s", expires_at=until, reference=reference, **self.details
            )
        )

    @rule(amount=amounts, in_hours=hours)
    def grant(self, amount: int, in_hours: int | None) -> None:
        until = self.until(in_hours)
        self.model.give(ModelLot(self.state.number + 1, False, until, "act", amount))
        self.happen(
            decide_grant(
                self.state,
                amount_micro=amount,
                lot_source="grant",
                expires_at=until,
                reference="act",
                **self.details,
            )
        )

    @rule(amount=amounts, in_hours=st.integers(0, 6), reference=references)
    def give_bonus(self, amount: int, in_hours: int, reference: str) -> None:
        until = self.at + in_hours * HOUR
        decided = decide_bonus(
            self.state, amount_micro=amount, expires_at=until, reference=reference, **self.details
        )
        if not in_hours:
            assert decided is None
            return
        self.model.give(ModelLot(self.state.number + 1, False, until, reference, amount))
        assert decided is not None
        given = self.happen(decided)
        assert (given.kind, given.amount_micro) == ("grant", amount)

    @rule(amount=amounts, reference=references)
    def void_bonus(self, amount: int, reference: str) -> None:
        """At most what is free of this order's bonus, and nothing of what it has paid for."""
        decided = decide_bonus_void(self.state, amount_micro=amount, reference=reference, **self.details)
        left = sum(lot.free for lot in self.model.bonuses(reference))
        if not left:
            assert decided is None
            return
        assert decided is not None
        voided = self.happen(decided)
        assert voided.amount_micro == -min(amount, left)
        self.model.void_bonus(reference, min(amount, left))
        assert self.state.available_micro >= 0

    @rule(amount=st.integers(-30, 30).filter(bool))
    def adjust(self, amount: int) -> None:
        decided = decide_adjustment(self.state, amount_micro=amount, reference="act", **self.details)
        if amount < 0 and self.model.available() + amount < 0:
            assert isinstance(decided, Refusal)
            return
        if amount > 0:
            self.model.give(ModelLot(self.state.number + 1, True, None, "act", amount))
        else:
            self.model.take(-amount, self.model.in_order())
        self.happen(decided)

    @rule(amount=st.integers(0, 40))
    def hold(self, amount: int) -> None:
        hold_id = f"hold_{self.state.number + 1}"
        decided = decide_hold(
            self.state,
            operation_id=f"op_{self.state.number + 1}",
            hold_id=hold_id,
            amount_micro=amount,
            reference="task",
            at=self.at,
        )
        spendable = self.model.spendable(self.at)
        if spendable < max(amount, 0):
            assert isinstance(decided, Refusal)
            assert (decided.code, decided.available_micro) == ("insufficient_credit", spendable)
            return
        self.model.hold(hold_id, amount, self.at)
        self.open[hold_id] = amount
        self.happen(decided)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        hold_id = data.draw(st.sampled_from(sorted(self.open)))
        amount = self.open.pop(hold_id)
        charge = data.draw(st.one_of(st.none(), st.integers(0, amount)))
        self.model.settle(hold_id, charge or 0)
        if charge is None:
            self.happen(decide_release(self.state, hold_id=hold_id, reference="task", **self.details))
        else:
            self.happen(
                decide_capture(self.state, hold_id=hold_id, charge_micro=charge, reference="task", **self.details)
            )

    @rule(amount=amounts, reference=references)
    def reverse(self, amount: int, reference: str) -> None:
        self.model.reverse(amount, reference)
        self.happen(
            decide_reversal(self.state, amount_micro=amount, source="s", reference=reference, **self.details)
        )

    @rule(number=st.integers(1, 40))
    def void(self, number: int) -> None:
        lot = self.model.lots.get(number)
        decided = decide_void(self.state, lot_number=number, reference="act_1", **self.details)
        if lot is None or not lot.free + lot.held.total():
            assert isinstance(decided, Refusal)
            assert decided.code == "credit_lot_not_found"
        elif lot.is_paid or not lot.free:
            assert isinstance(decided, Refusal)
            assert decided.code == "credit_lot_not_voidable"
        else:
            voided = self.happen(decided)
            assert voided.amount_micro == -lot.free
            assert voided.postings == (("adjustments", lot.free, None), ("available", -lot.free, number))
            self.model.void(number, lot.free)

    @rule()
    def expire(self) -> None:
        self.model.expire(self.at)
        for lot in self.state.lots.expired(self.at):
            self.happen(decide_expiry(self.state, lot, operation_id="op", at=self.at))
        assert self.state.lots.expired(self.at) == []

    @invariant()
    def lots_and_debt_are_those_of_the_model(self) -> None:
        found = {lot.number: (lot.remaining_micro, lot.reserved_micro) for lot in self.state.lots}
        assert found == self.model.left()
        expiries = [lot.expires_at for lot in self.state.lots if lot.expires_at is not None]
        assert self.state.lots._first_expiry == min(expiries, default=datetime.max.replace(tzinfo=UTC))
        assert [lot.number for lot in self.state.lots] == [
            lot.number for lot in self.model.in_order() if lot.number in found
        ]
        assert self.state.debt_micro == self.model.debt
        assert self.state.spendable_micro(self.at) == self.model.spendable(self.at)
        assert self.state.holds == self.open

    @invariant()
    def lots_are_the_sums_of_their_postings(self) -> None:
        for lot in self.state.lots:
            assert self.posted[lot.number, "held"] == lot.reserved_micro
            assert self.posted[lot.number, "available"] == lot.free_micro
        assert -self.posted[None, "available"] == self.state.debt_micro
        assert self.posted[None, "held"] == 0

    @invariant()
    def the_books_have_what_expired(self) -> None:
        granted = sum(op.amount_micro for op in self.history if op.kind is OperationKind.GRANT)
        assert self.posted[None, "breakage"] == self.model.expired[True]
        assert self.posted[None, "promotions"] == self.model.expired[False] - granted

    @invariant()
    def the_account_s_row_gives_the_same_lots(self) -> None:
        """What an actor that starts reads: the facts of the open lots, the totals, and one column."""
        state = self.state
        opened = [LotPart(lot.number, lot.amount_micro) for lot in state.lots]
        encoded = state.lots.encoded()
        assert (encoded is None) == (len(opened) < 2)
        read = amounts_of(opened, encoded, balance_micro=state.balance_micro, held_micro=state.held_micro)
        assert read == {lot.number: (lot.remaining_micro, lot.reserved_micro) for lot in state.lots}

    def teardown(self) -> None:
        replayed = AccountState("acct_1")
        for operation in self.history:
            replayed.apply(operation)
        assert replayed.reservations == self.state.reservations
        assert replayed.lots.encoded() == self.state.lots.encoded()
        emptied = [number for operation in self.history for number in operation.emptied]
        assert len(set(emptied)) == len(emptied)


TestCredit: Any = Credit.TestCase
TestCredit.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


@pytest.mark.slow
class TestMuchCredit(TestCredit):  # type: ignore[misc]  # the machine's test case is made at run time
    """The same with more examples."""

    settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


def funded(*lots: Lot) -> AccountState:
    """An account at operation 100 with these lots, none of them reserved."""
    total = sum(lot.remaining_micro for lot in lots)
    return AccountState("acct_1", number=100, balance_micro=total, lots=Lots(lots))


def paid(number: int, amount_micro: int, expires_at: datetime | None = None) -> Lot:
    return Lot(number, "paid", "order", f"ord_{number}", amount_micro, expires_at, amount_micro)


def granted(number: int, amount_micro: int, expires_at: datetime | None = None) -> Lot:
    return Lot(number, "promotional", "grant", f"act_{number}", amount_micro, expires_at, amount_micro)


def held(state: AccountState, amount_micro: int, at: datetime = NOON) -> Operation | Refusal:
    return decide_hold(
        state, operation_id="op_1", hold_id="hold_1", amount_micro=amount_micro, reference="task_1", at=at
    )


def parts_held(decided: Operation | Refusal) -> dict[int | None, int]:
    assert isinstance(decided, Operation)
    return {lot: amount for ledger_account, amount, lot in decided.postings if ledger_account == "held"}


def test_promotional_credit_is_used_first_then_what_expires_first() -> None:
    state = funded(
        paid(1, 5), paid(2, 5, NOON + HOUR), granted(3, 5), granted(4, 5, NOON + HOUR), granted(5, 5), paid(6, 5)
    )
    assert [lot.number for lot in state.lots] == [4, 3, 5, 2, 1, 6]
    assert parts_held(held(state, 17)) == {4: 5, 3: 5, 5: 5, 2: 2}


def test_a_hold_on_a_lone_lot_has_two_postings_and_needs_no_column() -> None:
    state = funded(paid(1, 10))
    decided = held(state, 4)
    assert isinstance(decided, Operation)
    assert decided.postings == (("available", -4, 1), ("held", 4, 1))
    state.apply(decided)
    assert state.lots.encoded() is None


def test_a_lot_is_not_reserved_from_the_moment_it_expires() -> None:
    state = funded(paid(1, 5), granted(2, 5, NOON + HOUR))
    assert parts_held(held(state, 6, NOON + HOUR - timedelta(microseconds=1))) == {2: 5, 1: 1}
    assert parts_held(held(state, 5, NOON + HOUR)) == {1: 5}
    refused = held(state, 6, NOON + HOUR)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.available_micro) == ("insufficient_credit", 5)


def test_reserved_credit_is_charged_after_its_expiry_and_the_rest_expires() -> None:
    state = funded(granted(2, 5, NOON + HOUR))
    opened = held(state, 5)
    assert isinstance(opened, Operation)
    state.apply(opened)
    assert state.lots.expired(NOON + HOUR) == []
    done = decide_capture(
        state, hold_id="hold_1", charge_micro=3, operation_id="op_2", reference="task_1", reason="", at=NOON + HOUR
    )
    assert isinstance(done, Operation)
    state.apply(done)
    [lot] = state.lots.expired(NOON + HOUR)
    expired = decide_expiry(state, lot, operation_id="op_3", at=NOON + HOUR)
    assert expired.postings == (("available", -2, 2), ("promotions", 2, None))
    state.apply(expired)
    assert (state.balance_micro, len(state.lots)) == (0, 0)


def test_a_grant_that_would_have_expired_is_refused() -> None:
    refused = decide_grant(
        AccountState("acct_1"),
        amount_micro=1,
        lot_source="grant",
        expires_at=NOON,
        operation_id="op_1",
        reference="act_1",
        reason="",
        at=NOON,
    )
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.param) == ("invalid_parameter", "expires_at")


def test_an_account_with_too_many_lots_is_given_no_more_but_its_payments() -> None:
    state = funded(*(paid(number, 1) for number in range(1, LOTS_MAX)))
    details: Any = {"operation_id": "op_1", "reference": "r", "reason": "", "at": NOON}

    def given() -> list[Operation | Refusal]:
        return [
            decide_credit(state, amount_micro=1, source="sandbox", lot_source="recharge", **details),
            decide_grant(state, amount_micro=1, lot_source="coupon", expires_at=None, **details),
            decide_adjustment(state, amount_micro=1, **details),
        ]

    assert all(isinstance(each, Operation) for each in given())
    payment = decide_credit(state, amount_micro=1, source="cardprovider", **details)
    assert isinstance(payment, Operation)
    state.apply(payment)
    assert [each.code for each in given() if isinstance(each, Refusal)] == ["lot_limit_reached"] * 3
    assert isinstance(decide_credit(state, amount_micro=1, source="cardprovider", **details), Operation)
    taken = decide_adjustment(state, amount_micro=-1, **details)
    assert isinstance(taken, Operation)
    state.apply(taken)
    assert all(isinstance(each, Operation) for each in given())


def test_postings_that_do_not_sum_to_zero_are_never_an_operation() -> None:
    state = funded(paid(1, 10))
    decided = held(state, 4)
    assert isinstance(decided, Operation)
    state.apply(decided)
    state.reservations["hold_1"] = ()
    with pytest.raises(AssertionError, match="sum to zero"):
        decide_capture(
            state, hold_id="hold_1", charge_micro=4, operation_id="op_2", reference="task_1", reason="", at=NOON
        )


def test_a_hold_looks_at_no_more_lots_than_it_needs() -> None:
    state = funded(*(paid(number, 5) for number in range(1, 1001)))
    opened = held(state, 12)
    assert parts_held(opened) == {1: 5, 2: 5, 3: 2}
    assert isinstance(opened, Operation)
    state.apply(opened)
    assert state.lots.encoded() == "[[1,5,5],[2,5,5],[3,5,2]]"
