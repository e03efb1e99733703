"""The level of one account is raised in two workers, by the command: its lines, and their end by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.clients import ok, until

from .conftest import NewCustomer, NewService
from .operator_client import Operator, command
from .service_process import Service


async def both_serve(http: Any) -> bool:
    members = ok(await http.get("/ops/api/tree"))["members"]
    return sum(each["process"] is not None for each in members) == 2


@pytest.mark.slow
async def test_the_lines_of_one_account_are_raised_in_all_workers_for_a_time(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    log_level = partial(command, service, "log-level")
    ada, other = [await new_customer(service, credit="1.00") for _ in range(2)]
    async with Operator(service).http as http:
        assert await until(lambda: both_serve(http))
        raised = await log_level(ada.account_id, "--for", "600", "--reason", "ticket 7")
        assert [line.split()[1] for line in raised] == [ada.account_id] * 2
        assert sorted(await log_level()) == sorted(raised)
        for each in (ada, other):
            await each.recharge("1.00")
        events = partial(logged, service, ada.account_id)
        assert await until(lambda: events("turn", 1))
        assert {line["worker"] for line in await until(lambda: events("level raised", 2))} == {0, 1}
        # An operator ends it before its time.
        assert await log_level(ada.account_id, "--for", "0", "--reason", "seen") == ["No level is raised."]
        assert {line["worker"] for line in await until(lambda: events("level no longer raised", 2))} == {0, 1}
        # And it ends by itself.
        await log_level(ada.account_id, "--for", "1", "--reason", "ticket 8")
        assert await until(lambda: events("level no longer raised", 4))
        assert await log_level() == ["No level is raised."]
        actions = ok(await http.get("/ops/api/actions"))["data"]
        assert [(each["action"], each["reason"]) for each in actions] == [
            ("raise_log_level", "ticket 8"),
            ("raise_log_level", "seen"),
            ("raise_log_level", "ticket 7"),
        ]
    lines = service.log_lines()
    turns = [line for line in lines if line["event"] == "turn"]
    assert {(line["account_id"], line["raised"], line["level"]) for line in turns} == {
        (ada.account_id, ada.account_id, "debug")
    }
    assert "Recharge" in {line["message"] for line in turns}


async def logged(service: Service, subject: str, event: str, least: int) -> list[dict[str, Any]] | None:
    lines = await trio.to_thread.run_sync(service.log_lines)
    names = ("subject", "account_id")
    found = [line for line in lines if line["event"] == event and subject in [line.get(name) for name in names]]
    return found if len(found) >= least else None
