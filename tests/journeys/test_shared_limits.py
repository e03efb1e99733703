"""Key groups over HTTP: keys that share a budget, whichever API they call, and keys that cannot leave it."""

from __future__ import annotations

import pytest
from tests.clients import ok, refused

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Service
from .test_key_limits import CLIP, KEYS, change, new_key, per

GROUPS = "/v2/control/key-groups"
MANAGER = ["tasks:read", "tasks:write", "keys:read", "keys:write", "limits:write"]


@pytest.mark.usefixtures("one_day")
async def test_the_keys_of_a_group_spend_its_limit_together(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    owner = await new_customer(quiet_service, credit="100.00")
    limits = [{**per("day", "1.00"), "models": [CLIP]}, per("total", "3.00")]
    group = ok(await owner.as_session("POST", GROUPS, {"name": "render farm", "limits": limits}))
    path = f"{GROUPS}/{group['group_id']}"
    first, first_id = await new_key(owner, group_id=group["group_id"])
    second, second_id = await new_key(owner)
    early = ok(await second.create(MODEL))["request_id"]
    assert (await change(owner, second_id, group_id=group["group_id"]))["group_id"] == group["group_id"]
    ok(await first.create(MODEL))
    ok(await second.create(CLIP))
    clip = refused(await first.create(CLIP), 402, "key_limit_exceeded")
    assert (clip["limit"], clip["limit_models"]) == (per("day", "1.00"), [CLIP])
    native = refused(await second.create(MODEL), 402, "key_limit_exceeded")
    assert (native["limit"], native["spent"], native["limit_group_id"]) == (
        per("total", "3.00"),
        "3.00",
        group["group_id"],
    )
    assert "group 'render farm'" in native["message"]
    image = await first.as_key("POST", "/v1/images/generations", {"model": MODEL, "prompt": "a lighthouse"})
    refused(image, 402, "key_limit_exceeded")
    shown = ok(await owner.as_session("GET", path))
    assert [(each["window"], each["spent"]) for each in shown["limits"]] == [("day", "1.00"), ("total", "3.00")]
    assert shown["api_key_ids"] == [first_id, second_id]
    # A release makes room for another key; a revoked one leaves what it holds.
    ok(await second.as_key("POST", f"/v2/task/{early}/cancel"))
    ok(await first.create(MODEL))
    ok(await owner.as_session("DELETE", f"{KEYS}/{second_id}"))
    refused(await first.create(MODEL), 402, "key_limit_exceeded")
    refused(await owner.as_session("DELETE", path), 409, "key_group_in_use")
    changed = ok(await owner.as_session("PATCH", path, {"name": "farm", "limits": [per("month", "4.00")]}))
    assert (changed["name"], changed["limits"][0]["spent"], changed["api_key_ids"]) == ("farm", "3.00", [first_id])
    ok(await first.create(MODEL))
    refused(await first.create(MODEL), 402, "key_limit_exceeded")
    assert (await change(owner, first_id, group_id=None))["group_id"] is None
    ok(await first.create(MODEL))
    assert ok(await owner.as_session("DELETE", path)) == {"group_id": group["group_id"], "deleted": True}
    refused(await owner.as_session("GET", path), 404, "key_group_not_found")
    assert ok(await owner.as_session("GET", GROUPS)) == {"data": []}


async def test_a_key_that_manages_keys_cannot_leave_its_group(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    owner, stranger = await new_customer(quiet_service, credit="100.00"), await new_customer(quiet_service)
    group, other = [
        ok(await owner.as_session("POST", GROUPS, {"limits": [per("total", "2.00")]}))["group_id"] for _ in range(2)
    ]
    foreign = ok(await stranger.as_session("POST", GROUPS, {}))["group_id"]
    manager, manager_id = await new_key(owner, scopes=MANAGER, group_id=group)
    made = ok(await manager.as_key("POST", KEYS, {}))
    assert (made["group_id"], made["created_by"]) == (group, manager_id)
    refused(await manager.as_key("POST", KEYS, {"group_id": other}), 403, "exceeds_calling_key")
    refused(await owner.as_session("POST", KEYS, {"group_id": foreign}), 404, "key_group_not_found")
    for method in ("GET", "PATCH", "DELETE"):
        body: dict[str, object] | None = {"limits": []} if method == "PATCH" else None
        refused(await manager.as_key(method, f"{GROUPS}/{foreign}", body), 404, "key_group_not_found")
    key_path = f"{KEYS}/{made['api_key_id']}"
    for group_id in (None, other):
        refused(await manager.as_key("PATCH", key_path, {"group_id": group_id}), 403, "exceeds_calling_key")
        refused(
            await manager.as_key("PATCH", f"{KEYS}/{manager_id}", {"group_id": group_id}), 403, "not_made_by_key"
        )
    for each in (group, other):
        for limits in ([], [per("total", "2.01")], [per("month", "2.00")]):
            refused(
                await manager.as_key("PATCH", f"{GROUPS}/{each}", {"limits": limits}), 403, "exceeds_calling_key"
            )
    refused(await manager.as_key("DELETE", f"{GROUPS}/{group}"), 409, "key_group_in_use")
    lower = ok(await manager.as_key("PATCH", f"{GROUPS}/{group}", {"limits": [per("total", "1.00")]}))
    assert lower["limits"][0]["credits"] == "1.00"
    ok(await manager.create(MODEL))
    refused(await manager.create(MODEL), 402, "key_limit_exceeded")
    reader, reader_id = await new_key(owner, scopes=["keys:write"], group_id=group)
    refused(await reader.as_key("GET", GROUPS), 403, "insufficient_scope")
    refused(await reader.as_key("POST", GROUPS, {}), 403, "insufficient_scope")
    assert [each["api_key_ids"] for each in ok(await manager.as_key("GET", GROUPS))["data"]] == [
        [],
        [manager_id, made["api_key_id"], reader_id],
    ]
    entries = ok(await owner.as_session("GET", "/v2/control/history"))["data"]
    assert ("key_group_changed", manager_id, group) in [
        (entry["what"], entry["api_key_id"], entry["subject"]) for entry in entries
    ]
