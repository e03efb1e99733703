"""Totals of usage over HTTP: equal to the usage log while tasks are open, and after they have ended."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio
from tests.clients import ENDED, IMAGE, Customer, every, ok, until
from tests.usage_sums import GROUPINGS, Sums, sums_of

from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service

PATH = "/v2/usage/totals"
USERS = (None, "ann", "bea", "=1+1")


async def log_of(customer: Customer) -> list[dict[str, Any]]:
    """Read the usage log."""
    found = await every(partial(customer.as_session, "GET"), "/v2/usage/logs")
    return [
        {**each, "ts": datetime.fromisoformat(each["ts"]), "cost": Decimal(each["cost_credits"])} for each in found
    ]


def sums_in(body: dict[str, Any]) -> Sums:
    """Return a response's sums by the values of its groups."""
    return {
        tuple(each[name] for name in body["group_by"]): (each["count"], Decimal(each["cost_credits"]))
        for each in body["data"]
    }


async def assert_totals_are_the_log(customer: Customer) -> list[dict[str, Any]]:
    """Check totals by every group and any two, and their files, against the log, which is returned."""
    log = await log_of(customer)
    moments = sorted(each["ts"] for each in log)
    middle = moments[len(moments) // 2]
    for groups in GROUPINGS:
        for zone in ("UTC", "Asia/Kolkata", "America/New_York") if "day" in groups else ("UTC",):
            asked = {"group_by": ",".join(groups), "time_zone": zone}
            body = ok(await customer.as_session("GET", PATH, params={**asked, "from": middle.isoformat()}))
            assert sums_in(body) == sums_of(log, groups, ZoneInfo(zone), since=middle), (groups, zone)
            body = ok(await customer.as_session("GET", PATH, params=asked))
            assert sums_in(body) == sums_of(log, groups, ZoneInfo(zone)), (groups, zone)
            assert (body["count"], Decimal(body["cost_credits"])) == (len(log), sum(each["cost"] for each in log))
            file = (await customer.as_session("GET", PATH, params={**asked, "format": "csv"})).text
            lines = list(csv.reader(io.StringIO(file, newline=""), strict=True))
            shown = [
                [
                    *((each[name] or "").replace("=1+1", "'=1+1") for name in groups),
                    each["count"],
                    each["cost_credits"],
                ]
                for each in body["data"]
            ]
            assert lines == [[*groups, "count", "cost_credits"], *([*map(str, each)] for each in shown)]
    return log


@pytest.mark.slow
async def test_totals_equal_the_log_whatever_becomes_of_the_tasks(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        ada = await new_customer(quiet_service, credit="20.00")
        second = ok(await ada.as_session("POST", "/v2/control/api-keys", {}))["api_key"]
        created: list[str] = []
        for number in range(12):
            user = USERS[number % 4]
            body = {"model": MODEL, "input": IMAGE, "metadata": {} if user is None else {"end_user": user}}
            key = ada.key if number % 3 else second
            created.append(ok(await ada.call("POST", "/v2/task/create", body, credential=key))["request_id"])
        log = await assert_totals_are_the_log(ada)
        assert {each["status"] for each in log} <= {"queued", "processing"}
        for request_id in created[:3]:
            ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
        for number, request_id in enumerate(created[3:9]):
            await ada.submitted(request_id)
            outputs = [{"url": f"{provider.url}/picture.png", "content_type": "image/png"}]
            fields: dict[str, Any] = {"outputs": outputs} if number % 2 else {"error": "no luck"}
            status = "succeeded" if number % 2 else "failed"
            sent = provider.callback_body(request_id, status, event_id="evt_1", sequence=1, **fields)
            ok(await ada.http.post("/v2/callback", content=sent, headers=signed(sent)))

        async def settled() -> bool | None:
            tasks = await ada.tasks()
            return all(tasks[each]["status"] in ENDED for each in created[:9]) or None

        await until(settled)
        log = await assert_totals_are_the_log(ada)
        assert {each["status"] for each in log} >= {"succeeded", "failed", "canceled"}
        assert {each["end_user"] for each in log} == {*USERS}
    assert quiet_service.audit() == []
