"""Operations: what changes an account's credit, as postings, each operation chained to the previous one; and lots.

A customer's ledger accounts are ``available`` and ``held``; the balance is their sum. The other side of an
operation is a platform account (``cash:…``, ``revenue``, ``adjustments``, ``promotions``, ``breakage``), which has
no stored balance: its balance is the sum of its postings. A positive posting increases a ledger account.

Credit is in lots, and a posting on ``available`` or ``held`` names its lot. A lot has where the credit came from
and what is left of it. Each operation that gives credit opens one, which has the operation's number. One rule
orders them: **promotional before paid, then the earliest expiry first, then the oldest**. A hold reserves lots in
this order and a capture charges what was reserved in this order; the rest returns to its lots. A lot that has
expired is not reserved any more, but a hold that has reserved it may charge it.

An account with credit owes nothing. One that a reversal has overdrawn owes what its available balance is below
zero; then every lot is reserved in full, and what returns to a lot or is given pays the debt first. So what is left
of all lots is the balance or, if that is more, the held total. This gives the amounts of a lot that is open alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

AVAILABLE = "available"
HELD = "held"
REVENUE = "revenue"
ADJUSTMENTS = "adjustments"
PROMOTIONS = "promotions"
"""The expense of credit that was granted: expired grants reduce it."""
BREAKAGE = "breakage"
"""The income from paid credit that has expired."""
CELLS = "cells"
"""The credit that accounts took to other cells, less that which they brought. Over all cells it is zero."""

LotKind: TypeAlias = Literal["paid", "promotional"]
LotSource: TypeAlias = Literal["order", "recharge", "adjustment", "grant", "coupon", "bonus"]


def cash_account(provider: str) -> str:
    """Return the platform account for money held at a payment provider."""
    return f"cash:{provider}"


class OperationKind(StrEnum):
    """What an operation does to an account."""

    CREDIT = "credit"
    HOLD = "hold"
    CAPTURE = "capture"
    RELEASE = "release"
    REVERSAL = "reversal"
    ADJUSTMENT = "adjustment"
    GRANT = "grant"
    EXPIRY = "expiry"


SETTLING = (OperationKind.CAPTURE, OperationKind.RELEASE)
"""The kinds that end a hold; each hold has at most one of them."""


class Posting(NamedTuple):
    """One posting of an operation; the amounts of an operation's postings sum to zero.

    ``lot`` is the lot it moves, by its number. A posting on ``available`` without one adds to what an overdrawn
    account owes, or pays it.
    """

    ledger_account: str
    amount_micro: int
    lot: int | None = None


class NewLot(NamedTuple):
    """The lot that an operation opens, numbered as the operation; it never expires without ``expires_at``."""

    kind: LotKind
    source: LotSource
    expires_at: datetime | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One double-entry movement of one account, as decided; it takes effect when the journal commits it.

    ``amount_micro`` is below zero only for an adjustment that takes credit. ``number`` counts an account's
    operations from 1 without gaps. ``chain_hash`` covers this operation and the previous hash, so that a changed,
    missing or truncated row is detected.

    ``lot`` is the lot it opens, and ``emptied`` are the lots of which it leaves nothing.
    """

    operation_id: str
    account_id: str
    number: int
    kind: OperationKind
    amount_micro: int
    postings: tuple[Posting, ...]
    balance_after_micro: int
    held_after_micro: int
    hold_id: str | None
    reference: str
    reason: str
    at: datetime
    chain_hash: bytes = b""
    lot: NewLot | None = None
    emptied: tuple[int, ...] = ()

    def hash_after(self, previous: bytes) -> bytes:
        """Return the SHA-256 of ``previous`` and :meth:`hashed_json`."""
        return hashlib.sha256(previous + self.hashed_json()).digest()

    def hashed_json(self) -> bytes:
        """Return this operation with its lot's facts, as a JSON array of :data:`HASHED_FIELDS`, without blanks."""
        lot, lot_facts = self.lot, None
        if lot is not None:
            expires_at = None if lot.expires_at is None else int(lot.expires_at.timestamp() * 1000)
            lot_facts = (lot.kind, lot.source, expires_at)
        fields = (
            self.account_id,
            self.number,
            self.operation_id,
            self.kind,
            self.amount_micro,
            self.postings,
            self.balance_after_micro,
            self.held_after_micro,
            self.hold_id,
            self.reference,
            self.reason,
            int(self.at.timestamp() * 1000),
            lot_facts,
        )
        return _encoder.encode(fields)


