"""Credit as operators give and take it: adjustments and grants, the lots of an account, and coupons."""

from __future__ import annotations

import re
import secrets
from functools import partial
from typing import Annotated, Final, get_args

import msgspec

from holdfast.actors.account.messages import AdjustCredit, GrantCredit, VoidLot
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.endpoints.coupons import CouponCode
from holdfast.http.endpoints.credit_lots import (
    FILTERS,
    CreditLotList,
    credit_lot_body,
    lot_entries,
    position_of_lot,
)
from holdfast.http.endpoints.operators.accounts import ask_account, refuse_unknown_account
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import (
    FORMAT,
    PAGE,
    CsvFile,
    Position,
    TotalledListBody,
    columns_of,
    csv_media,
    filter_by,
    list_for_operators,
)
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter, read_amount, read_given_time, shown
from holdfast.http.schemas.common import AmountGiven, CreditChangedBody, credit_changed_body, render
from holdfast.http.schemas.operators import ActionWithReason, Note, Reason, text_of
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, new_id, parse_amount
from holdfast.persistence.claims.coupons import add_coupon, end_coupon, sha256_of_code
from holdfast.persistence.queries.newest import CouponState, list_coupons
from holdfast.persistence.records.credit_tables import CouponRow

route = OperatorRoutes("Credit")

ADJUSTMENT_NOTE: Final = "adjusted by the operator"
GRANT_NOTE: Final = "granted by the operator"
VOID_NOTE: Final = "grant voided by the operator"
CODE_CHARS_MAX: Final = 64
PREFIX_CHARS_MAX: Final = 4
USES_MAX: Final = 1_000_000
CREDIT_DAYS_MAX: Final = 36_500
_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_DRAWN_CHARS: Final = 12
_LOT_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)

SignedAmount = Annotated[
    str,
    msgspec.Meta(
        description="A plain decimal string of credits, other than zero with at most 6 decimals.",
        extra_json_schema={"pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]{1,6})?$", "examples": ["-2.50"]},
    ),
]


class Adjustment(msgspec.Struct, frozen=True):
    """Credit to give or to take."""

    amount: SignedAmount
    """The credit to give, or to take if it is below zero."""
    reason: Reason
    note: Note | None = None
    """What the account's owner reads in the statement; null or omitted: `adjusted by the operator`."""


class Grant(msgspec.Struct, frozen=True):
    """Promotional credit to give."""

    amount: AmountGiven
    """The credit to give."""
    reason: Reason
    expires_at: Time | None = None
    """When what is left of it expires, later than now; null or omitted: never."""
    note: Note | None = None
    """What the account's owner reads in the statement; null or omitted: `granted by the operator`."""


class Voiding(msgspec.Struct, frozen=True):
    """A grant to void."""

    reason: Reason
    note: Note | None = None
    """What the account's owner reads in the statement; null or omitted: `grant voided by the operator`."""


_on_account: Final = route.below("/ops/api/accounts/{account_id}", errors=("account_not_found",))


@_on_account.action(
    "/adjustments",
    "Adjust an account's credit; what is held cannot be taken",
    errors=("invalid_amount", "amount_too_large", "insufficient_credit", "lot_limit_reached"),
    needs_key=True,
)
async def adjust_credit(run: ActionRun, given: Adjustment, account_id: str) -> CreditChangedBody | Refusal:
    """A repeat with the same Idempotency-Key returns the adjustment that was made."""
    amount_micro = parse_amount(given.amount.removeprefix("-"), decimals_max=6)
    if amount_micro is None:
        return Refusal(
            code="invalid_amount",
            message=f"The amount {shown(given.amount)} is not a plain decimal other than zero, "
            "below a billion and with at most 6 decimals.",
            param="amount",
        )
    command = AdjustCredit(
        amount_micro=-amount_micro if given.amount.startswith("-") else amount_micro,
        action_id=run.record.action_id,
        note=text_of(given.note) or ADJUSTMENT_NOTE,
        idempotency=run.key,
    )
    return await change_credit(run, account_id, command)


async def change_credit(
    run: ActionRun, account_id: str, command: AdjustCredit | GrantCredit | VoidLot
) -> CreditChangedBody | Refusal:
    """Give or take credit, and note what was done for the action's record."""
    reply = await ask_account(run, account_id, command)
    if isinstance(reply, Replayed):
        run.is_replay = True
        return reply.reply if isinstance(reply.reply, Refusal) else credit_changed_body(reply.reply)
    if isinstance(reply, Refusal):
        return reply
    run.note(amount=format_amount(reply.amount_micro), operation_id=reply.operation_id)
    return credit_changed_body(reply)


