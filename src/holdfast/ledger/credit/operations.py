"""Operations: what changes an account's credit, as postings, each operation chained to the previous one.

A customer's ledger accounts are ``available`` and ``held``; the balance is their sum. The other side of an
operation is a platform account (``cash:…``, ``revenue``, ``adjustments``, ``promotions``, ``breakage``), which has
no stored balance: its balance is the sum of its postings. A positive posting increases a ledger account.

Credit is in lots (:mod:`holdfast.ledger.credit.lots`): a posting on ``available`` or ``held`` names its lot.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import msgspec

AVAILABLE = "available"
HELD = "held"
REVENUE = "revenue"
ADJUSTMENTS = "adjustments"
PROMOTIONS = "promotions"
"""The expense of credit that was granted: expired grants reduce it."""
BREAKAGE = "breakage"
"""The income from paid credit that has expired."""

LotKind: TypeAlias = Literal["paid", "promotional"]
LotSource: TypeAlias = Literal["order", "recharge", "adjustment", "grant", "coupon"]


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
        """Return the SHA-256 of ``previous`` and this operation with its lot's facts, times in milliseconds."""
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
        return hashlib.sha256(previous + _encoder.encode(fields)).digest()


_encoder = msgspec.json.Encoder()

CHAIN_START = bytes(32)
"""The hash that precedes an account's first operation."""
