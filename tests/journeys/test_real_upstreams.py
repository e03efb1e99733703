"""Hosted predictions and plain Cog containers as providers: their own webhooks complete the tasks."""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from PIL import Image
from tests.clients import Customer, Totals, code_of, ok, until
from tests.providers import plain_cog_server, replicate_server
from tests.providers.plain_cog_server import Container, plain_container
from tests.providers.replicate_server import Hosted, hosted_service

from .conftest import NewCustomer
from .service_process import Service, new_folder

HOSTED, SILENT, VERSIONED, HASTY, BOXED = (
    f"up/{name}" for name in ("hosted", "silent", "versioned", "hasty", "boxed")
)

CATALOG = """
[catalog]
schema = 1
created = "2026-11-01"

[providers.cloud]
kind = "replicate"
url = "{hosted_url}"
token = "{token}"
secret = "{secret}"
concurrency = 100

[providers.box]
kind = "cog"
url = "{box_url}"
secret = "{box_secret}"

[defaults]
modality = "image"
type = "async"
created = "2026-11-01"
pricing = {{ mode = "per_image", unit_price = "1.00" }}
hosting = {{ content_types = ["image/png"] }}
[defaults.input_schema]
type = "object"
required = ["prompt"]
properties = {{ prompt = {{ type = "string" }} }}

[[models]]
id = "up/hosted"
upstream = {{ provider = "cloud", model = "studio/image" }}

[[models]]
id = "up/versioned"
upstream = {{ provider = "cloud", model = "{version}" }}

[[models]]
id = "up/silent"
upstream = {{ provider = "cloud", model = "studio/image" }}
deadlines = {{ silence_s = 1 }}

[[models]]
id = "up/hasty"
upstream = {{ provider = "cloud", model = "studio/image" }}
deadlines = {{ dispatch_s = 1 }}

[[models]]
id = "up/boxed"
upstream = {{ provider = "box" }}
deadlines = {{ silence_s = 1 }}
"""


def picture(side: int) -> bytes:
    """Return a picture that does not compress: three bytes per pixel."""
    noise = random.Random(side).randbytes(side * side * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), noise).save(file, "PNG")
    return file.getvalue()


SMALL = picture(8)


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hosted]:
    """Run the hosted service."""
    with hosted_service({"/delivery/out.png": ("image/png", SMALL)}) as found:
        yield found


@pytest.fixture(scope="module")
def box() -> Iterator[Container]:
    """Run a plain container."""
    with plain_container() as found:
        yield found


@pytest.fixture(scope="module")
def upstream_service(hosted: Hosted, box: Container) -> Iterator[Service]:
    """A running service with both in its catalog."""
    folder: Path = new_folder()
    (folder / "catalog.toml").write_text(
        CATALOG.format(
            hosted_url=hosted.url,
            token=replicate_server.TOKEN,
            secret=replicate_server.SECRET,
            version=replicate_server.VERSION,
            box_url=box.url,
            box_secret=plain_cog_server.SECRET,
        )
    )
    service = Service(folder, CATALOG=str(folder / "catalog.toml"))
    try:
        service.start()
        yield service
        assert service.stop() == 0, service.log_tail()
        logged = service.log_path.read_text()
        assert replicate_server.TOKEN not in logged
        assert replicate_server.SECRET not in logged
        assert plain_cog_server.SECRET not in logged
        assert "seal=" not in logged
    finally:
        if service.is_alive():
            service.kill()
        shutil.rmtree(folder)


@pytest.fixture
async def ada(upstream_service: Service, hosted: Hosted, new_customer: NewCustomer) -> AsyncIterator[Customer]:
    """A customer with credit for two tasks; the hosted service without faults."""
    hosted.sends_webhooks, hosted.repeats_webhook = True, False
    hosted.accidents.clear()
    yield await new_customer(upstream_service, credit="2.00")
    assert upstream_service.audit() == []


async def create(ada: Customer, model: str, prompt: str) -> str:
    """Create a task and return its id."""
    body = {"model": model, "input": {"prompt": prompt}}
    return str(ok(await ada.as_key("POST", "/v2/task/create", body))["request_id"])


async def taken(hosted: Hosted, prompt: str) -> str:
    """Wait for the prediction with this prompt."""

    async def found() -> str | None:
        predictions = hosted.with_prompt(prompt)
        assert len(predictions) <= 1
        return predictions[0]["id"] if predictions else None

    return await until(found)


async def becomes(ada: Customer, request_id: str, status: str) -> dict[str, Any]:
    """Wait until the task has this status, and return it."""

    async def stands() -> dict[str, Any] | None:
        task = await ada.task(request_id)
        return task if task["status"] == status else None

    return await until(stands)


