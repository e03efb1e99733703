"""An account's credit: its state, and the functions that decide the operations that change it.

Every ``decide_*`` function is pure: it reads the state, returns any refusal first and in the order its docstring
lists, and otherwise returns the one :class:`Operation` to post. :meth:`AccountState.apply` then updates the state,
and cannot fail for a decided operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict, Unpack

import msgspec

from holdfast.ledger.credit.operations import (
    ADJUSTMENTS,
    AVAILABLE,
    CHAIN_START,
    HELD,
    REVENUE,
    SETTLING,
    Operation,
    OperationKind,
    Posting,
    cash_account,
)
from holdfast.ledger.money import AMOUNT_MICRO_MAX, format_amount
from holdfast.ledger.refusals import Refusal


class OperationDetails(TypedDict):
    """What an operation records besides its amount: its id, what it is for, why, and when."""

    operation_id: str
    reference: str
    reason: str
    at: datetime


class AccountTotals(msgspec.Struct, frozen=True):
    """An account's balance and held total as of one version, in micro-credits."""

    account_id: str
    balance_micro: int
    held_micro: int


@dataclass(slots=True, eq=False)
class AccountState:
    """An account's totals and open holds at one version.

    :meth:`apply` alone changes the credit; ``version`` is that of the account's row, which each unit of work
    increments.
    """

    account_id: str
    version: int = 0
    number: int = 0
    balance_micro: int = 0
    held_micro: int = 0
    holds: dict[str, int] = field(default_factory=dict)
    chain_head: bytes = CHAIN_START

    @property
    def available_micro(self) -> int:
        """What a new hold may take: the balance less everything held. Below zero only after a reversal."""
        return self.balance_micro - self.held_micro

    @property
    def totals(self) -> AccountTotals:
        """The balance and the held total."""
        return AccountTotals(self.account_id, self.balance_micro, self.held_micro)

    def apply(self, operation: Operation) -> None:
        """Update the state by ``operation``, which must have been decided on exactly this state."""
        assert operation.account_id == self.account_id
        assert operation.number == self.number + 1
        if operation.kind is OperationKind.HOLD:
            assert operation.hold_id is not None
            self.holds[operation.hold_id] = operation.amount_micro
        elif operation.kind in SETTLING:
            assert operation.hold_id is not None
            del self.holds[operation.hold_id]
        self.number = operation.number
        self.balance_micro = operation.balance_after_micro
        self.held_micro = operation.held_after_micro
        self.chain_head = operation.chain_hash


