"""The account of the API key, and the secret that signs its webhooks."""

from __future__ import annotations

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.webhook_secrets import signing_at, webhook_secret
from holdfast.persistence.claims.outbox import rotations_of
from holdfast_compat.replicate.schemas import BASE, ReplicateAccount, WebhookSigningSecret

route = RouteTable("Replicate", auth=Auth.API_KEY, scope=ACCOUNT_READ)


@route(
    "GET",
    f"{BASE}/account",
    summary="Retrieve the account of the API key",
    reply=ReplicateAccount,
)
async def read_replicate_account(call: Call) -> Outcome:
    """The key needs the scope `account:read`."""
    key = await call.verify_key()
    return key if isinstance(key, Refusal) else ReplicateAccount(key.account_id, key.account_id)


@route(
    "GET",
    f"{BASE}/webhooks/default/secret",
    summary="Retrieve the secret that signs the account's webhooks",
    reply=WebhookSigningSecret,
)
async def read_webhook_signing_secret(call: Call) -> Outcome:
    """The key needs the scope `account:read`. After a rotation the previous one signs webhooks for a day, too."""
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    account_id, deps = key.account_id, call.deps
    rotations = (await call.read(lambda rows: rotations_of(rows, account_id))).get(account_id, ())
    newest = signing_at(rotations, deps.now()).generations[0]
    return WebhookSigningSecret(webhook_secret(deps.settings.webhook_keys[0], account_id, newest))
