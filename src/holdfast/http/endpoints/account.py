"""The account's totals, and sandbox credit."""

from __future__ import annotations

from holdfast.actors.account.messages import CreditChanged, Recharge
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.responses import IF_NONE_MATCH, NOT_MODIFIED, cacheable, reply_outcome
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.values import read_amount
from holdfast.http.schemas.common import (
    AccountBody,
    RechargedBody,
    RechargeRequest,
    account_body,
    render,
)
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.money import CURRENCY
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.accounts import find_totals

route = RouteTable("Credit")


@route(
    "GET",
    "/v2/control/account",
    summary="Retrieve the account's totals",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=AccountBody,
    media=(NOT_MODIFIED,),
    parameters=(IF_NONE_MATCH,),
)
async def read_account(call: Call) -> Outcome:
    """The account of the credential."""
    totals = await call.look_up_as_caller(find_totals)
    assert totals is not None, "a credential names an account that exists"
    if isinstance(totals, Refusal):
        return totals
    tag = f"{totals.account_id}.{totals.balance_micro}.{totals.held_micro}"
    return cacheable(call, tag, lambda: account_body(totals))


@route(
    "POST",
    "/v2/control/sandbox/recharge",
    summary="Add sandbox credit to the account",
    auth=Auth.SESSION,
    body=RechargeRequest,
    reply=RechargedBody,
    parameters=(IDEMPOTENCY_KEY,),
    errors=("invalid_amount", "amount_too_large", "lot_limit_reached", "sandbox_disabled"),
)
async def recharge(call: Call) -> Outcome:
    """For development and tests: refused if the sandbox is disabled, as it is in production."""
    settings = call.deps.settings
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    amount_micro: int | Refusal = Refusal(code="sandbox_disabled", message="Sandbox credit is disabled.")
    if settings.sandbox_enabled:
        amount = call.body(RechargeRequest).amount
        amount_micro = read_amount(amount, max_micro=settings.recharge_max_micro)
    if isinstance(amount_micro, Refusal):
        return reply_outcome(call, await call.refuse(amount_micro, idempotency, CreditChanged), _recharged)
    command = Recharge(amount_micro=amount_micro, idempotency=idempotency)
    return reply_outcome(call, await call.ask(call.deps.accounts.ref(call.session.account_id), command), _recharged)


def _recharged(reply: CreditChanged) -> RechargedBody:
    return render(RechargedBody, reply, currency=CURRENCY, account=account_body(reply.account))
