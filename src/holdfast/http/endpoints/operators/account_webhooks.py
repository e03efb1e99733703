"""An account's webhooks and alerts as operators see them, and mail for an address that was refused."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import AllowMail
from holdfast.http.endpoints.operators.accounts import account_not_found, ask_account
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.events import AlertsBody, WebhookBody, alerts_body, webhook_body
from holdfast.http.schemas.operators import ActionWithReason
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.webhooks import mail_recipient, webhooks_of_account

route = OperatorRoutes()


class WebhooksAndAlerts(msgspec.Struct, frozen=True):
    """What is announced to an account's owner, and where."""

    webhooks: list[WebhookBody]
    """The webhooks, newest first."""
    alerts: AlertsBody
    """What is announced, and whether by mail too."""


@route.read(
    "/ops/api/accounts/{account_id}/webhooks",
    "Retrieve an account's webhooks and alerts",
    WebhooksAndAlerts,
    errors=("account_not_found",),
)
async def read_webhooks_and_alerts(call: Call) -> Outcome:
    """Events that are not delivered are in the list of failed events."""

    def read(rows: Connection, account_id: str) -> WebhooksAndAlerts | None:
        recipient = mail_recipient(rows, account_id)
        if recipient is None:
            return None
        webhooks = [webhook_body(each) for each in webhooks_of_account(rows, account_id)]
        return WebhooksAndAlerts(webhooks, alerts_body(recipient.alerts))

    account_id = call.path["account_id"]
    return await call.deps.find_by_id(read, account_id) or account_not_found(account_id)


@route.action(
    "/ops/api/accounts/{account_id}/allow-mail",
    "Send an account mail again, although it unsubscribed or its address was refused",
    ActionWithReason,
    AlertsBody,
    errors=("account_not_found",),
)
async def allow_mail(run: ActionRun, _: ActionWithReason, account_id: str) -> AlertsBody | Refusal:
    """For an address that works again. Mail that was given up meanwhile is not sent."""
    reply = await ask_account(run, account_id, AllowMail())
    return reply if isinstance(reply, Refusal) else alerts_body(reply)
