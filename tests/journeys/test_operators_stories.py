"""What an operator reads in a full disk and when a part gives up, and who is signed out in an outage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import trio
from sqlalchemy import text
from tests.clients import Customer, loopback_client, refused, until
from torture.database_faults import fill

from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import EmbeddedPostgres

from .conftest import NewCustomer, NewService
from .operator_client import Operator
from .service_process import OPERATOR_TOKEN, SERVER_KEY, Service, start_together, until_linked

pytestmark = pytest.mark.slow

DISK_MIB = 8
DATABASE_DISK_MIB = 400


@pytest.fixture
def small_disks() -> Iterator[Callable[[Path, int], None]]:
    """Mount small file systems, of so many MiB, for one test."""
    mounted: list[Path] = []

    def mount(folder: Path, mib: int) -> None:
        words = ["-t", "tmpfs", "-o", f"size={mib}m,mode=711", "holdfast-journey", str(folder)]
        subprocess.run(["mount", *words], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def lines_of(service: Service, *events: str) -> list[dict[str, Any]]:
    return [line for line in service.log_lines() if line["event"] in events]


async def logged(service: Service, event: str, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a line."""

    async def found() -> dict[str, Any] | None:
        return next((line for line in lines_of(service, event) if is_it(line)), None)

    return await until(found, within_s=120)


async def overview(operator: Operator) -> str:
    """Read the first page."""
    page = await operator.http.get("/ops", headers={"Accept": "text/html"})
    assert page.status_code == 200
    return page.text


