"""Events as a customer's server receives them: signed, retried, and at most one of a kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
import standardwebhooks
import trio
from tests.clients import Customer, code_of, ok, until

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider, signed
from .receiver import Receiver
from .service_process import Service

RESULT = {"task.succeeded", "task.assets_ready"}


async def create(customer: Customer, url: str, **more: Any) -> str:
    """Create a task with ``url`` as its webhook."""
    order = {"model": MODEL, "input": {"prompt": "a lighthouse"}, "webhook_url": url, **more}
    return str(ok(await customer.as_key("POST", "/v2/task/create", order))["request_id"])


async def deliver(service: Service, provider: QuietProvider, request_id: str) -> None:
    """Report success once the provider has the job."""

    async def has_job() -> bool:
        return any(request_id in job_id for job_id in provider.jobs)

    await until(has_job)
    body = provider.success(request_id, event_id=f"evt-{request_id}", sequence=1)
    async with httpx2.AsyncClient() as http:
        ok(await http.post(f"{service.url}/v2/callback", content=body, headers=signed(body)))


async def secret_of(customer: Customer) -> dict[str, Any]:
    return ok(await customer.as_session("GET", "/v2/control/webhook-secret"))


async def events(customer: Customer, request_id: str) -> dict[str, dict[str, Any]]:
    """Return the task's events by kind; there is at most one of a kind."""
    found = ok(await customer.as_key("GET", f"/v2/task/{request_id}/events"))["data"]
    by_kind = {event["type"]: event for event in found}
    assert len(by_kind) == len(found)
    return by_kind


async def settled(customer: Customer, request_id: str, kind: str, status: str) -> dict[str, Any]:
    """Wait until an event's delivery has this status, and return the event."""

    async def stands() -> dict[str, Any] | None:
        event = (await events(customer, request_id)).get(kind)
        return event if event is not None and event["status"] == status else None

    return await until(stands)


async def resend(customer: Customer, request_id: str, event_id: str) -> dict[str, Any]:
    return ok(await customer.as_key("POST", f"/v2/task/{request_id}/events/{event_id}/resend"))


