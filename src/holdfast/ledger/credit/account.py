"""An account's credit: its state, and the functions that decide the operations that change it.

Every ``decide_*`` function is pure: it reads the state, returns any refusal first and in the order its docstring
lists, and otherwise returns the one :class:`Operation` to post. :meth:`AccountState.apply` then updates the state,
and cannot fail for a decided operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypedDict, Unpack

import msgspec

from holdfast.ledger.credit.operations import (
    ADJUSTMENTS,
    AVAILABLE,
    BREAKAGE,
    CHAIN_START,
    HELD,
    PROMOTIONS,
    REVENUE,
    SETTLING,
    Lot,
    LotPart,
    Lots,
    LotSource,
    NewLot,
    Operation,
    OperationKind,
    Posting,
    cash_account,
    parts_of,
)
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import AMOUNT_MICRO_MAX, format_amount

LOTS_MAX: Final = 5_000
"""With so many open lots an account is given no more, but for its payments: one hold may be over all of them."""


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
    """An account's totals, lots and open holds at one version. ``reservations`` has the parts of each open hold.

    :meth:`apply` alone changes the credit; ``version`` is that of the account's row, which each unit of work
    increments.
    """

    account_id: str
    version: int = 0
    number: int = 0
    balance_micro: int = 0
    held_micro: int = 0
    holds: dict[str, int] = field(default_factory=dict)
    reservations: dict[str, tuple[LotPart, ...]] = field(default_factory=dict)
    lots: Lots = field(default_factory=Lots)
    chain_head: bytes = CHAIN_START

    @property
    def available_micro(self) -> int:
        """What a new hold may take: the balance less everything held. Below zero only after a reversal."""
        return self.balance_micro - self.held_micro

    @property
    def debt_micro(self) -> int:
        """What the account owes after a reversal: no lot has it."""
        return max(0, -self.available_micro)

    def spendable_micro(self, at: datetime) -> int:
        """Return the available credit less that of lots whose time has come and whose expiry is not posted yet."""
        expired = self.lots.expired(at)
        return self.available_micro - (sum(lot.free_micro for lot in expired) if expired else 0)

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
            self.reservations[operation.hold_id] = tuple(
                LotPart(lot, amount_micro)
                for account, amount_micro, lot in operation.postings
                if account == HELD and lot is not None
            )
        elif operation.kind in SETTLING:
            assert operation.hold_id is not None
            del self.holds[operation.hold_id]
            del self.reservations[operation.hold_id]
        self.lots.apply(operation)
        self.number = operation.number
        self.balance_micro = operation.balance_after_micro
        self.held_micro = operation.held_after_micro
        self.chain_head = operation.chain_hash


def decide_credit(
    state: AccountState,
    *,
    amount_micro: int,
    source: str,
    lot_source: LotSource = "order",
    expires_at: datetime | None = None,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Add ``amount_micro`` received through ``source``, as a lot of paid credit.

    Refuses: 1. ``invalid_amount`` (not above zero); 2. ``amount_too_large`` (the balance would exceed the limit);
    3. ``lot_limit_reached`` (:data:`LOTS_MAX`), but for an order: what was paid is always credited.
    """
    if amount_micro <= 0:
        return _not_above_zero(amount_micro)
    if state.balance_micro + amount_micro > AMOUNT_MICRO_MAX:
        return _too_large(amount_micro)
    if lot_source != "order" and len(state.lots) >= LOTS_MAX:
        return _TOO_MANY_LOTS
    return _given(
        state,
        OperationKind.CREDIT,
        amount_micro,
        cash_account(source),
        NewLot("paid", lot_source, expires_at),
        **details,
    )


