"""The account's totals, and sandbox credit."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.actors.account.messages import CreditChanged, Recharge
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.responses import IF_NONE_MATCH, NOT_MODIFIED, cacheable, reply_outcome
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, Parameter, RouteTable
from holdfast.http.kit.values import invalid_parameter, read_amount, read_given_time
from holdfast.http.schemas.common import (
    AccountBody,
    RechargedBody,
    RechargeRequest,
    account_body,
    render,
)
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import CURRENCY
from holdfast.persistence.queries.accounts import find_totals
from holdfast.persistence.queries.ledger import totals_at

route = RouteTable("Credit")

AT: Final = Parameter(
    name="at",
    location="query",
    description="The totals at this time, with its last operations: RFC 3339 with an offset, or a date for its "
    "midnight in UTC, from the account's creation until now. Without it: now.",
    schema={"type": "string", "examples": ["2026-11-20T12:00:00Z"]},
)


@route(
    "GET",
    "/v2/control/account",
    summary="Retrieve the account's totals",
    auth=Auth.SESSION_OR_KEY,
    scope=ACCOUNT_READ,
    reply=AccountBody,
    media=(NOT_MODIFIED,),
    parameters=(AT, IF_NONE_MATCH),
)
async def read_account(call: Call) -> Outcome:
    """The account of the credential: as it is, or with `at` as the statement has it at that time."""
    totals = await (_totals_at(call, *sent) if (sent := call.query().get("at")) else _totals(call))
    if isinstance(totals, Refusal):
        return totals
    tag = f"{totals.account_id}.{totals.balance_micro}.{totals.held_micro}"
    return cacheable(call, tag, lambda: account_body(totals))


async def _totals(call: Call) -> AccountTotals | Refusal:
    totals = await call.look_up_as_caller(find_totals)
    assert totals is not None, "a credential names an account that exists"
    return totals


async def _totals_at(call: Call, sent: str, *more: str) -> AccountTotals | Refusal:
    """Return the totals at a time. Refuses: 1. ``invalid_parameter``; 2. as the credential is refused."""
    if more:
        return invalid_parameter("at", f"was sent {1 + len(more)} times")
    at = read_given_time("at", sent)
    if isinstance(at, Refusal):
        return at
    assert at is not None
    if at > call.deps.now():
        return invalid_parameter("at", "must not be later than now", sent)
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    totals = await call.read(partial(totals_at, account_id=account_id, at=at))
    return totals or invalid_parameter("at", "must not be earlier than the account's creation", sent)


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