async def ends(customer: Customer, request_id: str) -> str:
    """Wait for the end of a task."""

    async def ended() -> str | None:
        status = (await customer.as_key("GET", f"/v2/task/{request_id}")).json()["status"]
        return str(status) if status in {"succeeded", "failed"} else None

    return await until(ended, within_s=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
async def test_a_full_disk_for_results_is_named_and_its_end_reported(
    new_service: NewService, new_customer: NewCustomer, small_disks: Callable[[Path, int], None]
) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    assets = service.data_dir / "assets"
    small_disks(assets, DISK_MIB)
    ada, operator = await new_customer(service, credit="10.00"), Operator(service)
    (assets / "ballast").write_bytes(bytes(DISK_MIB << 20))
    waiting = (await ada.create()).json()["request_id"]
    outage = await logged(service, "outage", lambda line: line["path"] == "holdfast/workers/hosting")
    cause = f"results cannot be stored or read: No space left on device in {assets}"
    assert outage["text"] == cause
    page = await overview(operator)
    assert "What lasts" in page
    assert cause in page
    found = (await ada.as_key("GET", f"/v2/task/{waiting}")).json()
    assert found["hosting"]["error"] == "hosting_failed: storage: cannot be written at the moment"
    (assets / "ballast").unlink()
    assert await ends(ada, waiting) == "succeeded"
    recovery = await logged(service, "recovery", lambda line: line["path"] == "holdfast/workers/hosting")
    assert recovery["text"].startswith("results are stored and read; lasted ")
    assert "What lasts" not in await overview(operator)
    await operator.http.aclose()
    assert await trio.to_thread.run_sync(service.stop) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
async def test_each_process_names_the_full_disk_of_the_database(
    new_service: NewService, small_disks: Callable[[Path, int], None]
) -> None:
    service = new_service(PROCESSES="2")
    service.data_dir.mkdir()
    small_disks(service.data_dir, DATABASE_DISK_MIB)
    await trio.to_thread.run_sync(service.start)
    operator = Operator(service)
    ballast = service.data_dir / "ballast"
    fill(ballast)
    # The log goes on in another file, for which there is no room, and the server ends.
    with psycopg.connect(service.database_url, autocommit=True) as rows, suppress(psycopg.OperationalError):
        for _ in range(10):
            rows.execute("select pg_logical_emit_message(false, '', 'full'), pg_switch_wal()")
    fill(ballast)

    async def causes() -> list[str] | None:
        members = (await operator.http.get("/ops/api/tree")).json()["members"]
        found = [each for member in members for each in member["process"]["conditions"]]
        texts = [each["text"] for each in found if "No space left on device; its log" in each["text"]]
        return texts if len(texts) == 2 else None

    for cause in await until(causes, within_s=60):
        assert cause.startswith("the database is away: The embedded PostgreSQL did not start: could not write")
    assert "No space left on device; its log is " in (await overview(operator)).partition("Health")[0]
    ballast.unlink()

    async def is_over() -> bool:
        return "What lasts" not in await overview(operator)

    await until(is_over, within_s=60)
    await operator.http.aclose()
    assert await trio.to_thread.run_sync(service.stop) == 0


async def test_a_part_that_gives_up_says_why_at_each_step_and_on_the_first_page(new_service: NewService) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    operator = Operator(service)
    with connected(service.database_url) as rows:
        rows.execute(text("alter table outbox rename to outbox_gone"))
        rows.commit()
        loop = await logged(service, "crash_loop", lambda line: line["path"] == "holdfast/workers/due-work")
        assert 'relation "outbox" does not exist' in loop["text"]
        page = await overview(operator)
        assert "What lasts" in page
        assert "it keeps crashing" in page
        assert "relation &#34;outbox&#34; does not exist" in page
        ended = await logged(service, "the tree gave up", lambda _: True)
        rows.execute(text("alter table outbox_gone rename to outbox"))
        rows.commit()
    lines = [line for line in service.log_lines() if line.get("worker") == ended["worker"]]
    steps = [(line["event"], line["path"]) for line in lines if line["event"] == "escalation"]
    assert steps[-1] == ("escalation", "holdfast/workers")
    assert steps[-2][1].startswith("holdfast/workers/")
    for line in lines:
        if line["event"] == "escalation":
            assert "gave up: holdfast" in line["text"]
            assert "restarts in" in line["text"]
            assert line["text"].endswith("; the crashes before it name the cause")
    number = ended["worker"]
    crash = await logged(service, "crash", lambda line: line["path"] == f"processes/worker-{number}")
    assert "ended with exit code 1" in crash["text"]
    await logged(service, "restart", lambda line: line["path"] == f"processes/worker-{number}")

    async def is_ready() -> bool:
        return (await operator.http.get("/readyz")).status_code == 200

    await until(is_ready, within_s=60)
    await operator.http.aclose()
    assert await trio.to_thread.run_sync(service.stop) == 0


async def test_who_signs_out_in_an_outage_is_signed_out_everywhere(
    new_service: NewService, postgres: EmbeddedPostgres
) -> None:
    settings = {"DATABASE_URL": postgres.url, "SERVER_KEY": SERVER_KEY, "OPERATOR_TOKEN": OPERATOR_TOKEN}
    services = [new_service(**settings) for _ in range(2)]
    await trio.to_thread.run_sync(start_together, services)
    await until_linked(services)
    await trio.to_thread.run_sync(postgres.stop)
    path, browser = "/ops/api/session", {"Sec-Fetch-Site": "same-origin"}
    async with (
        loopback_client(base_url=services[0].url, timeout=60, headers=browser) as one,
        loopback_client(base_url=services[1].url, timeout=60, headers=browser) as other,
    ):

        async def signed_in() -> httpx2.Response | None:
            """Sign in with a cookie that proves itself, once the process knows that the database is away."""
            found = await one.post(path, json={"token": OPERATOR_TOKEN})
            return found if "." in found.headers.get("set-cookie", "").partition(";")[0] else None

        begun = await until(signed_in)
        cookie = {"Cookie": begun.headers["set-cookie"].partition(";")[0]}
        assert (await other.get(path, headers=cookie)).status_code == 200
        left = await one.delete(path, headers={**cookie, "X-CSRF-Token": begun.json()["csrf_token"]})
        assert left.json() == {"signed_out": True}
        for each in (one, other):
            refused(await each.get(path, headers=cookie), 401, "invalid_session")
    await trio.to_thread.run_sync(postgres.start)
    assert [await trio.to_thread.run_sync(service.stop) for service in services] == [0, 0]
