"""What operators set for a time by the command is in effect in two workers, and ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.clients import ok, refused, until

from .conftest import NewCustomer, NewService
from .operator_client import Operator, command
from .test_log_levels import both_serve

MODEL = "studio/image-1"


@pytest.mark.slow
async def test_overrides_act_in_all_workers_until_they_end(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    override = partial(command, service, "override")
    # Of so many, some are served by each worker.
    customers = [await new_customer(service, credit="1.00") for _ in range(6)]
    ada, *others = customers
    async with Operator(service).http as http:
        assert await until(lambda: both_serve(http))
        [line] = await override("pause-model", MODEL, "wait", "--reason", "ticket 7")
        assert line.startswith(f"model_pause {MODEL} wait until ")
        waiting = [ok(await each.create())["request_id"] for each in customers]
        await override("pause-model", MODEL, "refuse", "--note", "back soon", "--reason", "ticket 7")
        for each in customers:
            error = refused(await each.create(), 503, "model_paused")
            assert error["message"].endswith(": back soon")
        [model] = [each for each in ok(await http.get("/v2/models"))["data"] if each["id"] == MODEL]
        assert model["paused"]["note"] == "back soon"
        tasks = [
            (await each.task(request_id))["status"] for each, request_id in zip(customers, waiting, strict=True)
        ]
        assert {*tasks} == {"queued"}
        assert await override("pause-model", MODEL, "--for", "0", "--reason", "seen") == ["Nothing is set."]
        for each in customers:
            assert {task["status"] for task in (await each.all_ended()).values()} == {"succeeded"}

        await override("creates", ada.account_id, "0", "--reason", "a loop")
        refused(await ada.create(), 429, "rate_limit_exceeded")
        ok(await others[0].create())
        lines = await override("slots", "studio", "1", "--for", "60", "--reason", "fewer machines")
        assert [line.split()[:3] for line in lines] == [
            ["account_creates", ada.account_id, "0"],
            ["provider_slots", "studio", "1"],
        ]
        [studio] = ok(await http.get("/ops/api/providers"))["data"]
        assert studio["slots"] == 1
        costs: dict[str, Any] = {
            f"{each['what']} by {each['by']}": each
            for each in ok(await http.get("/ops/api/costs"))["data"]
            if each["time"] != "day"
        }
        assert costs["creates by model"]["lines"][0]["name"] == MODEL
        assert {each["name"] for each in costs["refusals by code"]["lines"]} >= {"model_paused"}
        assert {each.account_id for each in customers} <= {
            each["name"] for each in costs["requests by account"]["lines"]
        }
        assert costs["cpu_s by actor"]["total"] > 0
        assert costs["credits_spent by account"]["total"] > 0
