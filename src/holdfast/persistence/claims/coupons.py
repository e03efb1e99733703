"""Coupons: codes that give promotional credit, each a limited number of times and once to an account.

A use is **claimed** first, in a transaction that locks the coupon, so that its uses are counted whichever processes
serve their accounts. Then the account is asked for the credit: its unit of work ends the claim. A claim is never
taken back; one that has not ended, because a process died, is found by the lot sweeper and asked for again.

Wrong codes are counted for each account, so that codes cannot be guessed. Only hashes of codes are stored,
without a key, which no coupon could outlive.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from holdfast.persistence.records.credit_tables import CouponClaim, CouponRow
from holdfast.persistence.records.tables import coupon_tries, coupon_uses, coupons

WRONG_CODES_MAX: Final = 10
WRONG_CODES_S: Final = 3600
"""How many wrong codes an account may send in this time."""
CLAIM_OVERDUE_S: Final = 60
"""After how long a claim that has not ended is asked for again."""

CouponTrouble: TypeAlias = Literal["unknown", "ended", "used_up", "already_redeemed", "too_many_tries"]

_TRIES = text(
    # Also locks the account's row, so that the codes of one account are tried one after the other.
    """
    insert into coupon_tries as t (account_id, since, wrong) values (:account_id, :now, 0)
    on conflict (account_id) do update set
        since = case when t.since <= :oldest then excluded.since else t.since end,
        wrong = case when t.since <= :oldest then 0 else t.wrong end
    returning wrong
    """
)
_WRONG = text("update coupon_tries set wrong = wrong + 1 where account_id = :account_id")
_COUPON = text(
    """
    select c.*, u.claim_id, u.granted_at, u.amount_micro as claimed_micro from coupons c
    left join coupon_uses u on u.coupon_id = c.coupon_id and u.account_id = :account_id
    where c.code_sha256 = :code_sha256 for update of c
    """
)
"""The coupon, locked, with the account's use of it."""
_USE = text(
    """
    with counted as (update coupons set uses = uses + 1 where coupon_id = :coupon_id returning amount_micro)
    insert into coupon_uses (account_id, coupon_id, claim_id, amount_micro, claimed_at)
    select :account_id, :coupon_id, :claim_id, amount_micro, :now from counted
    """
)
_CLAIM = select(coupon_uses, coupons.c.credit_days).join(coupons, coupons.c.coupon_id == coupon_uses.c.coupon_id)


class NewCouponClaim(NamedTuple):
    """Who redeems a code, and the id that the claim gets if it is a new one."""

    account_id: str
    code_sha256: bytes
    claim_id: str
    now: datetime


def sha256_of_code(code: str) -> bytes:
    """Return what is stored of a coupon's code; blanks around it and its case do not count."""
    return hashlib.sha256(code.strip().upper().encode()).digest()


def has_tried_too_often(rows: Connection, *, account_id: str, now: datetime) -> bool:
    """Whether the account has sent too many wrong codes: that is known without a claim, which writes."""
    tries = coupon_tries.c
    newer = tries.since > now - timedelta(seconds=WRONG_CODES_S)
    wrong = rows.scalar(select(tries.wrong).where(tries.account_id == account_id, newer))
    return wrong is not None and wrong >= WRONG_CODES_MAX


def claim_coupon(rows: Connection, new: NewCouponClaim) -> CouponClaim | CouponTrouble:
    """Claim a use of the coupon with this code, or return the account's claim that has not ended yet."""
    account_id, code_sha256, claim_id, now = new
    oldest = now - timedelta(seconds=WRONG_CODES_S)
    wrong = rows.execute(_TRIES, {"account_id": account_id, "now": now, "oldest": oldest}).scalar_one()
    if wrong >= WRONG_CODES_MAX:
        return "too_many_tries"
    coupon = rows.execute(_COUPON, {"account_id": account_id, "code_sha256": code_sha256}).one_or_none()
    if coupon is None:
        rows.execute(_WRONG, {"account_id": account_id})
        return "unknown"
    if coupon.granted_at is not None:
        return "already_redeemed"
    if coupon.claim_id is None:
        if coupon.disabled_at is not None or (coupon.redeem_until is not None and coupon.redeem_until <= now):
            return "ended"
        if coupon.uses >= coupon.uses_max:
            return "used_up"
        use = {"account_id": account_id, "coupon_id": coupon.coupon_id, "claim_id": claim_id, "now": now}
        rows.execute(_USE, use)
    return CouponClaim(
        account_id=account_id,
        coupon_id=coupon.coupon_id,
        claim_id=coupon.claim_id or claim_id,
        amount_micro=coupon.amount_micro if coupon.claimed_micro is None else coupon.claimed_micro,
        credit_days=coupon.credit_days,
    )


def overdue_claims(rows: Connection, now: datetime, *, after: str = "", most: int) -> list[CouponClaim]:
    """Return the claims that follow ``after`` and have not ended although they should have, by their ids."""
    uses, before = coupon_uses.c, now - timedelta(seconds=CLAIM_OVERDUE_S)
    query = _CLAIM.where(uses.granted_at.is_(None), uses.claimed_at <= before, uses.claim_id > after)
    return [_claim_of(row) for row in rows.execute(query.order_by(uses.claim_id).limit(most))]


def add_coupon(rows: Connection, coupon: CouponRow) -> bool:
    """Write a new coupon; return whether its code was not used before."""
    added = insert(coupons).values(coupon._asdict()).on_conflict_do_nothing(index_elements=["code_sha256"])
    return rows.execute(added.returning(coupons.c.coupon_id)).first() is not None


def end_coupon(rows: Connection, coupon_id: str, now: datetime) -> CouponRow | None:
    """Have the coupon not be redeemed any more; None if there is no such coupon. What was given stays."""
    ended = update(coupons).where(coupons.c.coupon_id == coupon_id).returning(coupons)
    found = rows.execute(ended.values(disabled_at=func.coalesce(coupons.c.disabled_at, now))).one_or_none()
    return None if found is None else CouponRow(**found._asdict())


def _claim_of(row: object) -> CouponClaim:
    return CouponClaim(*(getattr(row, name) for name in CouponClaim.__struct_fields__))
