"""Coupons as operators make them, list them and end them."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final

import msgspec

from holdfast.http.endpoints.coupons import CouponCode
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, ListBody, Position, list_for_operators, read_given_time
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter, read_amount, shown
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.http.schemas.operators import ActionWithReason, Reason
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.coupons import add_coupon, end_coupon, sha256_of_code
from holdfast.persistence.queries.lots import list_coupons
from holdfast.persistence.records.credit_tables import CouponRow

route = OperatorRoutes()

CODE_CHARS_MAX: Final = 64
PREFIX_CHARS_MAX: Final = 4
USES_MAX: Final = 1_000_000
CREDIT_DAYS_MAX: Final = 36_500
_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_DRAWN_CHARS: Final = 12


class NewCoupon(msgspec.Struct, frozen=True):
    """A coupon to make."""

    amount: AmountGiven
    """The credit that each account gets which redeems it."""
    reason: Reason
    code: CouponCode | None = None
    """Its code; null or omitted: one is drawn, which cannot be guessed."""
    uses_max: int = 1
    """How many accounts may redeem it, up to a million."""
    redeem_until: Time | None = None
    """Until when it can be redeemed, later than now; null or omitted: until it is ended."""
    credit_days: int | None = None
    """After how many days the credit expires; null or omitted: never."""


class CouponBody(msgspec.Struct, frozen=True):
    """A coupon."""

    coupon_id: str
    """Its id, `cpn_…`."""
    code_prefix: str
    """The first characters of its code: a third of them, at most four."""
    amount: Amount
    """The credit that it gives."""
    uses: int
    """How many accounts have redeemed it."""
    uses_max: int
    """How many accounts may."""
    redeem_until: Time | None
    """Until when it can be redeemed; null: until it is ended."""
    credit_days: int | None
    """After how many days the credit expires; null: never."""
    created_at: Time
    """When it was made."""
    disabled_at: Time | None
    """When it was ended; null if it was not."""


class MadeCoupon(CouponBody, frozen=True, kw_only=True):
    """A coupon that has just been made."""

    code: str
    """What owners send to redeem it. Only a hash of it is stored, so this response alone has it."""


class CouponList(ListBody[CouponBody], frozen=True):
    """A page of coupons, newest first."""


@route.action(
    "/ops/api/coupons",
    "Make a coupon, a code that owners redeem for promotional credit; only this response has the code",
    NewCoupon,
    MadeCoupon,
    errors=("invalid_amount", "coupon_code_taken"),
)
async def make_coupon(run: ActionRun, given: NewCoupon) -> MadeCoupon | Refusal:
    """Each account may redeem it once. Lists and the record of this action have the code's first characters."""
    amount_micro = read_amount(given.amount)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    redeem_until = read_given_time("redeem_until", given.redeem_until, after=run.deps.now())
    if isinstance(redeem_until, Refusal):
        return redeem_until
    if not 1 <= given.uses_max <= USES_MAX:
        return invalid_parameter("uses_max", f"must be from 1 to {USES_MAX}", str(given.uses_max))
    if given.credit_days is not None and not 1 <= given.credit_days <= CREDIT_DAYS_MAX:
        return invalid_parameter("credit_days", f"must be from 1 to {CREDIT_DAYS_MAX}", str(given.credit_days))
    code = (given.code or "".join(secrets.choice(_ALPHABET) for _ in range(_DRAWN_CHARS))).strip().upper()
    if not code.replace("-", "").isalnum() or not code.isascii() or len(code) > CODE_CHARS_MAX:
        return invalid_parameter("code", f"must be 1 to {CODE_CHARS_MAX} letters, digits and hyphens", given.code)
    coupon = CouponRow(
        coupon_id=new_id("cpn"),
        code_sha256=sha256_of_code(code),
        code_prefix=code[: min(PREFIX_CHARS_MAX, len(code) // 3)],
        amount_micro=amount_micro,
        uses_max=given.uses_max,
        credit_days=given.credit_days,
        redeem_until=redeem_until,
        created_at=run.deps.now(),
    )
    if not await run.deps.write_record(partial(add_coupon, coupon=coupon)):
        return Refusal(code="coupon_code_taken", message=f"A coupon has the code {shown(code)}.", param="code")
    run.note(
        coupon_id=coupon.coupon_id,
        code_prefix=coupon.code_prefix,
        amount=format_amount(amount_micro),
        uses_max=str(given.uses_max),
    )
    return render(MadeCoupon, coupon, code=code)


@route.read("/ops/api/coupons", "List coupons, newest first", CouponList, parameters=PAGE)
async def read_coupons(call: Call) -> Outcome:
    """Coupons that have ended are listed too."""
    return await list_for_operators(
        call,
        list_coupons,
        partial(render, CouponBody),
        lambda coupon: Position(coupon.created_at, coupon.coupon_id),
    )


@route.action(
    "/ops/api/coupons/{coupon_id}/end",
    "End a coupon: it cannot be redeemed any more",
    ActionWithReason,
    CouponBody,
    name="end_coupon",
    errors=("coupon_not_found",),
)
async def stop_coupon(run: ActionRun, _: ActionWithReason, coupon_id: str) -> CouponBody | Refusal:
    """Credit that it has given stays."""
    ended = await run.deps.write_record(partial(end_coupon, coupon_id=coupon_id, now=run.deps.now()))
    if ended is None:
        return Refusal(code="coupon_not_found", message=f"The coupon {shown(coupon_id)} does not exist.")
    return render(CouponBody, ended)
