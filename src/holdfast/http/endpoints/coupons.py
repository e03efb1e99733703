"""Coupons: an owner redeems a code for promotional credit."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec

from holdfast.actors.account.messages import redeem_coupon
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.responses import reply_outcome
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import CreditChangedBody, credit_changed_body
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.claims.coupons import (
    WRONG_CODES_S,
    CouponTrouble,
    NewCouponClaim,
    claim_coupon,
    has_tried_too_often,
    sha256_of_code,
)

route = RouteTable("Credit")

CouponCode = Annotated[
    str,
    msgspec.Meta(
        description="A coupon's code: letters, digits and hyphens, in upper or lower case.",
        extra_json_schema={"pattern": r"^[A-Za-z0-9-]{1,64}$", "examples": ["WELCOME-7K3Q"]},
    ),
]


class CouponRequest(msgspec.Struct, frozen=True):
    """The coupon to redeem."""

    code: CouponCode


_REFUSALS: Final[dict[CouponTrouble, Refusal]] = {
    "unknown": Refusal(code="coupon_not_found", message="No coupon has this code.", param="code"),
    "ended": Refusal(code="coupon_ended", message="This coupon cannot be redeemed any more.", param="code"),
    "used_up": Refusal(
        code="coupon_used_up", message="This coupon was redeemed as often as it may be.", param="code"
    ),
    "already_redeemed": Refusal(
        code="coupon_already_redeemed", message="This account has redeemed this coupon.", param="code"
    ),
    "too_many_tries": Refusal(
        code="rate_limit_exceeded",
        message="This account has sent too many codes of no coupon.",
        retry_after_s=WRONG_CODES_S,
    ),
}


@route(
    "POST",
    "/v2/control/coupons/redeem",
    summary="Redeem a coupon for promotional credit",
    auth=Auth.SESSION,
    body=CouponRequest,
    reply=CreditChangedBody,
    errors=(
        "coupon_not_found",
        "coupon_ended",
        "coupon_used_up",
        "coupon_already_redeemed",
        "amount_too_large",
        "lot_limit_reached",
        "account_disabled",
        "rate_limit_exceeded",
    ),
)
async def redeem(call: Call) -> Outcome:
    """Each coupon once. Ten wrong codes in an hour are all that an account may send."""
    account_id, now = call.session.account_id, call.deps.now()
    if await call.read(partial(has_tried_too_often, account_id=account_id, now=now)):
        return _REFUSALS["too_many_tries"]
    new = NewCouponClaim(account_id, sha256_of_code(call.body(CouponRequest).code), new_id("cpu"), now)
    claim = await call.write(account_id, partial(claim_coupon, new=new))
    if isinstance(claim, str):
        return _REFUSALS[claim]
    reply = await call.ask(call.deps.accounts.ref(account_id), redeem_coupon(claim))
    return reply_outcome(call, reply, credit_changed_body)
