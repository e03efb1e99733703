"""An auditor's own model of an account's credit: the rules of lots in words, without totals, postings or rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

VOIDED = "voided"
"""The note by which the histories of tests tell an operator's void of a lot from other adjustments."""


@dataclass
class ModelLot:
    """A lot of the model: what is free of it, and what each open hold has of it."""

    number: int
    is_paid: bool
    expires_at: datetime | None
    reference: str
    free: int
    held: Counter[str] = field(default_factory=Counter)

    @property
    def use_order(self) -> tuple[bool, float, int]:
        expires = float("inf") if self.expires_at is None else self.expires_at.timestamp()
        return self.is_paid, expires, self.number


class Model:
    """An account by the rules in words: no totals, only lots and a debt."""

    def __init__(self) -> None:
        self.lots: dict[int, ModelLot] = {}
        self.debt = 0
        self.expired: Counter[bool] = Counter()

    def in_order(self) -> list[ModelLot]:
        return sorted(self.lots.values(), key=lambda lot: lot.use_order)

    def usable(self, at: datetime) -> list[ModelLot]:
        return [lot for lot in self.in_order() if lot.expires_at is None or lot.expires_at > at]

    def spendable(self, at: datetime) -> int:
        return sum(lot.free for lot in self.usable(at)) - self.debt

    def available(self) -> int:
        return sum(lot.free for lot in self.lots.values()) - self.debt

    def give(self, lot: ModelLot) -> None:
        lot.free = self.pay(lot.free)
        self.lots[lot.number] = lot

    def pay(self, amount: int) -> int:
        paid = min(self.debt, amount)
        self.debt -= paid
        return amount - paid

    def hold(self, hold_id: str, amount: int, at: datetime) -> None:
        for lot in self.usable(at):
            part = min(lot.free, amount)
            amount -= part
            lot.free -= part
            if part:
                lot.held[hold_id] = part
        assert amount == 0

    def settle(self, hold_id: str, charge: int) -> None:
        for lot in self.in_order():
            part = lot.held.pop(hold_id, 0)
            charged = min(part, charge)
            charge -= charged
            lot.free += self.pay(part - charged)
        assert charge == 0

    def take(self, amount: int, lots: list[ModelLot]) -> None:
        for lot in lots:
            part = min(lot.free, amount)
            lot.free -= part
            amount -= part
        self.debt += amount

    def reverse(self, amount: int, reference: str) -> None:
        lots = self.in_order()
        own = [lot for lot in lots if lot.is_paid and lot.reference == reference]
        paid = [lot for lot in lots if lot.is_paid and lot.reference != reference]
        self.take(amount, [*own, *paid, *(lot for lot in lots if not lot.is_paid)])

    def expire(self, at: datetime) -> None:
        for lot in self.lots.values():
            if lot.expires_at is not None and lot.expires_at <= at:
                self.expired[lot.is_paid] += lot.free
                lot.free = 0

    def expire_one(self, number: int, amount: int, at: datetime) -> None:
        lot = self.lots[number]
        assert lot.expires_at is not None
        assert lot.expires_at <= at
        assert lot.free == amount > 0
        lot.free = 0

    def void(self, number: int, amount: int) -> None:
        lot = self.lots[number]
        assert not lot.is_paid
        assert lot.free == amount > 0
        lot.free = 0

    def bonuses(self, reference: str) -> list[ModelLot]:
        """What is left of the bonus of an order, in the order of use."""
        return [lot for lot in self.in_order() if not lot.is_paid and lot.reference == reference]

    def void_bonus(self, reference: str, amount: int) -> None:
        lots = self.bonuses(reference)
        assert 0 < amount <= sum(lot.free for lot in lots)
        self.take(amount, lots)

    def left(self) -> dict[int, tuple[int, int]]:
        amounts = {number: (lot.free + lot.held.total(), lot.held.total()) for number, lot in self.lots.items()}
        return {number: left for number, left in amounts.items() if left[0]}


_OPERATIONS = text(
    """
    select o.number, o.kind, o.amount_micro, o.at, o.hold_id, o.reference, l.kind as lot_kind, l.expires_at,
           (select min(lot) from postings p where (p.account_id, p.number) = (o.account_id, o.number)) as lot,
           o.reason
    from operations o left join credit_lots l on (l.account_id, l.number) = (o.account_id, o.number)
    where o.account_id = :account_id order by o.number
    """
)
_POSTED = text(
    """
    select coalesce(lot, 0) as lot, sum(amount_micro) as remaining,
           coalesce(sum(amount_micro) filter (where ledger_account = 'held'), 0) as reserved
    from postings where account_id = :account_id and ledger_account in ('available', 'held') group by 1
    """
)


def replayed(rows: Connection, account_id: str) -> Model:
    """Replay what the rows say was done to an account, and compare each lot and the debt with the postings."""
    model = Model()
    about = {"account_id": account_id}
    for row in rows.execute(_OPERATIONS, about).all():
        _replay(model, row)
    posted = {row.lot: (int(row.remaining), int(row.reserved)) for row in rows.execute(_POSTED, about)}
    owed, _ = posted.pop(0, (0, 0))
    assert {lot: left for lot, left in posted.items() if left != (0, 0)} == model.left()
    assert owed == -model.debt
    return model


def _replay(model: Model, row: Any) -> None:
    match row.kind:
        case "hold":
            assert model.spendable(row.at) >= row.amount_micro
            model.hold(row.hold_id, row.amount_micro, row.at)
        case "capture" | "release":
            model.settle(row.hold_id, row.amount_micro if row.kind == "capture" else 0)
        case "reversal":
            model.reverse(row.amount_micro, row.reference)
        case "expiry":
            model.expire_one(row.lot, row.amount_micro, row.at)
        case "adjustment" if row.reason == VOIDED:
            model.void(row.lot, -row.amount_micro)
        case "adjustment" if row.reference.startswith("ord_"):
            model.void_bonus(row.reference, -row.amount_micro)
        case "adjustment" if row.amount_micro < 0:
            model.take(-row.amount_micro, model.in_order())
        case _:
            is_paid = row.lot_kind == "paid"
            model.give(ModelLot(row.number, is_paid, row.expires_at, row.reference, row.amount_micro))
