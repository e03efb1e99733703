"""Ten thousand dead events and a thousand quarantined actors are acted on at once, while the service works.

The events' action is stopped in the middle, continued, and the process that goes on with it is killed. Another's
process stands still again and again, and thaws when another has gone on with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import httpx2
import psycopg
import pytest
import trio
from tests.clients import ok, until

from holdfast.ledger.values import new_id

from .conftest import NewCustomer, NewService
from .operator_client import Operator
from .receiver import Receiver
from .service_process import Service

EVENTS = 10_000
ACTORS = 1_000
FROZEN_EVENTS = 2_000
BULK = "/ops/api/bulk-actions"
WITHIN_S = 540.0
# Every time that an event is sent again is recorded: it sets ``round_at``.
_RECORD = """
    create table sent_again (event_id text not null);
    create function record_sent_again() returns trigger language plpgsql as $$
    begin insert into sent_again values (new.event_id); return null; end $$;
    create trigger record_sent_again after update on outbox for each row
        when (old.round_at <> new.round_at) execute function record_sent_again();
"""
# A batch takes half a second, so that a process is frozen in one.
_SLOW = """
    create function be_slow() returns trigger language plpgsql as $$
    begin perform pg_sleep(0.005); return new; end $$;
    create trigger be_slow before update on outbox for each row
        when (old.round_at <> new.round_at) execute function be_slow();
"""
_PLANT = """
    insert into outbox (account_id, event_id, receiver, kind, url, created_at, due_at, round_at, snapshot,
                        request_id, webhook_id, status, attempts, tries, done_at, reason)
    select account_id, 'evt_' || md5(number::text), receiver, kind, url, created_at, null, round_at, snapshot,
           request_id, webhook_id, 'given_up', attempts, tries, now(), 'gone'
    from outbox, generate_series(1, %s) number where event_id = %s
