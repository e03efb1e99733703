"""An account's webhooks and alerts as operators see them, over HTTP and on the account's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.clients import ok, refused

from holdfast.actors.account.messages import AllowMail
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.page_reader import PageReader

HOSTILE = "https://shop.example/<script>alert(1)</script>"


async def plant(api: Api) -> None:
    """Write a webhook, and alerts whose mail was refused."""
    of = {"account_id": api.account_id, "created_at": api.now, "updated_at": api.now}
    row = {"webhook_id": "wh_1", "url": HOSTILE, "events": ["task.*", "balance.below"], "enabled": False}
    await api.write(tables.webhooks.insert().values(**of, **row))
    alerts = {
        "balance_below_micro": 20_000_000,
        "announced": {"balance": "20.00"},
        "mail_stopped": "bounced",
        "mail_stopped_at": api.now.isoformat(),
    }
    await api.write(tables.alerts.insert().values(account_id=api.account_id, alerts=alerts))


async def test_an_operator_sees_webhooks_and_alerts_and_allows_mail(api: Api, browser: PageReader) -> None:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    path = f"/ops/api/accounts/{api.account_id}/webhooks"
    empty = ok(await api.call("GET", path, headers=headers))
    assert (empty["webhooks"], empty["alerts"]["balance_below"], empty["alerts"]["email"]) == ([], None, True)
    page = f"/ops/accounts/{api.account_id}"
    assert "Allow mail" not in (await browser.read(page)).text
    await plant(api)
    found = ok(await api.call("GET", path, headers=headers))
    [webhook] = found["webhooks"]
    assert (webhook["webhook_id"], webhook["url"], webhook["enabled"]) == ("wh_1", HOSTILE, False)
    assert found["alerts"] == {
        "balance_below": "20.00",
        "is_below": True,
        "limit_share": 1.0,
        "email": True,
        "email_stopped": "bounced",
        "email_stopped_at": "2026-11-20T12:00:00.000Z",
    }
    shown = (await browser.read(page)).text
    assert [each in shown for each in ("wh_1", "below 20.00 credits, announced", "Allow mail")] == [True] * 3
    # The text of the page has it, so no element was made of it.
    assert HOSTILE in shown
    refused(
        await api.call("GET", "/ops/api/accounts/acct_none/webhooks", headers=headers), 404, "account_not_found"
    )
    api.accounts.answer = Alerts()
    sent = await browser.send(
        f"{page}/allow-mail", reason="the address works again", csrf_token=await browser.hidden(page)
    )
    assert sent.status_code == 303
    assert [command for _, command in api.accounts.asked] == [AllowMail()]
    [action] = (await browser.get("/ops/api/actions")).json()["data"]
    assert (action["action"], action["target"], action["reason"]) == (
        "allow_mail",
        api.account_id,
        "the address works again",
    )
