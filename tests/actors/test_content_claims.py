"""Claims of contents: those that arrive during a transaction share the next, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import pytest
import trio
import trio.testing

from holdfast.actors.workers.content_claims import ContentClaims
from holdfast.ledger.clock import utc_now
from holdfast.persistence.claims.contents import Content
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

A, B, C = (Content(letter * 64, "image/png") for letter in "abc")


class SlowRows:
    """A database whose transactions end when the test lets them; ``marked`` contents are not claimed."""

    def __init__(self) -> None:
        self.claims: list[frozenset[Content]] = []
        self.marked = frozenset[Content]()
        self.fault: DatabaseAway | None = None
        self.ending = trio.Semaphore(0)

    async def work(self, _change: Callable[..., Any], contents: Collection[Content], _at: object) -> Any:
        self.claims.append(frozenset(contents))
        await self.ending.acquire()
        if self.fault is not None:
            raise self.fault
        return frozenset(contents) - self.marked


@pytest.fixture
def rows() -> SlowRows:
    return SlowRows()


@pytest.fixture
def claims(rows: SlowRows) -> ContentClaims:
    return ContentClaims(cast(Database, rows), utc_now)


async def test_claims_during_a_transaction_share_the_next(
    rows: SlowRows, claims: ContentClaims, nursery: trio.Nursery
) -> None:
    rows.marked = frozenset({B})
    results: dict[int, bool] = {}

    async def claim(number: int, content: Content) -> None:
        results[number] = await claims.claim(content)

    for number, content in enumerate((A, B, C, C)):
        nursery.start_soon(claim, number, content)
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):
        rows.ending.release()
        await trio.testing.wait_all_tasks_blocked()
    assert rows.claims == [{A}, {B, C}]
    assert results == {0: True, 1: False, 2: True, 3: True}


async def test_a_fault_concerns_the_claims_of_its_transaction_alone(
    rows: SlowRows, claims: ContentClaims, nursery: trio.Nursery
) -> None:
    rows.fault = DatabaseAway("gone")
    failed: list[Content] = []

    async def claim(content: Content) -> None:
        with pytest.raises(DatabaseAway):
            await claims.claim(content)
        failed.append(content)

    for content in (A, B, C):
        nursery.start_soon(claim, content)
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):
        rows.ending.release()
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(failed) == [A, B, C]
    rows.fault = None
    rows.ending.release()
    assert await claims.claim(A)


async def test_a_cancelled_claim_does_not_cancel_those_of_others(
    rows: SlowRows, claims: ContentClaims, nursery: trio.Nursery
) -> None:
    claimed: list[Content] = []
    scopes = {content: trio.CancelScope() for content in (A, B, C)}

    async def claim(content: Content) -> None:
        with scopes[content]:
            assert await claims.claim(content)
            claimed.append(content)

    for content in (A, B, C):
        nursery.start_soon(claim, content)
        await trio.testing.wait_all_tasks_blocked()
    scopes[A].cancel()
    scopes[B].cancel()
    for _ in range(2):
        rows.ending.release()
        await trio.testing.wait_all_tasks_blocked()
    assert rows.claims == [{A}, {B, C}]
    assert claimed[-1] == C