async def post(ada: Customer, address: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    """Send a webhook to the address given to the provider."""
    parts = urlsplit(address)
    return await ada.http.post(f"{parts.path}?{parts.query}", content=body, headers=headers)


# --------------------------------------------------------------------------------------------- hosted predictions


@pytest.mark.parametrize("model", [HOSTED, VERSIONED])
async def test_a_hosted_prediction_is_completed_by_its_webhook(hosted: Hosted, ada: Customer, model: str) -> None:
    with trio.fail_after(240):
        request_id = await create(ada, model, f"a pier {model}")
        job = await taken(hosted, f"a pier {model}")
        hosted.start(job)
        await becomes(ada, request_id, "processing")
        hosted.finish(job, output=[f"{hosted.url}/delivery/out.png"], logs="100%|####| 4/4")
        task = await becomes(ada, request_id, "succeeded")
        assert len(task["output"]) == 1
        assert (await ada.http.get(task["output"][0]["url"])).content == SMALL
        assert await ada.totals() == Totals(Decimal(1), Decimal(0), Decimal(1))
        assert all(status == 200 for _, status in hosted.deliveries)


async def test_a_lost_webhook_is_replaced_by_polling(hosted: Hosted, ada: Customer) -> None:
    with trio.fail_after(240):
        hosted.sends_webhooks = False
        request_id = await create(ada, SILENT, "in silence")
        job = await taken(hosted, "in silence")
        hosted.finish(job, output=f"{hosted.url}/delivery/out.png")
        task = await becomes(ada, request_id, "succeeded")
        assert job in hosted.asked
        assert any(line["source_ref"].startswith("poll:") for line in task["provider_progress"])


async def test_a_cancel_stops_the_prediction_by_its_id(hosted: Hosted, ada: Customer) -> None:
    with trio.fail_after(240):
        request_id = await create(ada, HOSTED, "never mind")
        job = await taken(hosted, "never mind")
        await ada.submitted(request_id)
        ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))

        async def stopped() -> bool:
            return job in hosted.canceled

        await until(stopped)


async def test_a_submission_without_an_answer_runs_once(hosted: Hosted, ada: Customer) -> None:
    with trio.fail_after(240):
        hosted.accidents.append("cut")
        request_id = await create(ada, SILENT, "cut off")
        job = await taken(hosted, "cut off")

        async def in_doubt() -> bool:
            lines = (await ada.task(request_id))["provider_progress"]
            return any("not answered" in (line["message"] or "") for line in lines)

        await until(in_doubt)
        hosted.start(job)
        await becomes(ada, request_id, "processing")
        hosted.finish(job, output=f"{hosted.url}/delivery/out.png")
        await becomes(ada, request_id, "succeeded")
        assert [each["id"] for each in hosted.with_prompt("cut off")] == [job]
        assert await ada.totals() == Totals(Decimal(1), Decimal(0), Decimal(1))


async def test_a_prediction_found_after_its_task_failed_is_canceled(hosted: Hosted, ada: Customer) -> None:
    with trio.fail_after(240):
        hosted.accidents.append("cut")
        request_id = await create(ada, HASTY, "too late")
        job = await taken(hosted, "too late")
        assert (await becomes(ada, request_id, "failed"))["error"].startswith("submit_ambiguous")
        assert await ada.totals() == Totals(Decimal(2), Decimal(0), Decimal(2))
        hosted.start(job)

        async def stopped() -> bool:
            return job in hosted.canceled

        await until(stopped)
        assert (await ada.task(request_id))["status"] == "failed"
        assert await ada.totals() == Totals(Decimal(2), Decimal(0), Decimal(2))