@_on_account.action(
    "/grants",
    "Grant promotional credit, which may expire, to an account",
    errors=("invalid_amount", "amount_too_large", "lot_limit_reached"),
    needs_key=True,
)
async def grant_credit(run: ActionRun, given: Grant, account_id: str) -> CreditChangedBody | Refusal:
    """A repeat with the same Idempotency-Key returns the grant that was made."""
    amount_micro = read_amount(given.amount)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    expires_at = read_given_time("expires_at", given.expires_at)
    if isinstance(expires_at, Refusal):
        return expires_at
    command = GrantCredit(
        amount_micro=amount_micro,
        expires_at=expires_at,
        action_id=run.record.action_id,
        note=text_of(given.note) or GRANT_NOTE,
        idempotency=run.key,
    )
    return await change_credit(run, account_id, command)


@_on_account.action(
    "/credit-lots/{lot}/void",
    "Void what is left of a grant: of a lot of promotional credit; what tasks hold of it stays",
    errors=("credit_lot_not_found", "credit_lot_not_voidable"),
    needs_key=True,
)
async def void_credit_lot(run: ActionRun, given: Voiding, account_id: str, lot: str) -> CreditChangedBody | Refusal:
    """What tasks return to the lot later is left of it, and can be voided then. A repeat with the same
    Idempotency-Key returns what was done.
    """
    if not _LOT_NUMBER.fullmatch(lot):
        return Refusal(code="credit_lot_not_found", message=f"There is no lot {shown(lot)}.", param="lot")
    command = VoidLot(
        number=int(lot),
        action_id=run.record.action_id,
        note=text_of(given.note) or VOID_NOTE,
        idempotency=run.key,
    )
    return await change_credit(run, account_id, command)


@_on_account.read(
    "/credit-lots", "List an account's lots of credit with what is left of each", CreditLotList, parameters=FILTERS
)
async def list_account_lots(call: Call) -> Outcome:
    """Lots of which nothing is left are listed too."""
    account_id = call.path["account_id"]
    return await refuse_unknown_account(call.deps, account_id) or await list_for_operators(
        call,
        lambda rows, **options: lot_entries(rows, account_id, **options),
        credit_lot_body,
        position_of_lot,
        owner=account_id,
    )


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


class CouponList(TotalledListBody[CouponBody], frozen=True):
    """A page of coupons, newest first, with how many there are by state, and what they have given."""


_COLUMNS: Final = columns_of(
    "coupon_id",
    "code_prefix",
    "amount_micro",
    "uses",
    "uses_max",
    "created_at",
    "redeem_until",
    "credit_days",
    "disabled_at",
)
_STATE: Final = filter_by(
    "state", "Only coupons that can be redeemed, that are used up, or that have ended.", get_args(CouponState)
)


@route.action(
    "/ops/api/coupons",
    "Make a coupon, a code that owners redeem for promotional credit; only this response has the code",
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


@route.read(
    "/ops/api/coupons",
    "List coupons with their totals; newest first, or as a CSV file",
    CouponList,
    parameters=(_STATE, *PAGE, FORMAT),
    media=(csv_media(_COLUMNS),),
)
async def read_coupons(call: Call) -> Outcome:
    """Coupons that have ended are listed too."""
    return await list_for_operators(
        call,
        list_coupons,
        partial(render, CouponBody),
        lambda coupon: Position(coupon.created_at, coupon.coupon_id),
        file=CsvFile("coupons.csv", _COLUMNS),
        totals="coupons",
    )


@route.action(
    "/ops/api/coupons/{coupon_id}/end",
    "End a coupon: it cannot be redeemed any more",
    name="end_coupon",
    errors=("coupon_not_found",),
)
async def stop_coupon(run: ActionRun, _: ActionWithReason, coupon_id: str) -> CouponBody | Refusal:
    """Credit that it has given stays."""
    ended = await run.deps.write_record(partial(end_coupon, coupon_id=coupon_id, now=run.deps.now()))
    if ended is None:
        return Refusal(code="coupon_not_found", message=f"The coupon {shown(coupon_id)} does not exist.")
    return render(CouponBody, ended)
