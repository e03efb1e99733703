"""Webhooks and alerts of an account, as its owner, its servers and its mailbox see them."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import trio
from tests.clients import Customer, code_of, every, loopback_client, ok, refused, until

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider
from .receiver import Receiver
from .service_process import OPERATOR_TOKEN, Service

WEBHOOKS = "/v2/control/webhooks"
ALERTS = "/v2/control/alerts"


async def add(customer: Customer, url: str, *events: str) -> str:
    """Create a webhook and return its path."""
    created = ok(await customer.as_session("POST", WEBHOOKS, {"url": url, "events": [*events]}))
    return f"{WEBHOOKS}/{created['webhook_id']}"


async def deliveries(customer: Customer, path: str) -> list[dict[str, Any]]:
    return await every(lambda page: customer.as_session("GET", page), f"{path}/deliveries")


async def delivered(customer: Customer, path: str, status: str = "delivered") -> dict[str, Any]:
    """Wait until the newest event for a webhook has this status, and return it."""

    async def stands() -> dict[str, Any] | None:
        found = await deliveries(customer, path)
        return found[0] if found and found[0]["status"] == status else None

    return await until(stands)


async def create(customer: Customer) -> str:
    body = {"model": MODEL, "input": {"prompt": "a lighthouse"}}
    return str(ok(await customer.as_key("POST", "/v2/task/create", body))["request_id"])


async def test_tasks_and_credit_are_announced_to_a_webhook_that_verifies(
    quiet_service: Service, new_customer: NewCustomer, endpoint: Receiver
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="10.00")
        # A task that runs already is announced to a webhook that is created later.
        request_id = await create(ada)
        path = await add(ada, f"{endpoint.url}/all", "*")
        only_tasks = await add(ada, f"{endpoint.url}/tasks", "task.canceled")
        ok(await ada.as_session("PUT", ALERTS, {"balance_below": "11.00", "email": False}))
        ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
        await endpoint.wait("/all", 2)
        await endpoint.wait("/tasks", 1)
        secret = ok(await ada.as_session("GET", "/v2/control/webhook-secret"))["secret"]
        hook = standardwebhooks.Webhook(secret)
        for post in endpoint.at("/all") + endpoint.at("/tasks"):
            assert hook.verify(post.body, post.headers) == post.event
            assert post.event["id"] == post.event_id
        [crossed] = endpoint.at("/all", "balance.below")
        assert crossed.event["data"]["account_id"] == ada.account_id
        assert crossed.event["data"]["balance_below"] == "11.00"
        [ended] = endpoint.at("/all", "task.canceled")
        assert ended.event["data"]["request_id"] == request_id
        assert ended.event["data"]["status"] == "canceled"
        assert [post.event["type"] for post in endpoint.at("/tasks")] == ["task.canceled"]
        log = [(each["type"], each["request_id"]) for each in await deliveries(ada, path)]
        assert sorted(log, key=str) == [("balance.below", None), ("task.canceled", request_id)]
        assert (await deliveries(ada, only_tasks))[0]["event_id"] == endpoint.at("/tasks")[0].event_id
        # The task's own events are those for its webhook_url, and it has none.
        assert ok(await ada.as_key("GET", f"/v2/task/{request_id}/events"))["data"] == []
    assert quiet_service.audit() == []


async def test_a_webhook_is_tested_resent_changed_disabled_and_deleted(
    quiet_service: Service, new_customer: NewCustomer, endpoint: Receiver
) -> None:
    with trio.fail_after(240):
        ada, eve = [await new_customer(quiet_service, credit="10.00") for _ in range(2)]
        path = await add(ada, endpoint.will_answer("/tested", 500), "task.failed")
        webhook_id = path.rpartition("/")[2]
        sent = ok(await ada.as_session("POST", f"{path}/test"))
        assert (sent["type"], sent["status"], sent["request_id"]) == ("webhook.test", "pending", None)
        [failed] = await endpoint.wait("/tested", 1)
        assert failed.event["data"] == {"account_id": ada.account_id, "webhook_id": webhook_id}
        resend = f"{path}/deliveries/{sent['event_id']}/resend"
        assert ok(await ada.as_session("POST", resend))["event_id"] == sent["event_id"]
        event = await delivered(ada, path)
        assert event["attempts"][0]["status_code"] == 200
        assert {post.event_id for post in endpoint.at("/tested")} == {sent["event_id"]}
        # Other accounts do not have it.
        for method, url in (("GET", path), ("PATCH", path), ("DELETE", path), ("GET", f"{path}/deliveries")):
            body: dict[str, Any] | None = {} if method == "PATCH" else None
            assert code_of(await eve.as_session(method, url, body)) == "webhook_not_found"
        for url in (f"{path}/test", resend):
            assert code_of(await eve.as_session("POST", url)) == "webhook_not_found"
        assert code_of(await ada.as_session("POST", f"{path}/deliveries/evt_x/resend")) == "event_not_found"
        moved = ok(await ada.as_session("PATCH", path, {"url": f"{endpoint.url}/moved", "events": ["task.*"]}))
        assert (moved["url"], moved["events"], moved["enabled"]) == (f"{endpoint.url}/moved", ["task.*"], True)
        ok(await ada.as_key("POST", f"/v2/task/{await create(ada)}/cancel"))
        await endpoint.wait("/moved", 1)
        assert ok(await ada.as_session("PATCH", path, {"enabled": False}))["enabled"] is False
        assert code_of(await ada.as_session("POST", f"{path}/test")) == "webhook_disabled"
        ok(await ada.as_key("POST", f"/v2/task/{await create(ada)}/cancel"))
        assert len(await deliveries(ada, path)) == 2
        assert ok(await ada.as_session("DELETE", path)) == {"webhook_id": webhook_id, "deleted": True}
        assert code_of(await ada.as_session("GET", path)) == "webhook_not_found"
        assert ok(await ada.as_session("GET", WEBHOOKS))["data"] == []
    assert quiet_service.audit() == []


@pytest.mark.slow
async def test_events_for_a_deleted_webhook_are_given_up_and_hold_up_no_others(
    new_service: NewService, provider: QuietProvider, new_customer: NewCustomer, endpoint: Receiver, tmp_path: Path
) -> None:
    service = new_service(CATALOG=str(provider.write_catalog(tmp_path)), OPERATOR_TOKEN=OPERATOR_TOKEN)
    await trio.to_thread.run_sync(service.start)
    with trio.fail_after(240):
        ada = await new_customer(service, credit="10.00")
        endpoint.mute.add("/silent")
        silent = await add(ada, f"{endpoint.url}/silent", "task.canceled")
        dead = await add(ada, endpoint.will_answer("/dead", *[500] * 50), "task.canceled")
        await add(ada, f"{endpoint.url}/calm", "task.canceled")
        for _ in range(8):
            ok(await ada.as_key("POST", f"/v2/task/{await create(ada)}/cancel"))
        await endpoint.wait("/calm", 8)
        assert {event["status"] for event in await deliveries(ada, dead)} == {"pending"}
        operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        for path in (silent, dead):
            ok(await ada.as_session("DELETE", path))
        async with loopback_client(base_url=service.url, headers=operator) as http:
            page = f"/ops/api/webhooks?account_id={ada.account_id}&status=given_up&limit=100"
            given_up = ok(await http.get(page))["data"]
            assert {each["event"]["reason"] for each in given_up} == {"the webhook was deleted"}
            assert len(given_up) == 16
            shown = ok(await http.get(f"/ops/api/accounts/{ada.account_id}/webhooks"))
            assert [each["url"] for each in shown["webhooks"]] == [f"{endpoint.url}/calm"]
            assert shown["alerts"]["email"] is True
    endpoint.released.set()
    assert service.audit() == []


@pytest.mark.slow
async def test_the_number_of_webhooks_is_a_setting(new_service: NewService, new_customer: NewCustomer) -> None:
    service = new_service(WEBHOOKS_MAX="2")
    await trio.to_thread.run_sync(service.start)
    with trio.fail_after(240):
        ada = await new_customer(service, credit="1.00")
        paths = [await add(ada, "http://127.0.0.1:9/", "*") for _ in range(2)]
        body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
        refused(await ada.as_session("POST", WEBHOOKS, body), 409, "webhook_limit_reached")
        ok(await ada.as_session("DELETE", paths[0]))
        await add(ada, "http://127.0.0.1:9/", "*")


def mails(service: Service, email: str) -> list[EmailMessage]:
    """Return the alerts that were mailed to an address."""
    files = sorted((service.data_dir / "mail").glob("*.eml"))
    found = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in files]
    return [each for each in found if each["To"] == email and "List-Unsubscribe" in each]


@pytest.mark.slow
async def test_an_alert_is_mailed_once_and_never_after_its_owner_unsubscribed(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service(OPERATOR_TOKEN=OPERATOR_TOKEN)
    await trio.to_thread.run_sync(service.start)
    with trio.fail_after(240):
        ada = await new_customer(service, credit="10.00")
        set_ = ok(await ada.as_session("PUT", ALERTS, {"balance_below": "5.00"}))
        assert set_ == {
            "balance_below": "5.00",
            "is_below": False,
            "limit_share": 1.0,
            "email": True,
            "email_stopped": None,
            "email_stopped_at": None,
        }
        operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        async with loopback_client(base_url=service.url, headers=operator) as http:

            async def adjust(amount: str) -> None:
                path = f"/ops/api/accounts/{ada.account_id}/adjustments"
                ok(
                    await http.post(
                        path, json={"amount": amount, "reason": "t"}, headers={"Idempotency-Key": amount}
                    )
                )

            await adjust("-6.00")
            # Killed between the crossing and its mail, or after it: the mail is sent once or, if its outcome was
            # lost, again under the same id.
            await trio.to_thread.run_sync(service.kill)
            await trio.to_thread.run_sync(service.start)

            async def mailed() -> list[EmailMessage]:
                return mails(service, ada.email)

            [mail, *again] = await until(mailed)
            assert mail["Subject"] == "Your credit is below 5.00"
            ids = {each["Message-ID"] for each in (mail, *again)}
            assert len(ids) == 1
            await adjust("-1.00")
            url = mail["List-Unsubscribe"].strip("<>")
            assert (await http.get(url)).status_code == 200
            assert ok(await ada.as_session("GET", ALERTS))["email_stopped"] is None
            tampered = url[:-1] + ("0" if url[-1] != "0" else "1")
            refused(await http.post(tampered), 403, "invalid_link")
            form = {"List-Unsubscribe": "One-Click"}
            assert (await http.post(url, data=form)).status_code == 200
            stopped = ok(await ada.as_session("GET", ALERTS))
            assert (stopped["email"], stopped["email_stopped"]) == (True, "unsubscribed")
            assert stopped["is_below"] is True
            count = len(mails(service, ada.email))
            await adjust("8.00")
            await adjust("-9.00")
            path = f"/ops/api/accounts/{ada.account_id}/webhooks"
            assert ok(await http.get(path))["alerts"]["is_below"] is True
            assert len(mails(service, ada.email)) == count
            allowed = await http.post(f"/ops/api/accounts/{ada.account_id}/allow-mail", json={"reason": "asked"})
            assert ok(allowed)["email_stopped"] is None
    assert service.audit() == []
