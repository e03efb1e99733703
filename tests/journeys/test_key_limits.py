"""Limits over HTTP: what each layer answers, and that no key exceeds its own, whatever processes are killed.

``LIMITED_KEYS=64 LIMITED_CONNECTIONS=200`` makes the storm larger; give it ``-o faulthandler_timeout=900`` then.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import httpx2
import pytest
import trio
from sqlalchemy import text
from tests.clients import ENDED, Customer, code_of, loopback_client, ok, refused, until

from holdfast.ledger.values import MICRO
from holdfast.persistence.server.connections import connected

from .conftest import NewCustomer
from .operator_client import Operator
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service

CLIP = "quiet/clip-1"
KEYS = "/v2/control/api-keys"
KEYS_MANY = int(os.environ.get("LIMITED_KEYS", "6"))
CONNECTIONS = int(os.environ.get("LIMITED_CONNECTIONS", "16"))
TURNS = 12
LIMIT = 3
Line: TypeAlias = tuple[httpx2.AsyncClient, httpx2.AsyncClient]
"""A client of each process."""


def per(window: str, amount: str) -> dict[str, str]:
    return {"credits": amount, "window": window}


async def new_key(customer: Customer, **terms: object) -> tuple[Customer, str]:
    """Create another key of the customer; the customer with that key, and the key's id."""
    created = ok(await customer.as_session("POST", KEYS, terms))
    return replace(customer, key=created["api_key"]), created["api_key_id"]


async def change(customer: Customer, key_id: str, **changes: object) -> dict[str, Any]:
    return ok(await customer.as_session("PATCH", f"{KEYS}/{key_id}", changes))


