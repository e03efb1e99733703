"""A program with a key that manages others: over HTTP, by each layer, and with what a leaked one can do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from tests.clients import IMAGE, Customer, loopback_client, ok, refused

from .service_process import Service

KEYS = "/v2/control/api-keys"
WEBHOOKS = "/v2/control/webhooks"
DAY = {"credits": "1.00", "window": "day"}
MANAGES = ["tasks:read", "tasks:write", "keys:read", "keys:write"]


@dataclass
class Program:
    """A program that has one key and no session."""

    http: httpx2.AsyncClient
    secret: str
    key_id: str

    async def call(self, method: str, path: str, body: object = None, **more: Any) -> httpx2.Response:
        """Send a request with the key."""
        headers = {"Authorization": f"Bearer {self.secret}", **more.pop("headers", {})}
        sent: dict[str, Any] = {} if body is None else {"json": body}
        return await self.http.request(method, path, headers=headers, **sent, **more)

    async def make(self, **terms: object) -> Program:
        """Make a key, for another program."""
        created = ok(await self.call("POST", KEYS, terms))
        assert created["created_by"] == self.key_id
        return Program(self.http, created["api_key"], created["api_key_id"])


async def program_of(customer: Customer, **terms: object) -> Program:
    """Have the owner of an account make a key for a program."""
    created = ok(await customer.as_session("POST", KEYS, terms))
    assert created["created_by"] is None
    return Program(customer.http, created["api_key"], created["api_key_id"])


async def customer_of(http: httpx2.AsyncClient) -> Customer:
    customer = Customer(http)
    await customer.sign_in()
    await customer.recharge("20.00")
    return customer


async def test_a_program_makes_limits_pauses_and_revokes_keys(shared_service: Service) -> None:
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        owner = await customer_of(http)
        manager = await program_of(owner, name="manager", scopes=MANAGES)
        shop = await manager.make(name="shop", models=["studio/*"], limit=DAY)
        task = ok(await shop.call("POST", "/v2/task/create", {"model": "studio/image-1", "input": IMAGE}))
        assert ok(await shop.call("GET", f"/v2/task/{task['request_id']}"))["api_key_id"] == shop.key_id
        listed = {key["api_key_id"]: key for key in ok(await manager.call("GET", KEYS))["data"]}
        assert (listed[shop.key_id]["name"], listed[shop.key_id]["created_by"]) == ("shop", manager.key_id)
        assert listed[shop.key_id]["limit"] == DAY
        assert shop.secret not in (await manager.call("GET", KEYS)).text
        path = f"{KEYS}/{shop.key_id}"
        for limit in ({"credits": "0.00001", "window": "total"}, DAY):
            assert ok(await manager.call("PATCH", path, {"limit": limit}))["limit"] == limit
            again = await shop.call("POST", "/v2/task/create", {"model": "studio/image-1", "input": IMAGE})
            assert (again.status_code == 402) == (limit is not DAY), again.text
        assert ok(await manager.call("PATCH", path, {"paused": True}))["paused"] is True
        refused(await shop.call("GET", "/v2/task/list"), 401, "api_key_paused")
        ok(await manager.call("PATCH", path, {"paused": False}))
        ok(await shop.call("GET", "/v2/task/list"))
        assert ok(await manager.call("DELETE", path))["made_keys"] == []
        refused(await shop.call("GET", "/v2/task/list"), 401, "invalid_api_key")
        entries = ok(await owner.as_session("GET", "/v2/control/history"))["data"]
        assert {entry["api_key_id"] for entry in entries} == {manager.key_id}
        assert {entry["subject"] for entry in entries} == {shop.key_id}
        whats = [entry["what"] for entry in entries]
        assert (whats[0], whats[-1], len(whats)) == ("api_key_revoked", "api_key_created", 6)
        other = ok(await owner.as_session("GET", f"/v2/control/history?api_key_id={shop.key_id}"))
        assert other["data"] == []


async def test_a_program_manages_webhooks_limits_and_orders(shared_service: Service) -> None:
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        owner = await customer_of(http)
        scopes = ["webhooks:write", "account:read", "limits:write", "orders:write", "files:write"]
        program = await program_of(owner, scopes=scopes)
        hook = {"url": f"{shared_service.url}/nowhere", "events": ["payment.credited"]}
        refused(await program.call("POST", WEBHOOKS, {**hook, "events": ["*"]}), 403, "insufficient_scope")
        webhook = ok(await program.call("POST", WEBHOOKS, hook))
        path = f"{WEBHOOKS}/{webhook['webhook_id']}"
        refused(await program.call("PATCH", path, {"events": ["task.*"]}), 403, "insufficient_scope")
        assert ok(await program.call("PATCH", path, {"enabled": False}))["enabled"] is False
        ok(await program.call("PATCH", path, {"enabled": True}))
        event = ok(await program.call("POST", f"{path}/test"))
        ok(await program.call("POST", f"{path}/deliveries/{event['event_id']}/resend"))
        assert ok(await program.call("GET", f"{path}/deliveries"))["data"][0]["event_id"] == event["event_id"]
        before = ok(await program.call("GET", "/v2/control/webhook-secret"))
        assert ok(await program.call("POST", "/v2/control/webhook-secret/rotate")) != before
        assert ok(await program.call("DELETE", path))["deleted"] is True
        limits = {"limits": [{"credits": "5.00", "window": "month"}]}
        assert ok(await program.call("PUT", "/v2/control/limits", limits))["limits"][0]["credits"] == "5.00"
        order = ok(
            await program.call(
                "POST", "/v2/control/payments/sandbox", {"amount": "2.00"}, headers={"Idempotency-Key": "one"}
            )
        )
        again = await program.call(
            "POST", "/v2/control/payments/sandbox", {"amount": "2.00"}, headers={"Idempotency-Key": "one"}
        )
        assert ok(again)["order_id"] == order["order_id"]
        # Its account:read includes that of orders.
        assert ok(await program.call("GET", f"/v2/control/payments/{order['order_id']}"))["status"] == "pending"
        file = ok(await program.call("POST", "/v2/control/files", content=b"text", headers={"Content-Type": "x/y"}))
        assert ok(await program.call("DELETE", f"/v2/files/{file['file_id']}"))["deleted"] is True
        # It spends nothing, reads no task, and makes no key.
        created = await program.call("POST", "/v2/task/create", {"model": "studio/image-1", "input": IMAGE})
        refused(created, 403, "insufficient_scope")
        refused(await program.call("GET", "/v2/task/list"), 403, "insufficient_scope")
        refused(await program.call("POST", KEYS, {}), 403, "insufficient_scope")
        entries = ok(await program.call("GET", "/v2/control/history"))["data"]
        assert [entry["what"] for entry in entries][::-1] == [
            "webhook_created", "webhook_changed", "webhook_changed", "webhook_tested", "event_resent",
            "webhook_secret_rotated", "webhook_deleted", "limits_set", "order_created",
        ]  # fmt: skip
        assert {entry["api_key_id"] for entry in entries} == {program.key_id}


async def test_no_key_gains_anything_by_making_keys(shared_service: Service) -> None:
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        owner, stranger = await customer_of(http), await customer_of(http)
        soon = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        bounds: dict[str, Any] = {"models": ["studio/image-1"], "expires_at": soon, "limit": DAY}
        mine = await program_of(owner, scopes=MANAGES, **bounds)
        owners = await program_of(owner, scopes=MANAGES)
        strangers = await program_of(stranger, scopes=MANAGES)
        later = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        excesses: list[tuple[dict[str, Any], str, str]] = [
            ({"scopes": [*MANAGES, "account:read"]}, "insufficient_scope", "scopes"),
            ({"models": None}, "exceeds_calling_key", "models"),
            ({"models": ["studio/*"]}, "exceeds_calling_key", "models"),
            ({"expires_at": None}, "exceeds_calling_key", "expires_at"),
            ({"expires_at": later}, "exceeds_calling_key", "expires_at"),
            ({"limit": None}, "exceeds_calling_key", "limit"),
            ({"limit": {"credits": "1.01", "window": "day"}}, "exceeds_calling_key", "limit"),
        ]
        for wrong, code, param in excesses:
            error = refused(await mine.call("POST", KEYS, {**bounds, **wrong}), 403, code)
            assert error["param"] == param
        child = await mine.make(**{**bounds, "scopes": MANAGES, "limit": {"credits": "0.50", "window": "day"}})
        for term in ("models", "expires_at", "limit"):
            changed = await mine.call("PATCH", f"{KEYS}/{child.key_id}", {term: None})
            assert refused(changed, 403, "exceeds_calling_key")["param"] == term
        ok(await mine.call("PATCH", f"{KEYS}/{child.key_id}", {"limit": DAY}))
        # It gave all that it had. No key changes itself, its maker, or what others have made.
        error = refused(await mine.call("POST", KEYS, {**bounds, "limit": DAY}), 403, "exceeds_calling_key")
        assert error["message"].endswith("0.00 is left of its limit of 0.00 a day.")
        for by, target in ((mine, mine), (child, mine), (child, child), (mine, owners), (owners, mine)):
            for method, body in (("PATCH", {"limit": None}), ("PATCH", {"name": "x"}), ("DELETE", None)):
                tried = await by.call(method, f"{KEYS}/{target.key_id}", body)
                refused(tried, 403, "not_made_by_key")
        for target in (mine, owners, child):
            gone = await strangers.call("DELETE", f"{KEYS}/{target.key_id}?made_keys=true")
            refused(gone, 404, "api_key_not_found")
            refused(await strangers.call("PATCH", f"{KEYS}/{target.key_id}", {}), 404, "api_key_not_found")
        refused(await mine.call("DELETE", f"{KEYS}/{child.key_id}?made_keys=perhaps"), 400, "invalid_parameter")
        # By each layer the key that was made is bound as its maker is, and one without the scope does nothing.
        reader = await owners.make(scopes=["keys:read"])
        clip = ok(await http.get("/v1/models/studio/clip-1"))["example_input"]
        creates: list[tuple[str, dict[str, Any]]] = [
            ("/v2/task/create", {"model": "studio/clip-1", "input": clip}),
            ("/v1/audio/speech", {"model": "studio/tone-1", "input": "rain", "duration": 1}),
            ("/v1/videos", {"model": "studio/clip-1", "prompt": "waves at night", "seconds": "12"}),
            ("/replicate/v1/models/studio/clip-1/predictions", {"input": clip}),
        ]
        for path, body in creates:
            for by, code in ((child, "model_not_allowed"), (reader, "insufficient_scope")):
                denied = await by.call("POST", path, body)
                said = denied.json()
                assert (path, denied.status_code, said.get("error", said).get("code")) == (path, 403, code)
        ok(await owner.as_session("PATCH", f"{KEYS}/{mine.key_id}", {"paused": True}))
        refused(await mine.call("POST", KEYS, bounds), 401, "api_key_paused")
        refused(await mine.call("DELETE", f"{KEYS}/{child.key_id}"), 401, "api_key_paused")


@pytest.mark.slow
async def test_a_leaked_key_is_revoked_with_all_that_came_from_it(shared_service: Service) -> None:
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        owner = await customer_of(http)
        leaked = await program_of(owner, scopes=MANAGES)
        hidden = await leaked.make(scopes=MANAGES)
        deeper = await hidden.make(scopes=["tasks:read"])
        # Its finder hides the key in between.
        ok(await leaked.call("DELETE", f"{KEYS}/{hidden.key_id}"))
        ok(await owner.as_session("DELETE", f"{KEYS}/{leaked.key_id}"))
        # Without more, what it has made works on.
        ok(await deeper.call("GET", "/v2/task/list"))
        revoked = ok(await owner.as_session("DELETE", f"{KEYS}/{leaked.key_id}?made_keys=true"))
        assert revoked["made_keys"] == [deeper.key_id]
        refused(await deeper.call("GET", "/v2/task/list"), 401, "invalid_api_key")
        again = ok(await owner.as_session("DELETE", f"{KEYS}/{leaked.key_id}?made_keys=true"))
        assert again == {**revoked, "made_keys": []}
