"""Paging through lists over real HTTP while the account changes."""

from __future__ import annotations

import trio

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Service, ok


async def test_pages_list_every_task_once_during_writes(quiet_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(60):
        ada = await new_customer(quiet_service, credit="100.00")
        before = [ok(await ada.create(MODEL))["request_id"] for _ in range(30)]
        later: list[str] = []
        seen: list[str] = []

        async def go_on() -> None:
            for request_id in before[::2]:
                later.append(ok(await ada.create(MODEL))["request_id"])
                ok(await ada.call("POST", f"/v2/task/{request_id}/cancel"))

        async def walk() -> None:
            query = "?limit=4"
            while query:
                page = ok(await ada.call("GET", f"/v2/task/list{query}"))
                seen.extend(task["request_id"] for task in page["data"])
                query = f"?limit=4&cursor={page['next_cursor']}" if page["next_cursor"] else ""

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            nursery.start_soon(walk)
        assert len(seen) == len(set(seen))
        assert [request_id for request_id in seen if request_id in before] == before[::-1]
        # What came in between stands before what was there, if it is seen at all.
        assert set(seen[: len(seen) - len(before)]) <= set(later)
        newest = ok(await ada.call("GET", "/v2/task/list?limit=100"))["data"]
        assert [task["request_id"] for task in newest] == [*later[::-1], *before[::-1]]