async def test_a_limited_key_is_refused_alike_by_every_layer(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    owner = await new_customer(quiet_service, credit="100.00")
    limited, key_id = await new_key(owner, limit=per("total", "2.00"), models=[MODEL])
    first, second = [ok(await limited.create(MODEL))["request_id"] for _ in range(2)]

    native = refused(await limited.create(MODEL), 402, "key_limit_exceeded")
    facts = {name: native[name] for name in ("required", "limit", "spent", "resets_at")}
    assert facts == {"required": "1.00", "limit": per("total", "2.00"), "spent": "2.00", "resets_at": None}
    image = await limited.as_key("POST", "/v1/images/generations", {"model": MODEL, "prompt": "a lighthouse"})
    assert refused(image, 402, "key_limit_exceeded")["limit"] == facts["limit"]
    path = f"/replicate/v1/models/{MODEL}/predictions"
    prediction = await limited.as_key("POST", path, {"input": {"prompt": "a lighthouse"}})
    problem = prediction.json()
    assert (prediction.status_code, problem["code"], problem["status"]) == (402, "key_limit_exceeded", 402)
    assert "limit of 2.00 in total" in problem["detail"]
    assert prediction.headers["Content-Type"] == "application/problem+json"
    # A retry is a new task; a release makes room for it.
    ok(await limited.as_key("POST", f"/v2/task/{first}/cancel"))
    retried = ok(await limited.as_key("POST", f"/v2/task/{first}/retry"))["request_id"]
    refused(await limited.as_key("POST", f"/v2/task/{first}/retry"), 402, "key_limit_exceeded")
    # The owner's other key has no limit, and only the owner may change one.
    ok(await owner.create(CLIP))
    other = await new_customer(quiet_service)
    refused(await other.as_session("PATCH", f"{KEYS}/{key_id}", {"limit": None}), 404, "api_key_not_found")

    clip = refused(await limited.create(CLIP), 403, "model_not_allowed")
    assert clip["param"] == "model"
    problem = (await limited.as_key("POST", f"/replicate/v1/models/{CLIP}/predictions", {"input": {}})).json()
    assert (problem["code"], problem["status"]) == ("model_not_allowed", 403)
    assert (await change(owner, key_id, models=["quiet/*"], limit=per("total", "3.00")))["spent"] == "2.00"
    ok(await limited.create(CLIP))
    for request_id in (second, retried):
        ok(await limited.as_key("POST", f"/v2/task/{request_id}/cancel"))
    [shown] = [key for key in ok(await owner.as_session("GET", KEYS))["data"] if key["api_key_id"] == key_id]
    assert (shown["spent"], shown["models"], shown["limit"]) == ("1.00", ["quiet/*"], per("total", "3.00"))


async def test_a_paused_or_expired_key_is_refused_by_every_endpoint(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    owner = await new_customer(quiet_service, credit="100.00")
    key, key_id = await new_key(owner)
    request_id = ok(await key.create(MODEL))["request_id"]

    async def codes() -> set[str]:
        answers = [
            await key.create(MODEL),
            await key.as_key("POST", f"/v2/task/{request_id}/retry"),
            await key.as_key("GET", f"/v2/task/{request_id}"),
            await key.as_key("GET", "/v2/task/list"),
            await key.as_key("POST", "/v2/files", content=b"x"),
            await key.as_key("POST", "/v1/images/generations", {"model": MODEL, "prompt": "a lighthouse"}),
            await key.as_key("GET", "/replicate/v1/predictions"),
        ]
        assert {answer.status_code for answer in answers} == {401}
        return {answer.json()["code"] if "code" in answer.json() else code_of(answer) for answer in answers}

    assert (await change(owner, key_id, paused=True))["paused"]
    assert await codes() == {"api_key_paused"}
    assert not (await change(owner, key_id, paused=False))["paused"]
    ok(await key.create(MODEL))
    soon = datetime.now(UTC) + timedelta(seconds=5)
    await change(owner, key_id, expires_at=soon.isoformat())

    async def has_expired() -> bool:
        return (await key.as_key("GET", "/v2/task/list")).status_code == 401

    await until(has_expired)
    assert await codes() == {"api_key_expired"}
    # What runs goes on, and its owner may give the key another time.
    await change(owner, key_id, expires_at=None)
    assert ok(await key.as_key("POST", f"/v2/task/{request_id}/cancel"))["status"] == "canceled"


@pytest.mark.usefixtures("one_day")
async def test_an_account_spends_no_more_than_its_limit_and_its_ceiling(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    owner = await new_customer(quiet_service, credit="100.00")
    operator = Operator(quiet_service)
    async with operator.http:
        ok(await owner.create(MODEL))
        set_to = ok(await owner.as_session("PUT", "/v2/control/limits", {"limits": [per("total", "2.00")]}))
        total = {"window": "total", "credits": "2.00", "ceiling": None, "spent": "1.00", "resets_at": None}
        assert set_to == {"limits": [total]}
        keys = [owner, (await new_key(owner))[0], (await new_key(owner, limit=per("day", "9.00")))[0]]
        ok(await keys[1].create(MODEL))
        for key in keys:
            assert refused(await key.create(MODEL), 402, "account_limit_exceeded")["spent"] == "2.00"
        path = f"accounts/{owner.account_id}/ceilings"
        ok(await operator.act(path, window="total", credits="3.00"))
        above = await owner.as_session("PUT", "/v2/control/limits", {"limits": [per("total", "3.01")]})
        assert refused(above, 403, "limit_above_ceiling")["param"] == "limits"
        assert ok(await owner.as_session("PUT", "/v2/control/limits", {"limits": []})) == {
            "limits": [total | {"credits": None, "ceiling": "3.00", "spent": "2.00"}]
        }
        ok(await keys[2].create(MODEL))
        refused(await keys[2].create(MODEL), 402, "account_limit_exceeded")
        details = ok(await operator.http.get(f"/ops/api/accounts/{owner.account_id}"))
        assert [each["spent"] for each in details["limits"]] == ["3.00"]
        [of_key] = [key for key in details["api_keys"] if key["limit"] is not None]
        assert (of_key["limit"], of_key["spent"]) == (per("day", "9.00"), "1.00")
        assert ok(await operator.act(path, window="total")) == {"limits": []}
        ok(await owner.create(MODEL))
        actions = ok(await operator.http.get(f"/ops/api/actions?account_id={owner.account_id}"))["data"]
        assert [each["effect"] for each in actions] == [{"ceiling_total": "none"}, {"ceiling_total": "3.00"}]
        assert quiet_service.audit() == []


# ---------------------------------------------------------------------------------------------- two processes


def spent_over_time(database_url: str, account_id: str) -> tuple[dict[str, list[int]], dict[str, int]]:
    """What each key had spent after each of its operations, from the journal alone, and what it captured."""
    query = text(
        "select t.request ->> 'api_key_id' as key_id, o.kind, o.amount_micro, o.hold_id from operations o "
        "join tasks t on t.request_id = o.reference where o.account_id = :account order by o.number"
    )
    spent: defaultdict[str, list[int]] = defaultdict(lambda: [0])
    captured: Counter[str] = Counter()
    holds: dict[str, int] = {}
    with connected(database_url) as rows:
        for row in rows.execute(query, {"account": account_id}):
            now_micro = spent[row.key_id][-1]
            if row.kind == "hold":
                holds[row.hold_id] = row.amount_micro
                now_micro += row.amount_micro
            else:
                now_micro -= holds.pop(row.hold_id) - (row.amount_micro if row.kind == "capture" else 0)
                captured[row.key_id] += row.amount_micro if row.kind == "capture" else 0
            spent[row.key_id].append(now_micro)
    return spent, captured


@pytest.mark.slow
async def test_no_key_exceeds_its_limit_over_two_processes_with_kills(
    two_services: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    owner = await new_customer(two_services[0], credit="10000.00", connections=CONNECTIONS)
    keys = [await new_key(owner, limit=per("total", f"{LIMIT}.00")) for _ in range(KEYS_MANY)]
    rng = random.Random(1)
    counts: Counter[str] = Counter()
    is_over = False

    async def sent(
        line: Line, customer: Customer, path: str, key: str | None = None, **options: Any
    ) -> httpx2.Response:
        """Post a request to a process that is alive, until it is answered."""
        while True:
            alive = [number for number, service in enumerate(two_services) if service.is_alive()]
            http = line[rng.choice(alive or [0, 1])]
            try:
                answer = await replace(customer, http=http).as_key("POST", path, key=key, **options)
            except httpx2.TransportError:
                counts["lost"] += 1
            else:
                if answer.status_code != 503:
                    return answer
                counts["503"] += 1
            await trio.sleep(0.01)

    async def connection(name: int) -> None:
        urls = [service.url for service in two_services]
        async with (
            loopback_client(base_url=urls[0], timeout=60) as one,
            loopback_client(base_url=urls[1], timeout=60) as other,
        ):
            for turn in range(TURNS):
                await create_and_end((one, other), f"{name}-{turn}")

    async def create_and_end(line: Line, name: str) -> None:
        """Create a task of some key; then have it succeed, or cancel it, or leave it open."""
        customer, _ = rng.choice(keys)
        wanted = {"model": MODEL, "input": {"prompt": "a lighthouse"}}
        answer = await sent(line, customer, "/v2/task/create", key=name, json=wanted)
        if answer.status_code == 402:
            assert code_of(answer) == "key_limit_exceeded"
            counts["refused"] += 1
            return
        request_id = ok(answer)["request_id"]
        counts["created"] += 1
        if rng.random() < 0.25:
            body = provider.success(request_id, event_id=f"evt_{request_id}", sequence=1)
            ok(await sent(line, owner, "/v2/callback", content=body, headers=signed(body)))
        elif rng.random() < 0.9:
            await sent(line, customer, f"/v2/task/{request_id}/cancel")

    async def kill_in_turn() -> None:
        turn = 0
        while not is_over:
            victim = two_services[turn % 2]
            await trio.to_thread.run_sync(victim.kill)
            counts["killed"] += 1
            await trio.to_thread.run_sync(victim.start)
            turn += 1

    with trio.fail_after(900):
        async with trio.open_nursery() as killing:
            killing.start_soon(kill_in_turn)
            async with trio.open_nursery() as nursery:
                for name in range(CONNECTIONS):
                    nursery.start_soon(connection, name)
            is_over = True
    assert min(counts[each] for each in ("killed", "refused", "created")) > 0, counts
    database_url = two_services[0].database_url

    # Whatever is open ends; then each key may spend exactly the rest of its limit, and not a task more.
    for request_id, task in (await owner.tasks()).items():
        if task["status"] not in ENDED:
            # A result may come first.
            assert (await owner.as_key("POST", f"/v2/task/{request_id}/cancel")).status_code in {200, 409}
    await owner.all_ended()
    _, captured = spent_over_time(database_url, owner.account_id)
    for customer, key_id in keys:
        room = LIMIT - captured[key_id] // MICRO
        statuses = [(await customer.create(MODEL)).status_code for _ in range(room + 1)]
        assert statuses == [200] * room + [402]
    spent, _ = spent_over_time(database_url, owner.account_id)
    assert {key_id: max(each) for key_id, each in spent.items()} == {key_id: LIMIT * MICRO for _, key_id in keys}
    listed = ok(await owner.as_session("GET", KEYS))["data"]
    shown = {key["api_key_id"]: Decimal(key["spent"]) for key in listed if key["limit"]}
    assert shown == {key_id: Decimal(LIMIT) for _, key_id in keys}
    assert two_services[0].audit() == []
