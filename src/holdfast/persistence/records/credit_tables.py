"""The rows and tables of lots of credit, of the coupons that give some, and of the keys that sign statements."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.persistence.records.table_base import Int32, columns, columns_of, index, table


class CouponRow(NamedTuple):
    """A coupon: a code that gives credit to ``uses_max`` accounts, once to each.

    Of the code only the hash and the first characters are stored. The credit expires ``credit_days`` after it was
    given. ``disabled_at`` and ``redeem_until`` end its redemption.
    """

    coupon_id: str
    code_sha256: bytes
    code_prefix: str
    amount_micro: int
    uses_max: int
    credit_days: int | None
    redeem_until: datetime | None
    created_at: datetime
    uses: int = 0
    disabled_at: datetime | None = None


class StatementKeyRow(NamedTuple):
    """A public key that has signed statements, and when; it is published for as long as they are kept."""

    key_id: str
    public_key: bytes
    first_used_at: datetime
    last_used_at: datetime


class CouponClaim(msgspec.Struct, frozen=True):
    """A claimed use of a coupon by an account, which has yet to be given the credit. Its lot names ``claim_id``."""

    account_id: str
    coupon_id: str
    claim_id: str
    amount_micro: int
    credit_days: int | None


credit_lots = table(
    "credit_lots",
    ["account_id", "number"],
    # What an operation has opened, numbered as the operation; its hash covers the facts.
    *columns(account_id=str, number=int, kind=str, source=str, reference=str, amount_micro=int),
    *columns(created_at=datetime, expires_at=datetime | None),
    # The operation that left nothing of it. How many days before its expiry the owner was last notified.
    *columns(closed_number=int | None, announced_days=Int32 | None),
    index("ix_credit_lots_open", "account_id", where="closed_number is null"),
    # The last guard against giving the credit of one claim twice; the account's stored replies come first.
    index("uq_credit_lots_claim", "account_id", "reference", unique=True, where="source = 'coupon'"),
    index("ix_credit_lots_expires_at", "expires_at", where="closed_number is null and expires_at is not null"),
)

# Written without the journal: the credit that a coupon gives is decided by its account, which ends the claim.
coupons = table(
    "coupons",
    ["coupon_id"],
    *columns_of(CouponRow),
    index("uq_coupons_code", "code_sha256", unique=True),
    index("ix_coupons_created_at", "created_at", "coupon_id"),
)

coupon_uses = table(
    "coupon_uses",
    ["account_id", "coupon_id"],
    *columns_of(CouponClaim, without=["credit_days"]),
    *columns(claimed_at=datetime, granted_at=datetime | None),
    index("ix_coupon_uses_claimed_at", "claimed_at", where="granted_at is null"),
)

coupon_tries = table(
    "coupon_tries",
    ["account_id"],
    # The wrong codes that an account has sent since a time.
    *columns(account_id=str, since=datetime, wrong=Int32),
)

# Written without the journal, by the exports that the keys sign. Of the last uses in an hour only one is.
statement_keys = table("statement_keys", ["key_id"], *columns_of(StatementKeyRow))
