"""Reloading the catalog by a signal: existing tasks keep their terms, new models work without a restart."""

from __future__ import annotations

import os
import signal
import time
from decimal import Decimal
from pathlib import Path

import trio
from tests.clients import IMAGE, Customer, code_of, ok, until

from holdfast.providers.signatures import sign

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, SECRET, QuietProvider, quiet_provider, signed
from .service_process import Service

LATE = """
[providers.late]
kind = "cog"
url = "{url}"
secret = "{secret}"

[[models]]
id = "late/image-1"
modality = "image"
type = "async"
created = "2026-11-01"
pricing = {{ mode = "per_image", unit_price = "0.50" }}
upstream = {{ provider = "late", model = "image" }}
input_schema = {{ type = "object" }}
"""


async def cost(customer: Customer, request_id: str) -> str:
    """Return the cost of a succeeded task."""

    async def succeeded() -> bool:
        return bool((await customer.task(request_id))["status"] == "succeeded")

    await until(succeeded)
    return str((await customer.task(request_id))["usage"]["cost_credits"])


async def reload(service: Service, catalog: Path, text: str, *, reported: str) -> None:
    """Write the catalog, send the signal, and wait for this log line."""
    await trio.Path(catalog).write_text(text)
    await send(service, signal.SIGHUP, reported=reported)


async def send(service: Service, number: signal.Signals, *, reported: str) -> None:
    """Send a signal, and wait for this log line."""
    assert service.process is not None
    before = len(service.log_lines())
    service.process.send_signal(number)

    async def was_logged() -> bool:
        return any(line.get("event") == reported for line in service.log_lines()[before:])

    await until(was_logged)


async def test_a_reload_keeps_old_terms_and_serves_new_models(
    new_service: NewService, new_customer: NewCustomer, provider: QuietProvider, tmp_path: Path
) -> None:
    catalog = provider.write_catalog(tmp_path)
    service = new_service(CATALOG=str(catalog))
    service.start()
    with quiet_provider() as late, trio.fail_after(120):
        await send(service, signal.SIGUSR2, reported="only a parent of worker processes can roll them")
        ada = await new_customer(service, credit="20.00")
        wanted = {"model": MODEL, "input": IMAGE}
        promised = ok(await ada.as_key("POST", "/v2/quote", wanted))
        running = ok(await ada.create(MODEL))["request_id"]
        await ada.submitted(running)

        dearer = catalog.read_text().replace('"1.00"', '"3.00"') + LATE.format(url=late.url, secret=SECRET)
        await reload(service, catalog, dearer, reported="catalog loaded")
        today = ok(await ada.create(MODEL))
        assert (today["estimated_cost"]["credits"], today["quote_id"][:4]) == ("3.00", "quo_")
        by_quote = ok(await ada.as_key("POST", "/v2/task/create", {**wanted, "quote_id": promised["quote_id"]}))
        assert by_quote["estimated_cost"] == {"credits": "1.00", "basis": "per_image: 1 x 1"}
        assert by_quote["quote_id"] == promised["quote_id"]
        other = {**wanted, "input": {"prompt": "another"}, "quote_id": promised["quote_id"]}
        assert code_of(await ada.as_key("POST", "/v2/task/create", other)) == "quote_mismatch"

        await reload(service, catalog, dearer.replace("per_image", "per_thing"), reported="catalog fault")
        assert ok(await ada.as_key("POST", "/v2/quote", wanted))["estimate"]["credits"] == "3.00"

        for request_id, price in (
            (running, "1.00"),
            (by_quote["request_id"], "1.00"),
            (today["request_id"], "3.00"),
        ):
            await ada.submitted(request_id)
            body = provider.success(request_id, event_id=f"evt_{request_id}", sequence=9)
            ok(await ada.http.post("/v2/callback", content=body, headers=signed(body)))
            assert await cost(ada, request_id) == price

        # It was on no list when the service started; its secret, its jobs and its files count all the same.
        newcomer = ok(await ada.create("late/image-1"))["request_id"]
        await ada.submitted(newcomer)
        outputs = [{"url": f"{late.url}/picture.png", "content_type": "image/png"}]
        body = late.callback_body(
            newcomer, "succeeded", event_id="evt_late", sequence=9, provider="late", outputs=outputs
        )
        header = sign(SECRET, body, at=int(time.time()), key_name="late")
        sent = {"X-Callback-Signature": header, "Content-Type": "application/json"}
        ok(await ada.http.post("/v2/callback", content=body, headers=sent))
        assert await cost(ada, newcomer) == "0.50"
        assert (await ada.totals()).balance == Decimal("14.50")
    assert service.audit() == []


async def test_a_catalog_that_cannot_be_read_to_its_end_delays_no_stop(
    new_service: NewService, provider: QuietProvider, tmp_path: Path
) -> None:
    catalog = provider.write_catalog(tmp_path)
    service = new_service(CATALOG=str(catalog))
    service.start()
    assert service.process is not None
    catalog.unlink()
    os.mkfifo(catalog)
    service.process.send_signal(signal.SIGHUP)
    with trio.fail_after(60):
        # Opened once the service reads it.
        async with await trio.open_file(catalog, "w"):
            service.process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(service.process.wait, 60, abandon_on_cancel=True) == 0
