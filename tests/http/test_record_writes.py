"""What accounts have written as records, beside the journal: one at a time of each, and nothing once refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import pytest
import trio
from sqlalchemy import Connection
from tests.clients import refused

from holdfast.http.kit.fair_shares import FairShares
from holdfast.ledger.values import new_id
from holdfast.persistence.claims.coupons import WRONG_CODES_MAX
from holdfast.persistence.records.event_rows import WebhookDeletedRow

if TYPE_CHECKING:
    from tests.http.api import Api

T = TypeVar("T")

PNG = b"\x89PNG\r\n\x1a\n" + b"not much of a picture"


class HeldWrites:
    """Writes records once they are released, and counts them."""

    def __init__(self, api: Api) -> None:
        self._database = api.database
        self.released = trio.Event()
        self.count = self.now = self.now_most = 0
        api.change(write_record=self.write)

    async def write(self, change: Callable[[Connection], T]) -> T:
        self.count += 1
        self.now += 1
        self.now_most = max(self.now_most, self.now)
        try:
            await self.released.wait()
            return await self._database.record(change)
        finally:
            self.now -= 1


class CountedShares(FairShares):
    """Sets an event when so many jobs have come."""

    def __init__(self, jobs: int) -> None:
        super().__init__(at_once_max=1)
        self._left = jobs
        self.have_come = trio.Event()

    async def begin(self, caller: str) -> None:
        self._left -= 1
        if not self._left:
            self.have_come.set()
        await super().begin(caller)


async def redeem(api: Api, code: str = "NO-SUCH-CODE") -> httpx2.Response:
    return await api.as_session("POST", "/v2/control/coupons/redeem", {"code": code})


async def delete_file(api: Api) -> httpx2.Response:
    return await api.as_key("DELETE", f"/v2/files/{new_id('file')}")


async def delete_webhook(api: Api) -> httpx2.Response:
    api.accounts.answer = WebhookDeletedRow(api.account_id, "wh_1")
    return await api.as_session("DELETE", f"/v2/control/webhooks/{new_id('wh')}")


async def upload(api: Api) -> httpx2.Response:
    return await api.as_key("POST", "/v2/files", files={"file": ("a.png", PNG)})


async def create(api: Api) -> httpx2.Response:
    image = f"file_{'1' * 32}"
    body = {"model": "studio/edit-1", "input": {"prompt": "a lighthouse", "image": image}}
    return await api.as_key("POST", "/v2/task/create", body)


CALLS: list[tuple[Callable[[Any], Awaitable[httpx2.Response]], int]] = [
    (redeem, 404),
    (delete_file, 404),
    (delete_webhook, 200),
    (upload, 200),
    (create, 404),
]


@pytest.mark.parametrize(("call", "status"), CALLS)
async def test_one_record_of_an_account_is_written_at_a_time(
    api: Api, call: Callable[[Any], Awaitable[httpx2.Response]], status: int
) -> None:
    """Sweepers, dispatchers and operators write on the same two connections."""
    writes, shares = HeldWrites(api), CountedShares(6)
    api.change(write_shares=shares)
    replies: list[int] = []

    async def send() -> None:
        replies.append((await call(api)).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(send)
        await shares.have_come.wait()
        assert writes.now_most == 1
        writes.released.set()
    assert replies == [status] * 6


async def test_codes_after_too_many_wrong_ones_write_nothing(api: Api) -> None:
    writes = HeldWrites(api)
    writes.released.set()
    for _ in range(WRONG_CODES_MAX):
        refused(await redeem(api), 404, "coupon_not_found")
    for _ in range(5):
        refused(await redeem(api), 429, "rate_limit_exceeded")
    assert writes.count == WRONG_CODES_MAX
