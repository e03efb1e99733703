"""Operators see and act on processes and actors wherever they are; and a tree that gives up ends its process."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import code_of, loopback_client, ok, until

from .conftest import NewCustomer, NewService
from .service_process import OPERATOR_TOKEN, SERVER_KEY, Service

WHY = {"reason": "to see what happens"}


@asynccontextmanager
async def operator_of(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the operators' token."""
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    async with loopback_client(base_url=f"{service.url}/ops/api", timeout=60, headers=headers) as http:
        yield http


async def members(operator: httpx2.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(await operator.get("/tree"))["members"]
    return found


async def both(operator: httpx2.AsyncClient) -> list[dict[str, Any]] | None:
    found = await members(operator)
    return found if sum(each["process"] is not None for each in found) == 2 else None


def states(child: dict[str, Any]) -> dict[str, str]:
    """The state of each child of a process by its id."""
    found = {child["child_id"]: child["state"]}
    for each in child["children"]:
        found |= states(each)
    return found


@pytest.mark.slow
async def test_an_operator_at_one_process_controls_another(
    new_service: NewService, new_customer: NewCustomer, shared_url: str
) -> None:
    settings = {"DATABASE_URL": shared_url, "SERVER_KEY": SERVER_KEY, "OPERATOR_TOKEN": OPERATOR_TOKEN}
    first, second = (new_service(**settings) for _ in range(2))
    for service in (first, second):
        await trio.to_thread.run_sync(service.start)
    async with operator_of(first) as operator:
        this, other = await until(lambda: both(operator))
        assert (this["is_this"], this["process"]["state"], other["process"]["state"]) == (True, "ready", "ready")
        for member in (this, other):
            found = states(member["process"]["tree"])
            assert found["accounts"] == found["control"] == found["outbox"] == found["http"] == "running"

        # An account that the other process serves is found, crashed and restarted from here.
        customer, account = await _customer_at(other["member_id"], operator, first, new_customer)
        assert (account["state"], account["incarnation"]) == ("active", 1)
        path = f"/actors/accounts/{customer.account_id}"
        crashed = ok(await operator.post(f"{path}/crash", json=WHY))
        assert crashed["history"][0]["reason"] == WHY["reason"]
        await customer.recharge("1.00")
        again = ok(await operator.get(path))
        assert (again["member_id"], again["incarnation"]) == (other["member_id"], 2)

        # Its crash is in the account's time line.
        assert await until(lambda: _line_has(operator, customer.account_id, "operation", "report"))

        # Quarantined there, it is refused here, with the time left.
        ok(await operator.post(f"{path}/quarantine", json={**WHY, "for_s": 500}))
        refused = await customer.create()
        assert (refused.status_code, code_of(refused)) == (503, "quarantined")
        assert 450 < int(refused.headers["Retry-After"]) <= 500
        listed = ok(await operator.get("/actors?group=accounts&state=quarantined"))
        assert [each["key"] for each in listed["data"]] == [customer.account_id]
        ok(await operator.post(f"{path}/release", json=WHY))
        await customer.recharge("1.00")

        # Sign-in actors are shown without the e-mail address, and can be addressed.
        sign_ins = ok(await operator.get("/actors?group=sign-in"))["data"]
        assert customer.email not in str(sign_ins)
        shown = next(each["key"] for each in sign_ins if each["key"].startswith("email:"))
        assert ok(await operator.post(f"/actors/sign-in/{shown}/restart", json=WHY))["key"] == shown

        # A worker and a group of the other process.
        at = f"/processes/{other['member_id']}"
        outbox = {**WHY, "path": "holdfast/workers/outbox"}
        assert ok(await operator.post(f"{at}/children/stop", json=outbox))["state"] == "stopped"
        assert ok(await operator.post(f"{at}/children/start", json=outbox))["state"] == "running"
        assert code_of(await operator.post(f"{at}/children/start", json=outbox)) == "child_running"
        assert ok(await operator.post(f"{at}/groups/accounts/pause", json=WHY))["paused_by"] == "operator"
        assert code_of(await customer.create()) == "temporarily_unavailable"
        assert ok(await operator.post(f"{at}/groups/accounts/resume", json=WHY))["paused_by"] is None
        await customer.recharge("1.00")

        # Each action is recorded; those on a process name its child.
        actions = ok(await operator.get("/actions?limit=100"))["data"]
        assert {each["action"] for each in actions} >= {
            "crash_actor",
            "quarantine_actor",
            "stop_child",
            "pause_group",
        }
        assert f"{other['member_id']}/holdfast/workers/outbox" in {each["target"] for each in actions}

        # Killed, it is not named any more once its row is gone.
        await trio.to_thread.run_sync(second.kill)
        [left] = await until(lambda: _alone(operator))
        assert left["is_this"]
        # Drained, this process ends in order.
        ok(await operator.post(f"/processes/{this['member_id']}/drain", json=WHY))
        assert first.process is not None
        assert await trio.to_thread.run_sync(first.process.wait, 30) == 0


async def _customer_at(
    member_id: str, operator: httpx2.AsyncClient, service: Service, new_customer: NewCustomer
) -> tuple[Any, dict[str, Any]]:
    """A customer whose account this member serves, and the account's actor."""
    for _ in range(40):
        customer = await new_customer(service, credit="5.00")
        account = ok(await operator.get(f"/actors/accounts/{customer.account_id}"))
        if account["member_id"] == member_id:
            return customer, account
    raise AssertionError("no account of the other process was found")


async def _line_has(operator: httpx2.AsyncClient, account_id: str, *sources: str) -> bool:
    line = ok(await operator.get(f"/accounts/{account_id}/timeline"))["data"]
    return set(sources) <= {each["source"] for each in line}


async def _alone(operator: httpx2.AsyncClient) -> list[dict[str, Any]] | None:
    found = await members(operator)
    return found if len(found) == 1 else None


async def test_a_tree_that_gives_up_ends_its_process_with_one_line(new_service: NewService) -> None:
    service = new_service()
    await trio.to_thread.run_sync(service.start)
    # A folder stands where the server's lock was: no restart of the child that starts the server can help.
    folder = service.data_dir / "postgres"
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    lock = folder / ".s.PGSQL.5432.lock"
    lock.unlink()
    lock.mkdir()
    os.kill(postmaster, signal.SIGKILL)
    assert service.process is not None
    assert await trio.to_thread.run_sync(service.process.wait, 60) == 1
    lines = service.log_lines()
    [line] = [line for line in lines if line["event"] == "the tree gave up"]
    assert line["level"] == "critical"
    assert "holdfast: over 3 restarts in 30 s, the last by 'database' (IsADirectoryError" in line["reason"]
    assert not any("Traceback" in str(line) for line in lines)
    assert [line["exit_code"] for line in lines if line["event"] == "stopped"] == [1]
    # It stopped in order: nothing was killed, and what relied on the database had stopped before.
    assert not any("did not stop" in str(line) or "killed" in str(line) for line in lines)
    stopped = [line["path"] for line in lines if line["event"] == "stop"]
    assert stopped.index("holdfast/accounts") < stopped.index("holdfast/journal")