async def test_forged_old_and_misdirected_webhooks_change_nothing(hosted: Hosted, ada: Customer) -> None:
    with trio.fail_after(240):
        hosted.sends_webhooks = False
        first = await create(ada, HOSTED, "first of two")
        second = await create(ada, HOSTED, "second of two")
        jobs = [await taken(hosted, f"{which} of two") for which in ("first", "second")]
        for request_id in (first, second):
            await ada.submitted(request_id)
        address, other = (hosted.hooks[job] for job in jobs)
        hosted.finish(jobs[0], output=f"{hosted.url}/delivery/out.png")
        body, headers = hosted.signed(jobs[0], "msg_first")
        old = headers | hosted.signature(body, "msg_first", age_s=301)
        forged = headers | hosted.signature(
            body, "msg_first", secret="whsec_" + base64.b64encode(b"x" * 24).decode()
        )
        plain = {"Content-Type": "application/json"}
        unsealed = address.partition("&seal=")[0]
        for sent_to, content, shown, status, code in (
            (address, body + b" ", headers, 401, "invalid_signature"),
            (address, body, forged, 401, "invalid_signature"),
            (address, body, headers | {"webhook-id": "msg_second"}, 401, "invalid_signature"),
            (address, body, old, 401, "signature_expired"),
            (address, body, plain, 401, "missing_signature"),
            (unsealed, body, headers, 404, "task_not_found"),
            (address.replace(first, second), body, headers, 404, "task_not_found"),
            (address.replace("/cloud", "/unknown"), body, headers, 401, "invalid_signature"),
            (address, b"[]", plain | hosted.signature(b"[]", "msg_x"), 400, "invalid_event"),
        ):
            answer = await post(ada, sent_to, content, shown)
            assert (answer.status_code, code_of(answer)) == (status, code)
        # A true message about one job at the true address of another task ends nothing.
        assert ok(await post(ada, other, body, headers))["status"] == "queued"
        hosted.repeats_webhook = True
        misdirected, shown = hosted.signed(jobs[0], "msg_misdirected")
        answer = await post(ada, other, misdirected, shown)
        assert (answer.status_code, code_of(answer)) == (400, "invalid_event")
        assert [(await ada.task(each))["status"] for each in (first, second)] == ["queued", "queued"]
        for _ in range(2):
            ok(await post(ada, address, body, headers))
        task = await becomes(ada, first, "succeeded")
        recorded = [line for line in task["provider_progress"] if line["source_ref"] == "callback:msg_first"]
        assert len(recorded) == 1
        assert (await ada.task(second))["status"] == "queued"
        assert await ada.totals() == Totals(Decimal(1), Decimal(1), Decimal(0))


# ---------------------------------------------------------------------------------------------- a plain container


async def boxed(ada: Customer, box: Container, prompt: str) -> str:
    """Create a task, wait until the container has accepted it, and return its id."""
    request_id = await create(ada, BOXED, prompt)
    await ada.submitted(request_id)
    assert f"{request_id}.1" in box.running
    return request_id


async def test_a_container_without_polling_sends_its_output_in_the_webhook(box: Container, ada: Customer) -> None:
    big = picture(640)
    assert len(big) > 1_000_000
    with trio.fail_after(240):
        request_id = await boxed(ada, box, "large")
        job = f"{request_id}.1"
        box.tell(job, "start", status="processing")
        await becomes(ada, request_id, "processing")

        async def asked() -> bool:
            return bool(box.gets)

        await until(asked)
        box.tell(job, "logs", logs="40%|####   | 4/10")

        async def shows_progress() -> bool:
            return any(line["percent"] == 40 for line in (await ada.task(request_id))["provider_progress"])

        await until(shows_progress)
        box.finish(job, output="data:image/png;base64," + base64.b64encode(big).decode())
        task = await becomes(ada, request_id, "succeeded")
        assert (await ada.http.get(task["output"][0]["url"])).content == big
        assert box.puts.count(job) == 1
        assert [each for each in box.puts if each.startswith(request_id)] == [job]
        assert await ada.totals() == Totals(Decimal(1), Decimal(0), Decimal(1))


async def test_a_containers_webhook_needs_its_own_token(box: Container, ada: Customer) -> None:
    with trio.fail_after(240):
        request_id = await boxed(ada, box, "guarded")
        body = json.dumps({"id": f"{request_id}.1", "status": "failed", "error": "no"}).encode()
        plain = {"Content-Type": "application/json"}
        own = plain | {"Authorization": f"Bearer {plain_cog_server.SECRET}"}
        for content, headers, status, code in (
            (body, plain, 401, "missing_signature"),
            (body, plain | {"Authorization": "Bearer another-token"}, 401, "invalid_signature"),
            (body, plain | {"Authorization": f"Basic {plain_cog_server.SECRET}"}, 401, "invalid_signature"),
            (b"{}", own, 400, "invalid_event"),
            (b'{"id":"odd","status":"failed"}', own, 400, "invalid_event"),
            (b'{"id":"task_1.1","status":"failed"}', own, 404, "task_not_found"),
            (b" " * 300_000, plain, 413, "request_too_large"),
            (b" " * (8 * 1024 * 1024 + 1), own, 413, "request_too_large"),
        ):
            answer = await ada.http.post("/v2/callback/box", content=content, headers=headers)
            assert (answer.status_code, code_of(answer)) == (status, code)
        assert (await ada.task(request_id))["status"] == "queued"
        ok(await ada.http.post("/v2/callback/box", content=body, headers=own))
        assert (await becomes(ada, request_id, "failed"))["error"] == "provider_error: no"
        assert await ada.totals() == Totals(Decimal(2), Decimal(0), Decimal(2))
