"""The account's own pages: its totals, its API keys, and sandbox credit."""

from __future__ import annotations

from typing import Final

from holdfast.actors.account.messages import CreateApiKey, Recharge, Recharged, RevokeApiKey
from holdfast.http.kit.answers import told
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import SCOPES, mint_api_key
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.schemas.common import (
    AccountBody,
    ApiKeyList,
    ApiKeyRequest,
    ApiKeyRevokedBody,
    ApiKeySecret,
    RechargedBody,
    RechargeRequest,
    account_body,
    api_key_body,
)
from holdfast.ledger.clock import format_time
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import CURRENCY, format_amount, parse_amount
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.accounts import AccountTotals, account_totals
from holdfast.persistence.queries.api_keys import api_keys_of_account

route = RouteTable("Account")

_KEY_NOT_FOUND: Final = Refusal(code="api_key_not_found", message="There is no such API key.")


@route("GET", "/v2/control/account", summary="The account's totals", auth=Auth.SESSION, reply=AccountBody)
async def read_account(call: Call) -> Outcome:
    """One read: the session and the account's row."""
    totals = await call.read_as_session(lambda rows, session: account_totals(rows, session.account_id))
    return totals if isinstance(totals, Refusal) else account_body(totals)


@route(
    "POST",
    "/v2/control/api-keys",
    summary="Make an API key; its secret is shown in this answer and never again",
    auth=Auth.SESSION,
    body=ApiKeyRequest,
    reply=ApiKeySecret,
    errors=("api_key_limit_reached",),
)
async def create_api_key(call: Call) -> Outcome:
    """The secret is drawn here and only its hash travels on."""
    assert call.session is not None
    wanted = call.body(ApiKeyRequest)
    scopes = SCOPES if wanted.scopes is None else tuple(dict.fromkeys(wanted.scopes))
    if not scopes or not set(scopes) <= set(SCOPES):
        known = ", ".join(SCOPES)
        return Refusal(code="invalid_parameter", message=f"Choose scopes among {known}.", param="scopes")
    name = (wanted.name or "").strip()
    if not name.isprintable():
        return Refusal(code="invalid_parameter", message="The name has unprintable characters.", param="name")
    minted = mint_api_key(live=call.deps.settings.env == "production")
    command = CreateApiKey(
        key_id=new_id("key"),
        secret_sha256=minted.sha256,
        prefix=minted.prefix,
        name=name or "API key",
        scopes=scopes,
    )
    created = await call.ask(call.deps.accounts.ref(call.session.account_id), command)
    if isinstance(created, Refusal):
        return created
    return ApiKeySecret(
        api_key_id=created.key_id,
        api_key=minted.secret,
        api_key_prefix=created.prefix,
        name=created.name,
        scopes=list(created.scopes),
        created_at=format_time(created.created_at),
    )


@route("GET", "/v2/control/api-keys", summary="The account's API keys", auth=Auth.SESSION, reply=ApiKeyList)
async def list_api_keys(call: Call) -> Outcome:
    """Revoked keys stay in the list, so that their owner can see when that was."""
    keys = await call.read_as_session(lambda rows, session: api_keys_of_account(rows, session.account_id))
    return keys if isinstance(keys, Refusal) else ApiKeyList(data=[api_key_body(key) for key in keys])


@route(
    "DELETE",
    "/v2/control/api-keys/{api_key_id}",
    summary="Revoke an API key at once; repeating it changes nothing",
    auth=Auth.SESSION,
    reply=ApiKeyRevokedBody,
    errors=("api_key_not_found",),
)
async def revoke_api_key(call: Call) -> Outcome:
    """Whose key it is, is read before the actor is asked."""
    key_id = call.path["api_key_id"]
    found = await call.read_as_session(
        lambda rows, session: (
            session.account_id,
            [key for key in api_keys_of_account(rows, session.account_id) if key.key_id == key_id],
        )
    )
    if isinstance(found, Refusal):
        return found
    account_id, ours = found
    if not ours:
        return _KEY_NOT_FOUND
    if ours[0].revoked_at is not None:
        return ApiKeyRevokedBody(api_key_id=key_id, revoked_at=format_time(ours[0].revoked_at))
    revoked = await call.ask(call.deps.accounts.ref(account_id), RevokeApiKey(key_id=key_id))
    if isinstance(revoked, Refusal):
        return revoked
    return ApiKeyRevokedBody(api_key_id=revoked.key_id, revoked_at=format_time(revoked.revoked_at))


@route(
    "POST",
    "/v2/control/sandbox/recharge",
    summary="Add sandbox credit through the ledger",
    auth=Auth.SESSION,
    body=RechargeRequest,
    reply=RechargedBody,
    parameters=(IDEMPOTENCY_KEY,),
    errors=("invalid_amount", "amount_too_large", "sandbox_disabled"),
)
async def recharge(call: Call) -> Outcome:
    """Play money, so it may be switched off."""
    assert call.session is not None
    settings = call.deps.settings
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    amount_micro = parse_amount(call.body(RechargeRequest).amount, decimals_max=6)
    refusal: Refusal | None = None
    if not settings.sandbox_enabled:
        refusal = Refusal(code="sandbox_disabled", message="Sandbox credit is switched off here.")
    elif amount_micro is None:
        refusal = Refusal(
            code="invalid_amount",
            message="The amount must be a plain decimal string above zero with at most 6 decimals.",
            param="amount",
        )
    elif amount_micro > settings.recharge_max_micro:
        largest = format_amount(settings.recharge_max_micro)
        refusal = Refusal(code="invalid_amount", message=f"The amount may be at most {largest}.", param="amount")
    if refusal is not None or amount_micro is None:
        assert refusal is not None
        return told(await call.refuse(refusal, idempotency, Recharged), _recharged)
    command = Recharge(amount_micro=amount_micro, idempotency=idempotency)
    return told(await call.ask(call.deps.accounts.ref(call.session.account_id), command), _recharged)


def _recharged(reply: Recharged) -> RechargedBody:
    account = reply.account
    return RechargedBody(
        operation_id=reply.operation_id,
        amount=format_amount(reply.amount_micro),
        currency=CURRENCY,
        account=account_body(AccountTotals(account.account_id, account.balance_micro, account.held_micro)),
    )
