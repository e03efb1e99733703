"""The database goes away under load: callers get 503, no answered write is lost, and the service recovers."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import trio
from tests.clients import Customer, until

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import postmaster_pid

from .conftest import NewCustomer, NewService
from .load import Witness
from .service_process import OPERATOR_TOKEN, Service

CREDIT = Decimal("1000.00")
STOPPED_S = float(os.environ.get("OUTAGE_S", "4"))


async def under_load(service: Service, customer: Customer, trouble: Callable[[], Awaitable[None]]) -> None:
    """Inject a fault under load, and compare the service with all responses before, during and after."""
    witness = Witness(customer, seed=2)

    async def went_on(least: int) -> None:
        wanted = witness.answered + least

        async def enough() -> bool:
            return witness.answered >= wanted

        await until(enough, within_s=60)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(witness.work)
        await went_on(30)
        await trouble()
        await went_on(30)
        witness.is_stopping = True
    for answer in witness.turned_away:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["code"] in {"temporarily_unavailable", "overloaded"}
    assert service.is_alive()
    await witness.hold_to_it()
    await witness.settle(CREDIT)
    assert service.audit() == []
    gave_up = [line for line in service.log_lines() if line.get("level") == "critical"]
    assert gave_up == []
    assert await trio.to_thread.run_sync(service.stop) == 0


@pytest.mark.slow
async def test_cut_database_connections_under_load_lose_nothing(
    new_service: NewService, new_customer: NewCustomer, postgres: EmbeddedPostgres
) -> None:
    service = new_service(DATABASE_URL=postgres.url)
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service, credit=str(CREDIT))

    def cut() -> int:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            statement = (
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid()"
            )
            row = connection.execute(statement + " and datname = current_database()").fetchone()
            assert row is not None
            return int(row[0])

    async def trouble() -> None:
        async def cut_some() -> int:
            return await trio.to_thread.run_sync(cut)

        for _ in range(6):
            # In between the service may have no connection left at all.
            await until(cut_some)

            async def answers() -> bool:
                return (await ada.as_key("GET", "/v2/task/list?limit=1")).status_code == 200

            await until(answers)

    await under_load(service, ada, trouble)


@pytest.mark.slow
async def test_requests_get_503_until_a_stopped_database_is_back(
    new_service: NewService, new_customer: NewCustomer, postgres: EmbeddedPostgres
) -> None:
    service = new_service(DATABASE_URL=postgres.url, OPERATOR_TOKEN=OPERATOR_TOKEN)
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service, credit=str(CREDIT))

    async def read(path: str) -> Any:
        answer = await ada.http.get(path, headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def trouble() -> None:
        await trio.to_thread.run_sync(postgres.stop)
        back_at = trio.current_time() + STOPPED_S
        seen = set()
        while trio.current_time() < back_at:
            with trio.fail_after(60):
                refused = await ada.create()
            assert refused.status_code == 503, refused.text
            assert "Retry-After" in refused.headers
            seen.add((await ada.http.get("/readyz")).status_code)
            assert (await ada.http.get("/healthz")).status_code == 200
            await trio.sleep(0.2)
        assert 503 in seen
        process = (await read("/ops/api/tree"))["members"][0]["process"]
        states = {child["child_id"]: child["state"] for child in process["tree"]["children"]}
        assert (states["database"], states["journal"], states["accounts"]) == ("waiting", "waiting", "running")
        assert "database" in {condition["name"] for condition in process["conditions"]}
        known = await read("/ops/api/reports?path=holdfast/database&kind=outage")
        assert known["from_memory"]
        assert known["data"]
        await trio.to_thread.run_sync(postgres.start)

        async def ready() -> bool:
            return (await ada.http.get("/readyz")).status_code == 200

        await until(ready)

        async def is_stored() -> bool:
            found = (await read("/ops/api/reports?path=holdfast/database"))["data"]
            kinds = [report["kind"] for report in reversed(found) if report["kind"] in {"outage", "recovery"}]
            return kinds[:1] == ["outage"] and kinds[-1:] == ["recovery"]

        await until(is_stored)

    await under_load(service, ada, trouble)
    lines = [line for line in service.log_lines() if not str(line["event"]).startswith(("task ", "account "))]
    assert len(lines) < 40, lines
    story = [line for line in lines if line["event"] in {"outage", "recovery"}]
    of_database = [str(line["text"]) for line in story if line["path"] == "holdfast/database"]
    assert of_database[0].startswith(("the database is away: ", "the database is slow: "))
    assert of_database[-1].startswith("the database answers; lasted ")
    assert next(line["event"] for line in story if line["path"] == "holdfast/http") == "outage"
    assert sum(line["count"] for line in lines if line["event"] == "requests refused") > 0


@pytest.mark.slow
async def test_a_killed_embedded_server_is_restarted(new_service: NewService, new_customer: NewCustomer) -> None:
    service = new_service()
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service, credit=str(CREDIT))

    async def trouble() -> None:
        pid = postmaster_pid(service.data_dir / "postgres")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def another() -> bool:
            found = postmaster_pid(service.data_dir / "postgres")
            return found not in {None, pid} and (await ada.http.get("/readyz")).status_code == 200

        async def answers() -> bool:
            # A pooled connection of the killed server may still refuse one request.
            return (await ada.as_key("GET", "/v2/task/list?limit=1")).status_code == 200

        await until(another, within_s=60)
        await until(answers)

    await under_load(service, ada, trouble)
