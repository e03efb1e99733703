"""The main journey of a customer, from sign-in to the usage log."""

from __future__ import annotations

import hashlib
import io
from decimal import Decimal
from urllib.parse import urlsplit

import trio
from PIL import Image
from tests.clients import Totals, code_of, ok

from .conftest import NewCustomer
from .service_process import Service

INPUT = {"prompt": "a lighthouse at dusk", "width": 512, "height": 384, "n": 2, "seed": 7}


async def test_credit_is_held_then_charged_as_quoted(shared_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="10.00")
        quote = ok(await ada.as_key("POST", "/v2/quote", {"model": "studio/image-1", "input": INPUT}))
        assert quote["account_id"] == ada.account_id
        price = Decimal(quote["estimate"]["credits"])
        order = {"model": "studio/image-1", "input": INPUT, "quote_id": quote["quote_id"]}
        created = ok(await ada.as_key("POST", "/v2/task/create", order))
        assert Decimal(created["estimated_cost"]["credits"]) == price
        task = (await ada.all_ended())[created["request_id"]]
        assert (task["status"], task["error"]) == ("succeeded", None)
        assert task["hosting"]["final_url_ready"] is True
        assert await ada.totals() == Totals(10 - price, Decimal(0), 10 - price)
        [entry] = ok(await ada.as_session("GET", "/v2/usage/logs"))["data"]
        assert (entry["request_id"], entry["status"]) == (created["request_id"], "succeeded")
        assert Decimal(entry["cost_credits"]) == price
        assert [change["status"] for change in entry["status_history"]] == ["queued", "processing", "succeeded"]
    assert shared_service.audit() == []
    assert shared_service.faults() == []


async def test_results_have_the_requested_size_and_tamper_proof_links(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(shared_service, credit="1.00")
        body = {"model": "studio/image-1", "input": INPUT}
        created = ok(await ada.as_key("POST", "/v2/task/create", body))
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
