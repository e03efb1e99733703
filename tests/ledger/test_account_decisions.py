"""An account's decisions, compared with a model that only adds up postings."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from holdfast.ledger.credit.account import (
    AccountState,
    decide_adjustment,
    decide_capture,
    decide_credit,
    decide_hold,
    decide_release,
    decide_reversal,
)
from holdfast.ledger.credit.operations import CHAIN_START, SETTLING, NewLot, Operation, OperationKind
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import AMOUNT_MICRO_MAX

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
amounts = st.one_of(st.integers(-3, 50), st.integers(1, AMOUNT_MICRO_MAX))


class Account(RuleBasedStateMachine):
    """Valid and invalid commands in any order."""

    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.state = AccountState("acct_1")
        self.history: list[Operation] = []
        self.sums: Counter[str] = Counter()
        self.open: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.has_reversals = False
        self.asked = 0

    def op_id(self) -> str:
        self.asked += 1
        return f"op_{self.asked}"

    def happen(self, decided: Operation | Refusal, *, expected: str | None) -> None:
        """A refusal changes nothing; an operation does exactly what its postings say."""
        before = snapshot(self.state)
        if expected is not None:
            assert isinstance(decided, Refusal)
            assert decided.code == expected
            assert snapshot(self.state) == before
            return
        assert isinstance(decided, Operation)
        assert sum(posting.amount_micro for posting in decided.postings) == 0
        assert decided.hash_after(self.state.chain_head) == decided.chain_hash
        assert snapshot(self.state) == before
        self.state.apply(decided)
        for posting in decided.postings:
            self.sums[posting.ledger_account] += posting.amount_micro
        self.history.append(decided)

    @rule(amount=amounts)
    def credit(self, amount: int) -> None:
        decided = decide_credit(
            self.state,
            operation_id=self.op_id(),
            amount_micro=amount,
            source="sandbox",
            reference="r",
            reason="why",
            at=NOON,
        )
        balance = self.sums["available"] + self.sums["held"]
        too_much = "amount_too_large" if balance + amount > AMOUNT_MICRO_MAX else None
        self.happen(decided, expected="invalid_amount" if amount <= 0 else too_much)

    @rule(target=holds, amount=st.integers(0, 60), number=st.integers(0, 30))
    def hold(self, amount: int, number: int) -> str:
        hold_id = f"hold_{number}"
        decided = decide_hold(
            self.state, operation_id=self.op_id(), hold_id=hold_id, amount_micro=amount, reference="task", at=NOON
        )
        available = self.sums["available"]
        expected = None
        if hold_id in self.open:
            expected = "hold_already_open"
        elif available < amount or available < 0:
            expected = "insufficient_credit"
            assert isinstance(decided, Refusal)
            assert (decided.required_micro, decided.available_micro) == (amount, available)
        self.happen(decided, expected=expected)
        if expected is None:
            self.open[hold_id] = amount
        return hold_id

    @rule(hold_id=holds, charge=st.integers(0, 70))
    def capture(self, hold_id: str, charge: int) -> None:
        decided = decide_capture(
            self.state,
            operation_id=self.op_id(),
            hold_id=hold_id,
            charge_micro=charge,
            reference="task",
            reason="why",
            at=NOON,
        )
        held = self.open.get(hold_id)
        too_much = "capture_exceeds_hold" if held is not None and charge > held else None
        self.happen(decided, expected="hold_not_open" if held is None else too_much)
        if isinstance(decided, Operation):
            del self.open[hold_id]

    @rule(hold_id=holds)
    def release(self, hold_id: str) -> None:
        decided = decide_release(
            self.state, operation_id=self.op_id(), hold_id=hold_id, reference="task", reason="why", at=NOON
        )
        self.happen(decided, expected=None if hold_id in self.open else "hold_not_open")
        self.open.pop(hold_id, None)

    @rule(amount=st.integers(-1, 80))
    def reverse(self, amount: int) -> None:
        decided = decide_reversal(
            self.state,
            operation_id=self.op_id(),
            amount_micro=amount,
            source="card",
            reference="r",
            reason="why",
            at=NOON,
        )
        self.happen(decided, expected="invalid_amount" if amount <= 0 else None)
        self.has_reversals = self.has_reversals or amount > 0

    @rule(amount=st.one_of(st.integers(-80, 80), st.just(AMOUNT_MICRO_MAX), st.just(-AMOUNT_MICRO_MAX)))
    def adjust(self, amount: int) -> None:
        decided = decide_adjustment(
            self.state, operation_id=self.op_id(), amount_micro=amount, reference="act_1", reason="why", at=NOON
        )
        available = self.sums["available"]
        expected = None
        if amount == 0:
            expected = "invalid_amount"
        elif available + self.sums["held"] + amount > AMOUNT_MICRO_MAX:
            expected = "amount_too_large"
        elif amount < 0 and available + amount < 0:
            expected = "insufficient_credit"
            assert isinstance(decided, Refusal)
            assert (decided.required_micro, decided.available_micro) == (-amount, available)
        self.happen(decided, expected=expected)

    @invariant()
    def adjustments_are_what_was_given_and_taken(self) -> None:
        adjusted = sum(op.amount_micro for op in self.history if op.kind is OperationKind.ADJUSTMENT)
        assert self.sums["adjustments"] == -adjusted

    @invariant()
    def totals_are_the_sums_of_the_postings(self) -> None:
        assert sum(self.sums.values()) == 0
        assert self.state.held_micro == self.sums["held"] == sum(self.open.values())
        assert self.state.balance_micro == self.sums["available"] + self.sums["held"]
        assert self.state.available_micro == self.sums["available"]
        assert self.state.holds == self.open

    @invariant()
    def available_credit_goes_below_zero_by_reversals_alone(self) -> None:
        assert self.state.available_micro >= 0 or self.has_reversals
        assert self.state.balance_micro <= AMOUNT_MICRO_MAX

    @invariant()
    def revenue_is_what_was_captured(self) -> None:
        captured = sum(op.amount_micro for op in self.history if op.kind is OperationKind.CAPTURE)
        assert self.sums["revenue"] == captured

    def teardown(self) -> None:
        """Recompute numbers, outcomes, running totals and the chain from the history."""
        head, replayed = CHAIN_START, AccountState("acct_1")
        opened: Counter[str] = Counter()
        settled: Counter[str] = Counter()
        for number, operation in enumerate(self.history, start=1):
            assert operation.number == number
            assert operation.hash_after(head) == operation.chain_hash
            head = operation.chain_hash
            replayed.apply(operation)
            if operation.kind is OperationKind.HOLD:
                opened[str(operation.hold_id)] += 1
            elif operation.kind in SETTLING:
                settled[str(operation.hold_id)] += 1
            assert all(settled[hold_id] <= opened[hold_id] for hold_id in settled)
        assert snapshot(replayed) == snapshot(self.state)


def snapshot(state: AccountState) -> tuple[object, ...]:
    return (
        state.version,
        state.number,
        state.balance_micro,
        state.held_micro,
        dict(state.holds),
        state.chain_head,
    )


Account.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccount = Account.TestCase


def credited(amount_micro: int = 100) -> tuple[AccountState, Operation]:
    state = AccountState("acct_1")
    operation = decide_credit(
        state,
        operation_id="op_1",
        amount_micro=amount_micro,
        source="sandbox",
        reference="r",
        reason="why",
        at=NOON,
    )
    assert isinstance(operation, Operation)
    return state, operation


@given(
    st.sampled_from(
        [
            ("operation_id", "op_2"), ("account_id", "acct_2"), ("number", 2), ("kind", OperationKind.REVERSAL),
            ("amount_micro", 101), ("postings", ()), ("balance_after_micro", 99), ("held_after_micro", 1),
            ("hold_id", ""), ("reference", "s"), ("reason", ""), ("at", NOON + timedelta(milliseconds=1)),
            ("lot", None), ("lot", NewLot("paid", "recharge")), ("lot", NewLot("promotional", "order")),
            ("lot", NewLot("paid", "order", NOON)),
        ]
    )
)  # fmt: skip
def test_the_chain_hash_covers_every_field(change: tuple[str, object]) -> None:
    _, operation = credited()
    changed = msgspec.structs.replace(operation, **{change[0]: change[1]})
    assert changed.hash_after(CHAIN_START) != operation.chain_hash


def test_the_chain_hash_depends_on_the_start_and_not_on_the_time_zone() -> None:
    _, operation = credited()
    moved = msgspec.structs.replace(operation, at=operation.at.astimezone(timezone(timedelta(hours=9))))
    assert moved.hash_after(CHAIN_START) == operation.chain_hash
    assert operation.hash_after(b"\x01" * 32) != operation.chain_hash


def test_an_operation_applies_once_and_to_its_own_account_only() -> None:
    state, operation = credited()
    state.apply(operation)
    with pytest.raises(AssertionError):
        state.apply(operation)
    with pytest.raises(AssertionError):
        AccountState("acct_2").apply(operation)


def test_a_free_hold_on_an_empty_account_is_a_hold_with_one_outcome() -> None:
    state = AccountState("acct_1")
    held = decide_hold(state, operation_id="op_1", hold_id="h", amount_micro=0, reference="r", at=NOON)
    assert isinstance(held, Operation)
    state.apply(held)
    assert state.holds == {"h": 0}
    done = decide_capture(
        state, operation_id="op_2", hold_id="h", charge_micro=0, reference="r", reason="", at=NOON
    )
    assert isinstance(done, Operation)
    state.apply(done)
    again = decide_release(state, operation_id="op_3", hold_id="h", reference="r", reason="", at=NOON)
    assert isinstance(again, Refusal)