_encoder = msgspec.json.Encoder()

HASHED_FIELDS: Final = (
    "account_id", "number", "operation_id", "kind", "amount_micro", "postings", "balance_micro", "held_micro",
    "hold_id", "reference", "reason", "at_ms", "lot",
)  # fmt: skip
"""What the hash of an operation covers, as signed statements name it."""

CHAIN_START = bytes(32)
"""The hash that precedes an account's first operation."""


NOTICES_DAYS: Final = (7, 30)
"""How many days before paid credit expires its owner is notified, the last notice first."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class LotPart(NamedTuple):
    """An amount of one lot."""

    lot: int
    amount_micro: int


class LotAmounts(NamedTuple):
    """What is left of a lot, and how much of that is reserved by open holds."""

    remaining_micro: int
    reserved_micro: int


@dataclass(slots=True, eq=False)
class Lot:
    """An open lot: what it was opened with, and what is left of it. ``reference`` is the opening operation's.

    ``announced_days`` is that of :data:`NOTICES_DAYS` which was announced last.
    """

    number: int
    kind: LotKind
    source: LotSource
    reference: str
    amount_micro: int
    expires_at: datetime | None
    remaining_micro: int = 0
    reserved_micro: int = 0
    announced_days: int | None = None

    @property
    def free_micro(self) -> int:
        """What no hold has reserved."""
        return self.remaining_micro - self.reserved_micro

    @property
    def is_used(self) -> bool:
        """Whether anything of it was taken or is reserved."""
        return self.reserved_micro != 0 or self.remaining_micro != self.amount_micro

    @property
    def use_order(self) -> tuple[bool, datetime, int]:
        """What lots are sorted by: the least is used first."""
        return self.kind == "paid", self.expires_at or _NEVER, self.number

    def is_expired(self, at: datetime) -> bool:
        """Whether its time has come."""
        return self.expires_at is not None and self.expires_at <= at

    def notice_due(self, at: datetime) -> int | None:
        """Return the days of the notice that is due: there are notices of paid credit alone, one of each."""
        if self.kind != "paid" or self.expires_at is None or self.is_expired(at):
            return None
        for days in NOTICES_DAYS:
            if self.expires_at - at <= timedelta(days=days):
                return days if self.announced_days is None or days < self.announced_days else None
        return None


class Lots:
    """The open lots of one account, in the order of use. Only :meth:`apply` changes them.

    However many there are, a hold looks at those that it reserves and at those before them.
    """

    __slots__ = ("_by_number", "_first_expiry", "_in_order", "_used")

    def __init__(self, lots: Iterable[Lot] = ()) -> None:
        self._in_order = sorted(lots, key=_use_order)
        self._by_number = {lot.number: lot for lot in self._in_order}
        self._used = {lot.number: lot for lot in self._in_order if lot.is_used}
        self._first_expiry = self._find_first_expiry()

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Lot]:
        return iter(self._in_order)

    def expired(self, at: datetime) -> list[Lot]:
        """Return the lots whose time has come and of which a part is not reserved."""
        if at < self._first_expiry:
            return []
        return [lot for lot in self._in_order if lot.is_expired(at) and lot.free_micro]

    def to_hold(self, amount_micro: int, at: datetime) -> list[LotPart]:
        """Return the parts that a hold reserves. There must be as much in lots that have not expired."""
        lots: Iterable[Lot] = self._in_order
        if at >= self._first_expiry:
            lots = (lot for lot in self._in_order if not lot.is_expired(at))
        parts, missing_micro = parts_of(lots, amount_micro)
        assert not missing_micro, "the lots do not sum to the available credit"
        return parts

    def to_take_back(self, amount_micro: int, reference: str) -> tuple[list[LotPart], int]:
        """Return the free parts that a reversal takes, and what is missing.

        Those that its order (``reference``) has paid for come first, then paid credit, then promotional credit.
        """
        own = [lot for lot in self._in_order if lot.reference == reference and lot.kind == "paid"]
        others = [lot for lot in self._in_order if lot.reference != reference or lot.kind != "paid"]
        by_kind = sorted(others, key=lambda lot: lot.kind != "paid")
        return parts_of([*own, *by_kind], amount_micro)

    def find(self, number: int) -> Lot | None:
        """Return an open lot, None if there is none of this number."""
        return self._by_number.get(number)

    def emptied_by(self, postings: Iterable[Posting]) -> tuple[int, ...]:
        """Return the open lots of which these postings leave nothing."""
        changes: dict[int, int] = {}
        for _, amount_micro, number in postings:
            if number is not None:
                changes[number] = changes.get(number, 0) + amount_micro
        return tuple(
            number for number, change in changes.items() if self._by_number[number].remaining_micro + change == 0
        )

    def apply(self, operation: Operation) -> None:
        """Update the lots by an operation that was decided on them."""
        opened = operation.lot
        if opened is not None:
            lot = Lot(operation.number, opened.kind, opened.source, operation.reference, operation.amount_micro,
                      opened.expires_at)  # fmt: skip
            insort(self._in_order, lot, key=_use_order)
            self._by_number[lot.number] = lot
            self._first_expiry = min(self._first_expiry, lot.expires_at or _NEVER)
        for ledger_account, amount_micro, number in operation.postings:
            if number is not None:
                lot = self._by_number[number]
                lot.remaining_micro += amount_micro
                if ledger_account == HELD:
                    lot.reserved_micro += amount_micro
                if lot.is_used:
                    self._used[number] = lot
        for number in operation.emptied:
            self._used.pop(number, None)
            self._in_order.remove(self._by_number.pop(number))
        if operation.emptied:
            self._first_expiry = self._find_first_expiry()

    def encoded(self) -> str | None:
        """Return the amounts of the lots that were used, as :func:`amounts_of` reads them; None for a lone lot."""
        if len(self._in_order) < 2:
            return None
        used = [(lot.number, lot.remaining_micro, lot.reserved_micro) for lot in self._used.values()]
        return msgspec.json.encode(used).decode()

    def _find_first_expiry(self) -> datetime:
        """Return when the first lot expires: the first promotional or the first paid one, as they are in order."""
        lots = self._in_order
        first_paid = bisect_left(lots, (True,), key=_use_order)
        return min(
            (lot.expires_at or _NEVER for lot in (*lots[:1], *lots[first_paid : first_paid + 1])), default=_NEVER
        )


def parts_of(lots: Iterable[Lot], amount_micro: int) -> tuple[list[LotPart], int]:
    """Return the free parts of ``lots``, in this order, that make up ``amount_micro``, and what is missing."""
    parts: list[LotPart] = []
    for lot in lots:
        if not amount_micro:
            break
        free_micro = lot.free_micro
        if free_micro:
            part_micro = min(free_micro, amount_micro)
            parts.append(LotPart(lot.number, part_micro))
            amount_micro -= part_micro
    return parts, amount_micro


def amounts_of(
    lots: Iterable[LotPart], used: str | None, *, balance_micro: int, held_micro: int
) -> dict[int, LotAmounts]:
    """Return the amounts of open lots from the account's row: ``used`` is what :meth:`Lots.encoded` returned.

    ``lots`` are the lots as they were opened; all that are open, unless ``used`` is there.
    """
    if used is None:
        alone = LotAmounts(max(balance_micro, held_micro), held_micro)
        return {number: alone for number, _ in lots}
    changed = {number: LotAmounts(*amounts) for number, *amounts in _USED.decode(used)}
    return {number: changed.get(number, LotAmounts(amount_micro, 0)) for number, amount_micro in lots}


_USED = msgspec.json.Decoder(list[tuple[int, int, int]])


_use_order = attrgetter("use_order")
