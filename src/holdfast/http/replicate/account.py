"""The account of the API key, and the secret that signs its webhooks."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import ACCOUNT_READ
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.replicate.shapes import BASE
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.webhook_secrets import signing_at, webhook_secret
from holdfast.persistence.claims.outbox import rotations_of

route = RouteTable("Replicate")


class ReplicateAccount(msgspec.Struct, frozen=True):
    """The account of the API key."""

    username: str
    """The account's id."""

    name: str
    """The account's id, too."""

    type: Literal["user"] = "user"
    """Always `user`."""


class WebhookSigningSecret(msgspec.Struct, frozen=True):
    """The secret that signs the account's webhooks, by Standard Webhooks."""

    key: str
    """The secret, `whsec_…`."""


@route(
    "GET",
    f"{BASE}/account",
    summary="Retrieve the account of the API key",
    auth=Auth.API_KEY,
    scope=ACCOUNT_READ,
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
    auth=Auth.API_KEY,
    scope=ACCOUNT_READ,
    reply=WebhookSigningSecret,
)
async def read_webhook_signing_secret(call: Call) -> Outcome:
    """The key needs the scope `account:read`. After a rotation the previous one signs webhooks for a day, too."""
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    rotations = await call.read(lambda rows: rotations_of(rows, key.account_id))
    signing = signing_at(rotations.get(key.account_id, ()), call.deps.now())
    return WebhookSigningSecret(webhook_secret(call.deps.webhook_key, key.account_id, signing.generations[0]))
