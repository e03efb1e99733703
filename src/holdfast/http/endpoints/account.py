"""The account's totals, its API keys, and sandbox credit."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.actors.account.messages import CreateApiKey, CreditChanged, Recharge, RevokeApiKey
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import ACCOUNT_READ, ALL_SCOPES, SCOPES, mint_api_key
from holdfast.http.kit.responses import IF_NONE_MATCH, NOT_MODIFIED, cacheable, reply_outcome
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, RouteTable
from holdfast.http.kit.values import read_amount, shown
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
    render,
)
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import CURRENCY
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.expired import REVOKED_KEYS_MAX
from holdfast.persistence.queries.accounts import find_totals
from holdfast.persistence.queries.credentials import api_keys_of_account

route = RouteTable("Account")

STORED_KEYS_MAX: Final = 500
"""The most keys of an account. It is met only by one that revokes hundreds between two sweeps of the oldest."""


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
    tag = f'W/"{totals.account_id}.{totals.balance_micro}.{totals.held_micro}"'
    return cacheable(call, tag, lambda: account_body(totals))


@route(
    "POST",
    "/v2/control/api-keys",
    summary="Create an API key; only this response has its secret",
    auth=Auth.SESSION,
    body=ApiKeyRequest,
    reply=ApiKeySecret,
    errors=("api_key_limit_reached",),
)
async def create_api_key(call: Call) -> Outcome:
    """Only a hash of the secret is stored, so it cannot be shown again."""
    assert call.session is not None
    wanted = call.body(ApiKeyRequest)
    scopes = SCOPES if wanted.scopes is None else tuple(dict.fromkeys(wanted.scopes))
    unknown = [scope for scope in scopes if scope not in ALL_SCOPES]
    if unknown or not scopes:
        found = f"The scope {shown(unknown[0])} does not exist" if unknown else "The list of scopes is empty"
        message = f"{found}; the scopes are {', '.join(ALL_SCOPES)}."
        return Refusal(code="invalid_parameter", message=message, param="scopes")
    account_id = call.session.account_id
    stored = await call.deps.database.read(lambda rows: len(api_keys_of_account(rows, account_id)))
    if stored >= STORED_KEYS_MAX:
        return Refusal(
            code="api_key_limit_reached",
            message=f"This account has {stored} API keys with the revoked ones, the most allowed; "
            f"all but the newest {REVOKED_KEYS_MAX} revoked ones are deleted within minutes.",
        )
    name = (wanted.name or "").strip()
    if not name.isprintable():
        message = f"The name {shown(name)} has unprintable characters."
        return Refusal(code="invalid_parameter", message=message, param="name")
    minted = mint_api_key(call.session.account_id, live=call.deps.settings.env == "production")
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
    return render(
        ApiKeySecret, created, api_key_id=created.key_id, api_key=minted.secret, api_key_prefix=created.prefix
    )


@route(
    "GET",
    "/v2/control/api-keys",
    summary="List the account's API keys, newest first",
    auth=Auth.SESSION,
    reply=ApiKeyList,
)
async def list_api_keys(call: Call) -> Outcome:
    """Revoked keys are listed with the time of their revocation."""
    session = await call.verify_session()
    if isinstance(session, Refusal):
        return session
    keys = await call.read(partial(api_keys_of_account, account_id=session.account_id))
    return ApiKeyList(data=[api_key_body(key) for key in keys])


@route(
    "DELETE",
    "/v2/control/api-keys/{api_key_id}",
    summary="Revoke an API key, effective with the next request",
    auth=Auth.SESSION,
    reply=ApiKeyRevokedBody,
    errors=("api_key_not_found",),
)
async def revoke_api_key(call: Call) -> Outcome:
    """A key that is revoked already is returned unchanged."""
    key_id = call.path["api_key_id"]
    session = await call.verify_session()
    if isinstance(session, Refusal):
        return session
    account_id = session.account_id
    keys = await call.read(partial(api_keys_of_account, account_id=account_id))
    ours = [key for key in keys if key.key_id == key_id]
    if not ours:
        return Refusal(code="api_key_not_found", message=f"The API key {shown(key_id)} does not exist.")
    if ours[0].revoked_at is not None:
        return render(ApiKeyRevokedBody, ours[0], api_key_id=key_id)
    revoked = await call.ask(call.deps.accounts.ref(account_id), RevokeApiKey(key_id=key_id))
    if isinstance(revoked, Refusal):
        return revoked
    return render(ApiKeyRevokedBody, revoked, api_key_id=key_id)


@route(
    "POST",
    "/v2/control/sandbox/recharge",
    summary="Add sandbox credit to the account",
    auth=Auth.SESSION,
    body=RechargeRequest,
    reply=RechargedBody,
    parameters=(IDEMPOTENCY_KEY,),
    errors=("invalid_amount", "amount_too_large", "sandbox_disabled"),
)
async def recharge(call: Call) -> Outcome:
    """For development and tests: refused if the sandbox is disabled, as it is in production."""
    assert call.session is not None
    settings = call.deps.settings
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return idempotency
    amount_micro: int | Refusal = Refusal(code="sandbox_disabled", message="Sandbox credit is disabled.")
    if settings.sandbox_enabled:
        amount = call.body(RechargeRequest).amount
        amount_micro = read_amount(amount, max_micro=settings.recharge_max_micro, decimals_max=6)
    if isinstance(amount_micro, Refusal):
        return reply_outcome(await call.refuse(amount_micro, idempotency, CreditChanged), _recharged)
    command = Recharge(amount_micro=amount_micro, idempotency=idempotency)
    return reply_outcome(await call.ask(call.deps.accounts.ref(call.session.account_id), command), _recharged)


def _recharged(reply: CreditChanged) -> RechargedBody:
    return render(RechargedBody, reply, currency=CURRENCY, account=account_body(reply.account))
