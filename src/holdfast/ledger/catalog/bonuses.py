"""Bonuses of a catalog file: promotional credit that orders get in addition, by their amount.

Of the entries the one with the largest ``orders_from`` that an order reaches applies to it, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.ledger.catalog.tables import read_fields
from holdfast.ledger.values import AMOUNT_MICRO_MAX, format_amount, parse_amount

BONUSES_MAX: Final = 20
ORDERS_FROM_DECIMALS_MAX: Final = 2
CREDIT_DECIMALS_MAX: Final = 6

_OrdersFrom = Annotated[
    str,
    Meta(
        pattern=r"\A(?=.*[1-9])(0|[1-9][0-9]{0,8})(\.[0-9]{1,2})?\Z",
        description='a string above zero and below a billion such as "100.00" (at most 2 decimals)',
    ),
]
_Credit = Annotated[
    str,
    Meta(
        pattern=r"\A(?=.*[1-9])(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?\Z",
        description='a string above zero and below a billion such as "10.00" (at most 6 decimals)',
    ),
]


class BonusTable(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[bonus]]``: ``percent`` of the order's amount, or a fixed ``credit``."""

    orders_from: _OrdersFrom
    percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    credit: _Credit | None = None
    expires_days: Annotated[int, Meta(ge=1, le=36_500)]


class Bonus(msgspec.Struct, frozen=True, kw_only=True):
    """What orders of ``orders_from_micro`` or more get: ``percent`` of their amount, or else ``credit_micro``.

    It expires ``expires_days`` after it was given.
    """

    orders_from_micro: int
    percent: int | None
    credit_micro: int
    expires_days: int

    def micro_of(self, amount_micro: int) -> int:
        """Return the bonus of an order of this amount, which is at most that amount."""
        return self.credit_micro if self.percent is None else amount_micro * self.percent // 100


def bonus_of(bonuses: Sequence[Bonus], amount_micro: int) -> Bonus | None:
    """Return the bonus of an order of this amount; None if it is below all. ``bonuses`` are in their order."""
    reached = [each for each in bonuses if each.orders_from_micro <= amount_micro]
    return reached[-1] if reached else None


def read_bonuses(data: dict[str, Any], faults: list[str]) -> tuple[Bonus, ...]:
    """Read the ``[[bonus]]`` of a catalog; the amounts must rise from one to the next."""
    entries = data.get("bonus", [])
    if not isinstance(entries, list):
        faults.append("catalog: bonus must be a list of tables")
        return ()
    if len(entries) > BONUSES_MAX:
        faults.append(f"catalog: bonus must list at most {BONUSES_MAX} tables, not {len(entries)}")
    bonuses: list[Bonus] = []
    for number, entry in enumerate(entries, 1):
        where, before = f"bonus {number}", len(faults)
        found = read_fields(BonusTable, entry, where, faults)
        if isinstance(entry, dict) and ("percent" in entry) == ("credit" in entry):
            faults.append(f"{where}: give percent or credit, one of them")
        if len(faults) == before:
            _add(bonuses, BonusTable(**found), where, faults)
    return tuple(bonuses)


def _add(bonuses: list[Bonus], table: BonusTable, where: str, faults: list[str]) -> None:
    orders_from_micro = parse_amount(table.orders_from, decimals_max=ORDERS_FROM_DECIMALS_MAX)
    credit_micro = 0 if table.credit is None else parse_amount(table.credit, decimals_max=CREDIT_DECIMALS_MAX)
    assert orders_from_micro is not None
    assert credit_micro is not None
    bonus = Bonus(
        orders_from_micro=orders_from_micro,
        percent=table.percent,
        credit_micro=credit_micro,
        expires_days=table.expires_days,
    )
    amount = format_amount(orders_from_micro)
    last = bonuses[-1].orders_from_micro if bonuses else 0
    if orders_from_micro == last:
        faults.append(f"{where}: orders_from {amount} is that of another bonus")
    elif orders_from_micro < last:
        faults.append(
            f"{where}: orders_from {amount} must be above that of the bonus before, {format_amount(last)}"
        )
    elif credit_micro > orders_from_micro:
        faults.append(f"{where}: credit {format_amount(credit_micro)} must not be above orders_from, {amount}")
    elif orders_from_micro + bonus.micro_of(orders_from_micro) > AMOUNT_MICRO_MAX:
        faults.append(f"{where}: an order of {amount} with its bonus is more than the ledger can hold")
    else:
        bonuses.append(bonus)