def decide_credit(
    state: AccountState,
    *,
    amount_micro: int,
    source: str,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Add ``amount_micro`` received through ``source``.

    Refuses: 1. ``invalid_amount`` (not above zero); 2. ``amount_too_large`` (the balance would exceed the limit).
    """
    if amount_micro <= 0:
        return _not_above_zero(amount_micro)
    if state.balance_micro + amount_micro > AMOUNT_MICRO_MAX:
        return _too_large(amount_micro)
    return _operation(
        state,
        kind=OperationKind.CREDIT,
        amount_micro=amount_micro,
        postings=(Posting(cash_account(source), -amount_micro), Posting(AVAILABLE, amount_micro)),
        **details,
    )


def decide_hold(
    state: AccountState,
    *,
    operation_id: str,
    hold_id: str,
    amount_micro: int,
    reference: str,
    at: datetime,
) -> Operation | Refusal:
    """Reserve ``amount_micro`` under a new ``hold_id``.

    Refuses: 1. ``hold_already_open``; 2. ``insufficient_credit`` (more than is available, or the available
    balance is below zero). A hold of zero is valid: free work still has exactly one outcome.
    """
    assert amount_micro >= 0
    if hold_id in state.holds:
        return Refusal(code="hold_already_open", message=f"The hold '{hold_id}' is already open.")
    available_micro = state.available_micro
    if available_micro < amount_micro or available_micro < 0:
        return Refusal(
            code="insufficient_credit",
            message=(
                f"The hold of {format_amount(amount_micro)} exceeds the available credit of "
                f"{format_amount(available_micro)}."
            ),
            required_micro=amount_micro,
            available_micro=available_micro,
        )
    return _operation(
        state,
        operation_id=operation_id,
        kind=OperationKind.HOLD,
        amount_micro=amount_micro,
        postings=(Posting(AVAILABLE, -amount_micro), Posting(HELD, amount_micro)),
        hold_id=hold_id,
        reference=reference,
        reason="task created",
        at=at,
    )


def decide_capture(
    state: AccountState,
    *,
    hold_id: str,
    charge_micro: int,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Charge ``charge_micro`` of an open hold and return the rest to the available credit.

    Refuses: 1. ``hold_not_open`` (unknown, or already captured or released); 2. ``capture_exceeds_hold``.
    """
    assert charge_micro >= 0
    held_micro = state.holds.get(hold_id)
    if held_micro is None:
        return _hold_not_open(hold_id)
    if charge_micro > held_micro:
        charge, held = format_amount(charge_micro), format_amount(held_micro)
        return Refusal(
            code="capture_exceeds_hold", message=f"The charge {charge} exceeds the hold of {held}.", final=True
        )
    postings = [Posting(HELD, -held_micro), Posting(REVENUE, charge_micro)]
    if held_micro > charge_micro:
        postings.append(Posting(AVAILABLE, held_micro - charge_micro))
    return _operation(
        state,
        kind=OperationKind.CAPTURE,
        amount_micro=charge_micro,
        postings=tuple(postings),
        hold_id=hold_id,
        **details,
    )


def decide_release(
    state: AccountState,
    *,
    hold_id: str,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Return an open hold in full to the available credit.

    Refuses: 1. ``hold_not_open`` (unknown, or already captured or released).
    """
    held_micro = state.holds.get(hold_id)
    if held_micro is None:
        return _hold_not_open(hold_id)
    return _operation(
        state,
        kind=OperationKind.RELEASE,
        amount_micro=held_micro,
        postings=(Posting(HELD, -held_micro), Posting(AVAILABLE, held_micro)),
        hold_id=hold_id,
        **details,
    )


def decide_reversal(
    state: AccountState,
    *,
    amount_micro: int,
    source: str,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Withdraw money that ``source`` took back. The only operation that may go below zero; open holds stay.

    Refuses: 1. ``invalid_amount`` (not above zero).
    """
    if amount_micro <= 0:
        return _not_above_zero(amount_micro)
    return _operation(
        state,
        kind=OperationKind.REVERSAL,
        amount_micro=amount_micro,
        postings=(Posting(AVAILABLE, -amount_micro), Posting(cash_account(source), amount_micro)),
        **details,
    )


def decide_adjustment(
    state: AccountState,
    *,
    amount_micro: int,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Give ``amount_micro`` of credit by an operator's decision, or take it if it is below zero.

    Refuses: 1. ``invalid_amount`` (zero); 2. ``amount_too_large`` (the balance would exceed the limit);
    3. ``insufficient_credit`` (it takes more than is available: held credit stays held).
    """
    if amount_micro == 0:
        return Refusal(code="invalid_amount", message="An adjustment of zero changes nothing.", param="amount")
    if state.balance_micro + amount_micro > AMOUNT_MICRO_MAX:
        return _too_large(amount_micro)
    available_micro = state.available_micro
    if amount_micro < 0 and available_micro + amount_micro < 0:
        return Refusal(
            code="insufficient_credit",
            message=(
                f"The adjustment takes {format_amount(-amount_micro)}, and {format_amount(available_micro)} of "
                "credit is available."
            ),
            required_micro=-amount_micro,
            available_micro=available_micro,
        )
    return _operation(
        state,
        kind=OperationKind.ADJUSTMENT,
        amount_micro=amount_micro,
        postings=(Posting(ADJUSTMENTS, -amount_micro), Posting(AVAILABLE, amount_micro)),
        **details,
    )


def _too_large(amount_micro: int) -> Refusal:
    amount, largest = format_amount(amount_micro), format_amount(AMOUNT_MICRO_MAX)
    return Refusal(
        code="amount_too_large",
        message=f"The amount {amount} would raise the balance above the largest one allowed, {largest}.",
        param="amount",
    )


def _not_above_zero(amount_micro: int) -> Refusal:
    message = f"The amount {format_amount(amount_micro)} is not above zero."
    return Refusal(code="invalid_amount", message=message, param="amount")


def _hold_not_open(hold_id: str) -> Refusal:
    return Refusal(code="hold_not_open", message=f"The hold '{hold_id}' is not open.", final=True)


def _operation(
    state: AccountState,
    *,
    kind: OperationKind,
    amount_micro: int,
    postings: tuple[Posting, ...],
    hold_id: str | None = None,
    **details: Unpack[OperationDetails],
) -> Operation:
    """Number the operation, compute its totals and chain it; after this point nothing may fail."""
    posted = dict(postings)
    available_micro = state.available_micro + posted.get(AVAILABLE, 0)
    held_micro = state.held_micro + posted.get(HELD, 0)
    operation = Operation(
        account_id=state.account_id,
        number=state.number + 1,
        kind=kind,
        amount_micro=amount_micro,
        postings=postings,
        balance_after_micro=available_micro + held_micro,
        held_after_micro=held_micro,
        hold_id=hold_id,
        **details,
    )
    return msgspec.structs.replace(operation, chain_hash=operation.hash_after(state.chain_head))