def decide_grant(
    state: AccountState,
    *,
    amount_micro: int,
    lot_source: LotSource,
    expires_at: datetime | None,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Give ``amount_micro`` of promotional credit, which was not paid for.

    Refuses: 1. ``invalid_amount`` (not above zero); 2. ``invalid_parameter`` (it would have expired already);
    3. ``amount_too_large`` (the balance would exceed the limit); 4. ``lot_limit_reached`` (:data:`LOTS_MAX`), but
    for an order's bonus.
    """
    if amount_micro <= 0:
        return _not_above_zero(amount_micro)
    if expires_at is not None and expires_at <= details["at"]:
        message = "The parameter expires_at must be in the future."
        return Refusal(code="invalid_parameter", message=message, param="expires_at")
    if state.balance_micro + amount_micro > AMOUNT_MICRO_MAX:
        return _too_large(amount_micro)
    if lot_source != "bonus" and len(state.lots) >= LOTS_MAX:
        return _TOO_MANY_LOTS
    lot = NewLot("promotional", lot_source, expires_at)
    return _given(state, OperationKind.GRANT, amount_micro, PROMOTIONS, lot, **details)


def decide_expiry(state: AccountState, lot: Lot, *, operation_id: str, at: datetime) -> Operation:
    """Withdraw what no hold has reserved of a lot whose time has come.

    Paid credit that expires becomes income (breakage). Promotional credit reduces the expense of the grant.
    """
    assert lot.is_expired(at)
    return _withdrawn(state, lot, f"{lot.kind} credit expired", operation_id=operation_id, at=at)


def decide_forfeit(state: AccountState, lot: Lot, *, operation_id: str, at: datetime) -> Operation:
    """Withdraw what is left of a lot of an account that is closed, as if its time had come."""
    return _withdrawn(state, lot, f"{lot.kind} credit forfeited", operation_id=operation_id, at=at)


def _withdrawn(state: AccountState, lot: Lot, reason: str, *, operation_id: str, at: datetime) -> Operation:
    amount_micro = lot.free_micro
    assert amount_micro > 0
    postings = (
        Posting(AVAILABLE, -amount_micro, lot.number),
        Posting(BREAKAGE if lot.kind == "paid" else PROMOTIONS, amount_micro),
    )
    return _operation(
        state,
        kind=OperationKind.EXPIRY,
        amount_micro=amount_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
        operation_id=operation_id,
        reference=lot.reference,
        reason=reason,
        at=at,
    )


def decide_void(
    state: AccountState, *, lot_number: int, **details: Unpack[OperationDetails]
) -> Operation | Refusal:
    """Take back what no hold has reserved of a lot of promotional credit, by an operator's decision.

    It is an adjustment that takes of one lot alone. What holds return to the lot later stays in it.

    Refuses: 1. ``credit_lot_not_found`` (nothing is left of it, or there is none); 2. ``credit_lot_not_voidable``
    (it was paid for, or holds have reserved all that is left).
    """
    lot = state.lots.find(lot_number)
    if lot is None:
        return Refusal(
            code="credit_lot_not_found",
            message=f"The account has no lot {lot_number} of which something is left.",
            param="lot",
        )
    if lot.kind == "paid":
        return _not_voidable(f"The credit of lot {lot_number} was paid for.")
    amount_micro = lot.free_micro
    if not amount_micro:
        held = format_amount(lot.reserved_micro)
        return _not_voidable(f"Tasks hold all {held} credits that are left of lot {lot_number}.")
    postings = (Posting(ADJUSTMENTS, amount_micro), Posting(AVAILABLE, -amount_micro, lot_number))
    return _operation(
        state,
        kind=OperationKind.ADJUSTMENT,
        amount_micro=-amount_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
        **details,
    )


def decide_bonus(
    state: AccountState, *, amount_micro: int, expires_at: datetime, **details: Unpack[OperationDetails]
) -> Operation | None:
    """Give an order's bonus as promotional credit, as much of it as the largest balance leaves.

    None if that is nothing, or if it would have expired already: a bonus is no reason to refuse a payment.
    """
    amount_micro = min(amount_micro, AMOUNT_MICRO_MAX - state.balance_micro)
    if amount_micro <= 0 or expires_at <= details["at"]:
        return None
    operation = decide_grant(state, amount_micro=amount_micro, lot_source="bonus", expires_at=expires_at, **details)
    assert isinstance(operation, Operation)
    return operation


def decide_bonus_void(
    state: AccountState, *, amount_micro: int, **details: Unpack[OperationDetails]
) -> Operation | None:
    """Take back at most ``amount_micro`` of what no hold has reserved of the bonus of an order (``reference``).

    None if nothing is left of it. What was used stays used.
    """
    own = [lot for lot in state.lots if lot.source == "bonus" and lot.reference == details["reference"]]
    parts, missing_micro = parts_of(own, amount_micro)
    if not parts:
        return None
    taken_micro = amount_micro - missing_micro
    postings = (
        Posting(ADJUSTMENTS, taken_micro),
        *(Posting(AVAILABLE, -part_micro, lot) for lot, part_micro in parts),
    )
    return _operation(
        state,
        kind=OperationKind.ADJUSTMENT,
        amount_micro=-taken_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
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

    Refuses: 1. ``hold_already_open``; 2. ``insufficient_credit`` (more than is available in lots that have not
    expired, or the available balance is below zero). A hold of zero is valid: free work still has exactly one
    outcome.
    """
    assert amount_micro >= 0
    if hold_id in state.holds:
        return Refusal(code="hold_already_open", message=f"The hold '{hold_id}' is already open.")
    available_micro = state.spendable_micro(at)
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
    postings: list[Posting] = []
    for lot, part_micro in state.lots.to_hold(amount_micro, at) or _NO_PARTS:
        postings += Posting(AVAILABLE, -part_micro, lot), Posting(HELD, part_micro, lot)
    return _operation(
        state,
        operation_id=operation_id,
        kind=OperationKind.HOLD,
        amount_micro=amount_micro,
        postings=tuple(postings),
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
    """Charge ``charge_micro`` of an open hold to its lots, in their order, and return the rest to them.

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
    left_micro = charge_micro
    released: list[Posting] = []
    returned: list[tuple[int | None, int]] = []
    for lot, part_micro in state.reservations[hold_id] or _NO_PARTS:
        released.append(Posting(HELD, -part_micro, lot))
        charged_micro = min(part_micro, left_micro)
        left_micro -= charged_micro
        if part_micro > charged_micro:
            returned.append((lot, part_micro - charged_micro))
    postings = (*released, Posting(REVENUE, charge_micro), *_returned(state, returned))
    return _operation(
        state,
        kind=OperationKind.CAPTURE,
        amount_micro=charge_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
        hold_id=hold_id,
        **details,
    )


def decide_release(
    state: AccountState,
    *,
    hold_id: str,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Return an open hold in full to its lots.

    Refuses: 1. ``hold_not_open`` (unknown, or already captured or released).
    """
    held_micro = state.holds.get(hold_id)
    if held_micro is None:
        return _hold_not_open(hold_id)
    parts = state.reservations[hold_id] or _NO_PARTS
    postings = (*(Posting(HELD, -part_micro, lot) for lot, part_micro in parts), *_returned(state, parts))
    return _operation(
        state,
        kind=OperationKind.RELEASE,
        amount_micro=held_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
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

    It takes the credit that its order (``reference``) has paid for first, then other paid credit, then promotional
    credit; for the rest the account is in debt.

    Refuses: 1. ``invalid_amount`` (not above zero).
    """
    if amount_micro <= 0:
        return _not_above_zero(amount_micro)
    parts, owed_micro = state.lots.to_take_back(amount_micro, details["reference"])
    postings = [Posting(AVAILABLE, -part_micro, lot) for lot, part_micro in parts]
    if owed_micro:
        postings.append(Posting(AVAILABLE, -owed_micro))
    return _operation(
        state,
        kind=OperationKind.REVERSAL,
        amount_micro=amount_micro,
        postings=(*postings, Posting(cash_account(source), amount_micro)),
        emptied=state.lots.emptied_by(postings),
        **details,
    )


def decide_adjustment(
    state: AccountState,
    *,
    amount_micro: int,
    **details: Unpack[OperationDetails],
) -> Operation | Refusal:
    """Give ``amount_micro`` of credit by an operator's decision, or take it if it is below zero.

    What is given counts as paid; what is taken is taken in the order in which credit is used.

    Refuses: 1. ``invalid_amount`` (zero); 2. ``amount_too_large`` (the balance would exceed the limit);
    3. ``insufficient_credit`` (it takes more than is available: held credit stays held); 4. ``lot_limit_reached``
    (:data:`LOTS_MAX`).
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
    if amount_micro > 0:
        if len(state.lots) >= LOTS_MAX:
            return _TOO_MANY_LOTS
        lot = NewLot("paid", "adjustment")
        return _given(state, OperationKind.ADJUSTMENT, amount_micro, ADJUSTMENTS, lot, **details)
    parts, missing_micro = parts_of(state.lots, -amount_micro)
    assert not missing_micro
    postings = (
        Posting(ADJUSTMENTS, -amount_micro),
        *(Posting(AVAILABLE, -part_micro, lot) for lot, part_micro in parts),
    )
    return _operation(
        state,
        kind=OperationKind.ADJUSTMENT,
        amount_micro=amount_micro,
        postings=postings,
        emptied=state.lots.emptied_by(postings),
        **details,
    )


_TOO_MANY_LOTS = Refusal(
    code="lot_limit_reached",
    message=f"This account has {LOTS_MAX} lots of credit, the most allowed, of which something is left.",
    final=True,
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


def _not_voidable(message: str) -> Refusal:
    return Refusal(code="credit_lot_not_voidable", message=message, param="lot")


def _hold_not_open(hold_id: str) -> Refusal:
    return Refusal(code="hold_not_open", message=f"The hold '{hold_id}' is not open.", final=True)


_NO_PARTS: tuple[tuple[None, int], ...] = ((None, 0),)
"""The parts of a hold of zero, which has postings too."""


def _given(
    state: AccountState,
    kind: OperationKind,
    amount_micro: int,
    giver: str,
    lot: NewLot,
    **details: Unpack[OperationDetails],
) -> Operation:
    """Give credit from a platform account as a new lot; a debt is paid first."""
    number = state.number + 1
    return _operation(
        state,
        kind=kind,
        amount_micro=amount_micro,
        postings=(Posting(giver, -amount_micro), *_returned(state, ((number, amount_micro),))),
        lot=lot,
        emptied=(number,) if amount_micro <= state.debt_micro else (),
        **details,
    )


def _returned(state: AccountState, parts: Iterable[tuple[int | None, int]]) -> list[Posting]:
    """Return the postings that add these parts to their lots, less what pays the account's debt."""
    debt_micro = state.debt_micro
    if not debt_micro:
        return [Posting(AVAILABLE, part_micro, lot) for lot, part_micro in parts]
    postings = []
    left_micro = debt_micro
    for lot, part_micro in parts:
        paid_micro = min(part_micro, left_micro)
        left_micro -= paid_micro
        if part_micro > paid_micro:
            postings.append(Posting(AVAILABLE, part_micro - paid_micro, lot))
    return [Posting(AVAILABLE, debt_micro - left_micro), *postings]


def _operation(
    state: AccountState,
    *,
    kind: OperationKind,
    amount_micro: int,
    postings: tuple[Posting, ...],
    operation_id: str,
    reference: str,
    reason: str,
    at: datetime,
    hold_id: str | None = None,
    lot: NewLot | None = None,
    emptied: tuple[int, ...] = (),
) -> Operation:
    """Number the operation, compute its totals and chain it; after this point nothing may fail."""
    available_micro, held_micro, total_micro = state.available_micro, state.held_micro, 0
    for ledger_account, posted_micro, _ in postings:
        total_micro += posted_micro
        if ledger_account == AVAILABLE:
            available_micro += posted_micro
        elif ledger_account == HELD:
            held_micro += posted_micro
    assert total_micro == 0, "the postings do not sum to zero"
    operation = Operation(
        account_id=state.account_id,
        number=state.number + 1,
        kind=kind,
        amount_micro=amount_micro,
        postings=postings,
        balance_after_micro=available_micro + held_micro,
        held_after_micro=held_micro,
        hold_id=hold_id,
        lot=lot,
        emptied=emptied,
        operation_id=operation_id,
        reference=reference,
        reason=reason,
        at=at,
    )
    return msgspec.structs.replace(operation, chain_hash=operation.hash_after(state.chain_head))