async def test_an_event_is_delivered_once_and_verifies_with_standardwebhooks(
    quiet_service: Service, new_customer: NewCustomer, provider: QuietProvider, endpoint: Receiver
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="10.00")
        request_id = await create(ada, f"{endpoint.url}/ada?token=1", metadata={"order": "7"})
        await deliver(quiet_service, provider, request_id)
        posts = await endpoint.wait("/ada?token=1", 2)
        hook = standardwebhooks.Webhook((await secret_of(ada))["secret"])
        for post in posts:
            assert hook.verify(post.body, post.headers) == post.event
            for at in (0, len(post.body) // 2, len(post.body) - 1):
                tampered = bytearray(post.body)
                tampered[at] ^= 1
                with pytest.raises(standardwebhooks.WebhookVerificationError):
                    hook.verify(bytes(tampered), post.headers)
            assert post.event["id"] == post.event_id
            assert len(post.body) < 20_000
        assert {post.event["type"] for post in posts} == RESULT
        reported = {kind: await settled(ada, request_id, kind, "delivered") for kind in RESULT}
        assert {reported[post.event["type"]]["event_id"] for post in posts} == {post.event_id for post in posts}
        assert [[a["status_code"] for a in event["attempts"]] for event in reported.values()] == [[200], [200]]

        task = await ada.task(request_id)
        assert task["hosting"]["assets_ready_event"] == "sent"
        public_snapshot = posts[0].event["data"]
        assert "provider_progress" not in public_snapshot
        assert public_snapshot["output"][0]["sha256"] == task["output"][0]["sha256"]
        assert (await ada.http.get(public_snapshot["output"][0]["url"])).status_code == 200
        for changing in ("output", "hosting", "provider_progress", "updated_at"):
            del task[changing]
        assert {name: public_snapshot[name] for name in task} == task
    assert quiet_service.audit() == []


@pytest.mark.slow
async def test_a_failed_delivery_is_repeated_with_the_same_event(
    quiet_service: Service, new_customer: NewCustomer, endpoint: Receiver
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="10.00")
        request_id = await create(ada, endpoint.will_answer("/twice", 500, 503))
        ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
        # The second one comes by itself, after some seconds; the third would after some minutes.
        [first, second] = await endpoint.wait("/twice", 2)
        event = (await events(ada, request_id))["task.canceled"]
        sent = await resend(ada, request_id, event["event_id"])
        assert (sent["event_id"], sent["status"]) == (event["event_id"], "pending")
        third = (await endpoint.wait("/twice", 3))[-1]
        assert {first.event_id, second.event_id, third.event_id} == {event["event_id"]}
        assert {post.body for post in (first, second, third)} == {first.body}
        done = await settled(ada, request_id, "task.canceled", "delivered")
        assert [(a["number"], a["status_code"]) for a in done["attempts"]] == [(3, 200), (2, 503), (1, 500)]


async def test_a_redirect_fails_and_410_ends_delivery_until_resent(
    quiet_service: Service, new_customer: NewCustomer, provider: QuietProvider, endpoint: Receiver
) -> None:
    with trio.fail_after(240):
        ada, eve = [await new_customer(quiet_service, credit="10.00") for _ in range(2)]
        moved = await create(ada, endpoint.will_answer("/moved", 307, Location=f"{endpoint.url}/elsewhere"))
        ok(await ada.as_key("POST", f"/v2/task/{moved}/cancel"))
        gone = await create(ada, endpoint.will_answer("/gone", 410), webhook_events=["task.assets_ready"])
        await deliver(quiet_service, provider, gone)

        event = await settled(ada, gone, "task.assets_ready", "given_up")
        assert "410" in event["reason"]
        assert (await ada.task(gone))["hosting"]["assets_ready_event"] == "failed"
        path = f"/v2/task/{gone}/events"
        assert code_of(await eve.as_key("GET", path)) == "task_not_found"
        assert code_of(await eve.as_key("POST", f"{path}/{event['event_id']}/resend")) == "task_not_found"
        assert code_of(await ada.as_key("POST", f"{path}/evt_none/resend")) == "event_not_found"
        await resend(ada, gone, event["event_id"])
        await settled(ada, gone, "task.assets_ready", "delivered")
        assert (await ada.task(gone))["hosting"]["assets_ready_event"] == "sent"
        [first, second] = endpoint.at("/gone")
        assert first.event_id == second.event_id == event["event_id"]

        async def tried() -> list[dict[str, Any]]:
            attempts: list[dict[str, Any]] = (await events(ada, moved))["task.canceled"]["attempts"]
            return attempts

        assert [attempt["status_code"] for attempt in await until(tried)] == [307]
        assert (await events(ada, moved))["task.canceled"]["status"] == "pending"
        assert endpoint.at("/elsewhere") == []


@pytest.fixture
async def twins(
    new_service: NewService, shared_url: str, provider: QuietProvider, tmp_path: Path
) -> tuple[Service, Service]:
    """Run two services on one database."""
    settings = {"CATALOG": str(provider.write_catalog(tmp_path)), "WEBHOOK_TIMEOUT_S": "2"}
    services = [new_service(DATABASE_URL=shared_url, **settings) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for service in services:
            nursery.start_soon(trio.to_thread.run_sync, service.start)
    return services[0], services[1]


@pytest.mark.slow
async def test_two_processes_deliver_each_event_once_even_across_a_kill(
    twins: tuple[Service, Service], new_customer: NewCustomer, endpoint: Receiver
) -> None:
    with trio.fail_after(120):
        ada = await new_customer(twins[0], credit="100.00")
        async with httpx2.AsyncClient(base_url=twins[1].url, timeout=60) as other:
            homes = [ada.http, other]

            async def run(number: int) -> None:
                request_id = await create(ada, f"{endpoint.url}/shared")
                heads = {"Authorization": f"Bearer {ada.key}"}
                ok(await homes[number % 2].post(f"/v2/task/{request_id}/cancel", headers=heads))

            reported: dict[str, list[int | None]] = {}
            # Which process delivers an event is decided by which looks first: more until both have.
            while not reported or min(twin.metric("holdfast_event_deliveries_total") for twin in twins) == 0:
                async with trio.open_nursery() as nursery:
                    for number in range(40):
                        nursery.start_soon(run, number)
                for request_id in await ada.tasks():
                    event = await settled(ada, request_id, "task.canceled", "delivered")
                    reported[event["event_id"]] = [attempt["status_code"] for attempt in event["attempts"]]
        posts = Counter(post.event_id for post in endpoint.at("/shared"))
        assert len(reported) % 40 == 0
        assert set(posts) == set(reported)
        # On a busy machine an answer may come too late and the event again, but never by two at once.
        assert all(posts[event_id] <= len(statuses) for event_id, statuses in reported.items())
        assert all(statuses[0] == 200 and set(statuses[1:]) <= {None} for statuses in reported.values())

        endpoint.mute.add("/unheard")
        unheard = await create(ada, f"{endpoint.url}/unheard")
        ok(await ada.as_key("POST", f"/v2/task/{unheard}/cancel"))
        await endpoint.wait("/unheard", 1)
        request_ids = [await create(ada, f"{endpoint.url}/killed") for _ in range(5)]
        for request_id in request_ids:
            ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
        for twin in twins:
            twin.kill()
        endpoint.mute.clear()
        await trio.to_thread.run_sync(twins[0].start)
        for request_id in (unheard, *request_ids):
            await settled(ada, request_id, "task.canceled", "delivered")
        ids = {(post.event["data"]["request_id"], post.event_id) for post in endpoint.at("/killed")}
        assert sorted(request_id for request_id, _ in ids) == sorted(request_ids)
        assert len({post.event_id for post in endpoint.at("/unheard")}) == 1
        assert len(endpoint.at("/unheard")) >= 2
    assert twins[0].audit() == []
    assert twins[0].faults() == []
