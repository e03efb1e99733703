"""The main journey of a customer, from sign-in to the usage log."""

from __future__ import annotations

import hashlib
import io
from decimal import Decimal
from urllib.parse import urlsplit

import trio
from PIL import Image

from .conftest import NewCustomer
from .service_process import Service, Totals, code_of, ok

INPUT = {"prompt": "a lighthouse at dusk", "width": 512, "height": 384, "n": 2, "seed": 7}


async def test_credit_is_held_then_charged_as_quoted(shared_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="10.00")
        quote = ok(await ada.call("POST", "/v2/quote", {"model": "studio/image-1", "input": INPUT}))
        assert quote["account_id"] == ada.account_id
        price = Decimal(quote["estimate"]["credits"])
        order = {"model": "studio/image-1", "input": INPUT, "quote_id": quote["quote_id"]}
        created = ok(await ada.call("POST", "/v2/task/create", order))
        assert Decimal(created["estimated_cost"]["credits"]) == price
        task = (await ada.all_ended())[created["request_id"]]
        assert (task["status"], task["error"]) == ("succeeded", None)
        assert task["hosting"]["final_url_ready"] is True
        assert await ada.totals() == Totals(10 - price, Decimal(0), 10 - price)
        [entry] = ok(await ada.call("GET", "/v2/usage/logs", as_session=True))["data"]
        assert (entry["request_id"], entry["status"]) == (created["request_id"], "succeeded")
        assert Decimal(entry["cost_credits"]) == price
        assert [change["status"] for change in entry["status_history"]] == ["queued", "processing", "succeeded"]


async def test_results_have_the_requested_size_and_tamper_proof_links(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        body = {"model": "studio/image-1", "input": INPUT}
        created = ok(await ada.call("POST", "/v2/task/create", body))
        await ada.all_ended()
        task = await ada.task(created["request_id"])
        assert len(task["output"]) == 2
        for item in task["output"]:
            whole = await ada.http.get(item["url"])
            assert whole.status_code == 200
            assert hashlib.sha256(whole.content).hexdigest() == item["sha256"]
            with Image.open(io.BytesIO(whole.content)) as image:
                image.load()
                assert (image.format, image.size) == ("PNG", (512, 384))
            part = await ada.http.get(item["url"], headers={"Range": "bytes=0-7"})
            assert (part.status_code, part.content) == (206, b"\x89PNG\r\n\x1a\n")
            url = urlsplit(item["url"])
            forged = url._replace(query=url.query[:-1] + ("A" if url.query[-1] != "A" else "B"))
            assert code_of(await ada.http.get(forged.geturl())) == "invalid_link"


async def test_a_canceled_task_releases_its_hold_and_can_be_retried(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        long_work = {"prompt": "a city", "n": 4, "width": 1536, "height": 1536}
        created = ok(await ada.call("POST", "/v2/task/create", {"model": "studio/image-1", "input": long_work}))
        request_id = created["request_id"]
        assert (await ada.totals()).held == Decimal(created["estimated_cost"]["credits"])
        canceled = ok(await ada.call("POST", f"/v2/task/{request_id}/cancel"))
        assert canceled["status"] == "canceled"
        assert await ada.totals() == Totals(Decimal(1), Decimal(0), Decimal(1))
        assert ok(await ada.call("POST", f"/v2/task/{request_id}/cancel"))["status"] == "canceled"
        assert len(ok(await ada.call("GET", "/v2/usage/logs", as_session=True))["data"]) == 1
        retried = ok(await ada.call("POST", f"/v2/task/{request_id}/retry", key="again"))
        assert retried["retry_of"] == request_id
        ok(await ada.call("POST", f"/v2/task/{retried['request_id']}/cancel"))
        assert await ada.totals() == Totals(Decimal(1), Decimal(0), Decimal(1))


async def test_tasks_of_other_accounts_are_not_found(shared_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        eve = await new_customer(shared_service, credit="1.00")
        created = ok(await ada.create())
        for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
            found = await eve.call(method, f"/v2/task/{created['request_id']}{path}")
            assert (found.status_code, code_of(found)) == (404, "task_not_found")
        assert await eve.tasks() == {}


async def test_a_revoked_key_is_refused_from_the_next_request_on(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        ok(await ada.create())
        [key] = ok(await ada.call("GET", "/v2/control/api-keys", as_session=True))["data"]
        ok(await ada.call("DELETE", f"/v2/control/api-keys/{key['api_key_id']}", as_session=True))
        assert code_of(await ada.create()) == "invalid_api_key"
        assert code_of(await ada.call("GET", "/v2/task/list")) == "invalid_api_key"


async def test_a_finished_task_shows_progress_and_cannot_be_canceled(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        request_id = ok(await ada.create(n=4, width=1536, height=1536, style="plasma"))["request_id"]
        task = (await ada.all_ended())[request_id]
        percents = [line["percent"] for line in task["provider_progress"] if line["percent"] is not None]
        assert percents == sorted(percents)
        assert percents[-1] == 100
        refused = await ada.call("POST", f"/v2/task/{request_id}/cancel")
        assert (refused.status_code, code_of(refused)) == (409, "task_already_terminal")
        assert refused.headers["X-Should-Retry"] == "false"


async def test_the_audit_passes_and_no_fault_was_logged(shared_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        ok(await ada.create())
        await ada.all_ended()
    assert shared_service.audit() == []
    assert shared_service.faults() == []
