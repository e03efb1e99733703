"""One actor a key, and no loop without a report, in a service whose operators and rows are against it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import trio
from tests.clients import Customer, code_of, loopback_client, ok

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider
from .service_process import OPERATOR_TOKEN, Service

WHY = {"reason": "to see what happens"}


class Operator:
    """An operator of one service with one process."""

    def __init__(self, service: Service, http: Any) -> None:
        self.service = service
        self.http = http

    async def act(self, group: str, key: str, action: str, **more: Any) -> dict[str, Any]:
        return ok(await self.http.post(f"/actors/{group}/{key}/{action}", json=WHY | more))

    async def group(self, action: str) -> dict[str, Any]:
        member = ok(await self.http.get("/tree"))["members"][0]["member_id"]
        return ok(await self.http.post(f"/processes/{member}/groups/accounts/{action}", json=WHY))

    async def actor(self, group: str, key: str) -> dict[str, Any]:
        return ok(await self.http.get(f"/actors/{group}/{key}"))


def operators_http(service: Service) -> Any:
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    return loopback_client(base_url=f"{service.url}/ops/api", timeout=60, headers=headers)


@pytest.mark.slow
async def test_an_account_quarantined_in_a_pause_is_served_again(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    """Paused, restarted, quarantined, released, resumed: one actor answers, and the service stops as ever."""
    service = new_service(OPERATOR_TOKEN=OPERATOR_TOKEN)
    await trio.to_thread.run_sync(service.start)
    async with operators_http(service) as http:
        operator = Operator(service, http)
        ada: Customer = await new_customer(service, credit="5.00")
        for _ in range(3):
            await operator.group("pause")
            assert (await operator.act("accounts", ada.account_id, "restart"))["state"] == "starting"
            await operator.act("accounts", ada.account_id, "quarantine", for_s=300)
            quarantined = await operator.actor("accounts", ada.account_id)
            assert (quarantined["state"], quarantined["await_stack"]) == ("quarantined", [])
            assert (await operator.act("accounts", ada.account_id, "release"))["state"] == "passivated"
            await operator.group("resume")
            await ada.recharge("1.00")
        assert (await operator.actor("accounts", ada.account_id))["state"] == "active"
        # A key that waits in a pause once more does not hold up the end.
        await operator.group("pause")
        await operator.act("accounts", ada.account_id, "restart")
    assert await trio.to_thread.run_sync(service.stop) == 0
    lines = service.log_lines()
    assert not any("a mailbox has one reader" in str(line) for line in lines)
    assert not any("did not stop" in str(line) or "killed" in str(line) for line in lines)


@pytest.mark.slow
async def test_a_task_whose_hold_is_not_open_is_a_crash_with_its_quarantine(
    new_service: NewService, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    """Its account refuses to settle it, however often it reads its row. Once the rows are mended, it is settled."""
    service = new_service(OPERATOR_TOKEN=OPERATOR_TOKEN)
    service.environment["HOLDFAST_CATALOG"] = str(provider.write_catalog(service.data_dir.parent))
    await trio.to_thread.run_sync(service.start)
    async with operators_http(service) as http:
        operator = Operator(service, http)
        ada: Customer = await new_customer(service, credit="5.00")
        task_id = ok(await ada.create(MODEL, prompt="x"))["request_id"]
        await ada.submitted(task_id)
        with psycopg.connect(service.database_url, autocommit=True) as rows:
            rows.execute("update holds set settled_number = 1")
            await operator.act("accounts", ada.account_id, "restart")
            codes: list[str] = []
            while not codes or codes[-1] != "quarantined":
                codes.append(code_of(await ada.as_key("POST", f"/v2/task/{task_id}/cancel")))
                await trio.sleep(0.05)
            found = await operator.actor("tasks", task_id)
            # The first crash took six incarnations, each other one. The dispatcher's messages may count too.
            assert found["incarnation"] <= 2 + 6 + found["budget"]
            crash = found["history"][-1]
            assert (crash["reason_type"], crash["decision"]) == ("Reload", "backoff")
            assert "refused to settle" in crash["reason"]
            assert len(codes) <= 2 + found["budget"]
            reports = [line for line in service.log_lines() if line["event"] in {"crash", "quarantine", "poison"}]
            assert {line["event"] for line in reports} == {"crash", "quarantine", "poison"}
            rows.execute("update holds set settled_number = null")
        await operator.act("accounts", ada.account_id, "restart")
        await operator.act("tasks", task_id, "release")
        ok(await ada.as_key("POST", f"/v2/task/{task_id}/cancel"))
        await ada.all_ended()
        assert (await ada.totals()).held == 0
        assert service.audit() == []