"""
_OWNER = "select p.pid from singletons s join processes p using (process_id) where s.name = 'bulk-actions'"


def sql(service: Service, statement: str, *values: object) -> list[Any]:
    with psycopg.connect(service.database_url, autocommit=True) as rows:
        found = rows.execute(statement, values or None)
        return found.fetchall() if found.description else []


async def command(service: Service, *words: str) -> list[str]:
    done = await trio.run_process(
        [sys.executable, "-m", "holdfast", "act", "--url", service.url, *words],
        env=service.environment,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.decode().splitlines()


async def begin(http: Any, body: dict[str, str]) -> dict[str, Any]:
    return ok(await http.post(BULK, json=body, headers={"Idempotency-Key": new_id("req")}))


async def state_of(http: Any, action_id: str) -> dict[str, Any]:
    return ok(await http.get(f"{BULK}/{action_id}"))


async def when(http: Any, action_id: str, *, state: str = "running", done: int = 0) -> dict[str, Any]:
    """Wait until a bulk action has this state, or has done so many."""

    async def found() -> dict[str, Any] | None:
        now = await state_of(http, action_id)
        return now if now["done"] >= done and now["state"] in (state, "ended") else None

    return await until(found, within_s=WITHIN_S)


async def quarantine(http: Any) -> None:
    limiter = trio.CapacityLimiter(20)

    async def one() -> None:
        async with limiter:
            path = f"/ops/api/actors/accounts/{new_id('acct')}/quarantine"
            ok(await http.post(path, json={"reason": "a test", "for_s": 86_400}))

    async with trio.open_nursery() as nursery:
        for _ in range(ACTORS):
            nursery.start_soon(one)


async def quarantined(http: Any) -> int:
    processes = [each["process"] for each in ok(await http.get("/ops/api/tree"))["members"] if each["process"]]
    return sum(group["states"].get("quarantined", 0) for each in processes for group in each["groups"])


@pytest.mark.slow
async def test_thousands_are_acted_on_once_through_a_stop_and_a_kill(
    new_service: NewService, new_customer: NewCustomer, endpoint: Receiver
) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service, credit="5.00")
    await plant(service, ada, endpoint, count=EVENTS)
    async with Operator(service).http as http, trio.open_nursery() as nursery:
        await quarantine(http)
        assert await quarantined(http) == ACTORS
        counted = await command(service, "retry_webhook", "status=given_up", "--dry-run")
        assert counted[0] == f"{EVENTS} match."
        assert sql(service, "select count(*) from sent_again") == [(0,)]
        why = {"reason": "their server is back"}
        released = await begin(http, {"act": "release_actor", "filter": "group=accounts", **why})
        begun = await begin(http, {"act": "retry_webhook", "filter": "status=given_up", **why})
        assert (released["total"], begun["total"]) == (ACTORS, EVENTS)
        # The service works meanwhile.
        scope = trio.CancelScope()
        nursery.start_soon(partial(recharge_again, ada, scope))
        await when(http, begun["action_id"], done=2_000)
        ok(await http.post(f"{BULK}/{begun['action_id']}/stop", json=why))
        stopped = await when(http, begun["action_id"], state="stopped")
        assert (await when(http, released["action_id"], state="ended"))["done"] == ACTORS
        assert await quarantined(http) == 0
        scope.cancel()
        assert stopped["state"] == "stopped"
        assert 2_000 <= stopped["done"] < EVENTS
        assert sql(service, "select count(*) from sent_again") == [(stopped["done"],)]
        # Continued by the command, whose process goes on to the end although another is killed.
        lines = await command(
            service, "continue", begun["action_id"], "--reason", "their server is back", "--no-wait"
        )
        continued = lines[0].split()[0]
        await when(http, continued, done=1_000)
        os.kill(await until(partial(owner, service), within_s=WITHIN_S), signal.SIGKILL)
    async with Operator(service).http as http:
        ended = await until(partial(answered, http, continued), within_s=WITHIN_S)
        assert (ended["done"], ended["refused"]) == (EVENTS - stopped["done"], 0)
        again = Counter(event_id for (event_id,) in sql(service, "select event_id from sent_again"))
        assert (len(again), {*again.values()}) == (EVENTS, {1})
        assert (await command(service, "show", continued))[-1].startswith(f"ended: {ended['done']} of")
        records = ok(await http.get("/ops/api/actions?result=done"))["data"]
        mine = {each["action_id"]: each["effect"]["done"] for each in records if "done" in (each["effect"] or {})}
        assert mine == {
            begun["action_id"]: str(stopped["done"]),
            continued: str(ended["done"]),
            released["action_id"]: str(ACTORS),
        }


@pytest.mark.slow
async def test_each_is_acted_on_once_while_the_acting_process_freezes_and_thaws(
    new_service: NewService, new_customer: NewCustomer, endpoint: Receiver
) -> None:
    service = new_service(PROCESSES="2")
    await trio.to_thread.run_sync(service.start)
    await plant(service, await new_customer(service), endpoint, count=FROZEN_EVENTS)
    sql(service, _SLOW)
    async with Operator(service).http as http:
        begun = await begin(http, {"act": "retry_webhook", "filter": "status=given_up", "reason": "a freeze"})
    for frozen_at in (300, 900, 1_500):
        async with Operator(service).http as http:
            await until(partial(progressed, http, begun["action_id"], frozen_at), within_s=WITHIN_S)
        pid = await until(partial(owner, service), within_s=WITHIN_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(partial(owned_by_another, service, pid), within_s=WITHIN_S)
        finally:
            os.kill(pid, signal.SIGCONT)
    async with Operator(service).http as http:
        ended = await until(partial(answered, http, begun["action_id"]), within_s=WITHIN_S)
        assert (ended["done"], ended["refused"], ended["exceptions"]) == (FROZEN_EVENTS, 0, [])
        again = Counter(event_id for (event_id,) in sql(service, "select event_id from sent_again"))
        assert (len(again), {*again.values()}) == (FROZEN_EVENTS, {1})
        records = ok(await http.get("/ops/api/actions"))["data"]
        assert [each["action_id"] for each in records if each["action"] == "act_on_all"] == [begun["action_id"]]


async def plant(service: Service, customer: Any, endpoint: Receiver, *, count: int) -> None:
    """Write events that were given up, and record every time that one is sent again."""
    # The receiver keeps what it got of other tests.
    path = f"/bulk-{count}"
    hook = {"url": endpoint.url + path, "events": ["task.*"]}
    created = ok(await customer.as_session("POST", "/v2/control/webhooks", hook))
    ok(await customer.as_session("POST", f"/v2/control/webhooks/{created['webhook_id']}/test", {}))
    [first] = await endpoint.wait(path, 1)
    sql(service, _RECORD)
    sql(service, _PLANT, count, first.event_id)


async def progressed(http: Any, action_id: str, done: int) -> bool:
    try:
        return bool((await state_of(http, action_id))["done"] >= done)
    except (OSError, AssertionError, httpx2.TransportError):
        return False


async def owner(service: Service) -> int | None:
    """Return the process that acts: none for the moment between one owner and the next."""
    return next((pid for (pid,) in sql(service, _OWNER)), None)


async def owned_by_another(service: Service, pid: int) -> bool:
    return await owner(service) not in (None, pid)


async def recharge_again(customer: Any, scope: trio.CancelScope) -> None:
    """Use the service as its customer until the scope is cancelled; each request must succeed."""
    with scope:
        while True:
            await customer.recharge("0.01")


async def answered(http: Any, action_id: str) -> dict[str, Any] | None:
    """Return a bulk action that has ended, unless the process that is asked is being replaced."""
    try:
        found = await state_of(http, action_id)
    except (OSError, AssertionError, httpx2.TransportError):
        return None
    return found if found["state"] == "ended" else None
