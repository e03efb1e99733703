"""Threads and reads are shared in turn: however many jobs one caller has, another waits for few of them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import pytest
import sqlalchemy
import trio
import trio.testing

from holdfast.actors.runtime.faults import ShareExceeded
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.fair_shares import (
    READS_PER_CALLER_MAX,
    WRONG_TRIES_AT_ONCE,
    WRONG_TRY_S,
    FairShares,
    FairThreads,
    TokenTries,
)
from holdfast.http.kit.sending import SendRate
from holdfast.ledger.links import sign_link
from holdfast.ledger.tasks.inputs import INPUT_SMALL_BYTES_MAX
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.lookups import GroupedLookups, Lookup

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

T = TypeVar("T")


async def test_callers_take_turns() -> None:
    threads, order, gate = FairThreads(threads_max=1, jobs_per_caller_max=5), [], threading.Event()

    async def work(caller: str, name: str) -> None:
        def run() -> None:
            gate.wait(60)
            order.append(name)

        await threads.run(caller, run)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(work, "greedy", f"greedy {number}")
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(work, "other", "other")
        await trio.testing.wait_all_tasks_blocked(0.01)
        gate.set()
    assert order.index("other") == 1
    assert len(order) == 6


async def test_a_caller_with_too_many_jobs_is_refused_and_others_served() -> None:
    threads, gate = FairThreads(threads_max=2, jobs_per_caller_max=2), threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(threads.run, "greedy", lambda: gate.wait(60))
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(ShareExceeded):
            await threads.run("greedy", lambda: None)
        assert await threads.run("other", lambda: "served") == "served"
        gate.set()
    assert await threads.run("greedy", lambda: "served") == "served"


async def test_the_jobs_of_one_caller_wait_for_each_other() -> None:
    threads, done = FairThreads(), []

    async def work(number: int) -> None:
        done.append(await threads.run("busy", lambda: number))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(work, number)
    assert sorted(done) == [*range(100)]


async def test_a_caller_without_jobs_takes_no_memory() -> None:
    threads = FairThreads()
    with trio.CancelScope() as scope:
        scope.cancel()
        await threads.run("gone", lambda: None)
    with pytest.raises(ZeroDivisionError):
        await threads.run("broken", lambda: 1 / 0)
    for number in range(20):
        assert await threads.run("gone", partial(abs, number)) == number
    assert threads._shares._shares == {}


class HeldRows:
    """A database whose reads and lookups last until they are released, and are then refused."""

    def __init__(self) -> None:
        self.begun = 0
        self.are_all_begun = trio.Event()
        self.released = trio.Event()

    async def read(self, _query: Callable[[sqlalchemy.Connection], T], /) -> T:
        self.begun += 1
        if self.begun == READS_PER_CALLER_MAX:
            self.are_all_begun.set()
        await self.released.wait()
        raise DatabaseAway("released")

    scan = read


@pytest.fixture
def held_rows(monkeypatch: pytest.MonkeyPatch) -> HeldRows:
    return hold_lookups(HeldRows(), monkeypatch)


def hold_lookups(rows: HeldRows, monkeypatch: pytest.MonkeyPatch) -> HeldRows:
    async def look_up(_lookups: GroupedLookups, *_lookup: Lookup[Any, Any]) -> None:
        await rows.read(lambda _rows: None)

    monkeypatch.setattr(GroupedLookups, "run", look_up)
    return rows


async def test_lookups_of_one_caller_do_not_fill_every_group(stage: Stage, held_rows: HeldRows) -> None:
    rows = held_rows
    statuses: list[int] = []

    async def call(as_caller: Callable[[str, str], Awaitable[httpx2.Response]], path: str) -> None:
        statuses.append((await as_caller("GET", path)).status_code)

    stage.know_key()
    async with trio.open_nursery() as nursery:
        for _ in range(READS_PER_CALLER_MAX + 3):
            nursery.start_soon(call, stage.as_key, "/v2/task/task_1")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        nursery.start_soon(call, stage.as_session, "/v2/control/account")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX + 1
        rows.released.set()
    assert statuses == [503] * (READS_PER_CALLER_MAX + 4)


async def test_reads_of_one_caller_do_not_take_every_connection(api: Api) -> None:
    assert (await api.as_session("GET", "/v2/control/api-keys")).status_code == 200
    rows = HeldRows()
    api.change(database=rows, lookups=api.deps.access.lookups)
    async with trio.open_nursery() as nursery:
        for _ in range(READS_PER_CALLER_MAX + 3):
            nursery.start_soon(api.as_session, "GET", "/v2/control/api-keys")
        await rows.are_all_begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        rows.released.set()


@pytest.mark.parametrize("kind", ["assets", "files"])
async def test_signed_links_of_one_address_share_its_reads(stage: Stage, kind: str) -> None:
    rows, content_id = HeldRows(), "file_" + "1" * 32
    stage.change(database=rows)
    query = sign_link(content_id, stage.now + timedelta(hours=1), stage.deps.urls.link_keys[0])
    path = f"/v2/{kind}/{content_id}{'' if kind == 'assets' else '/content'}?{query}"

    async def fetch() -> None:
        assert (await stage.call("GET", path)).status_code == 503

    async with trio.open_nursery() as nursery:
        for _ in range(READS_PER_CALLER_MAX + 3):
            nursery.start_soon(fetch)
        await rows.are_all_begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        rows.released.set()


async def test_large_creates_of_one_account_do_not_take_every_connection(stage: Stage) -> None:
    stage.know_key()
    rows = HeldRows()
    stage.change(database=rows)
    body = {"model": "studio/edit-1", "input": {"prompt": "x", "image": "A" * INPUT_SMALL_BYTES_MAX}}

    async def create() -> None:
        assert (await stage.as_key("POST", "/v2/task/create", body)).status_code == 503

    async with trio.open_nursery() as nursery:
        for _ in range(READS_PER_CALLER_MAX + 3):
            nursery.start_soon(create)
        await rows.are_all_begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        rows.released.set()


async def test_invented_credentials_of_one_origin_share_its_reads(stage: Stage, held_rows: HeldRows) -> None:
    rows = held_rows
    stage.change(database=rows)

    async def call(sent: dict[str, str], path: str) -> None:
        assert (await stage.call("GET", path, headers=sent)).status_code == 503

    async with trio.open_nursery() as nursery:
        for number in range(READS_PER_CALLER_MAX):
            invented = {"Authorization": f"Bearer hst_{number:043}"}
            nursery.start_soon(call, invented, "/v2/control/account")
            nursery.start_soon(call, invented, "/ops/api/session")
            nursery.start_soon(call, {"Cookie": f"holdfast_operator={number:043}"}, "/ops/api/session")
            key = mint_api_key(stage.account_id, live=False).secret
            nursery.start_soon(call, {"Authorization": f"Bearer {key}"}, "/v2/task/list")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        rows.released.set()


async def test_a_verified_session_has_the_share_of_its_account(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await api.as_session("GET", "/v2/control/account")).status_code == 200
    rows = hold_lookups(HeldRows(), monkeypatch)
    async with trio.open_nursery() as nursery:
        for number in range(READS_PER_CALLER_MAX + 1):
            invented = {"Authorization": f"Bearer hst_{number:043}"}
            nursery.start_soon(partial(api.call, "GET", "/v2/control/account", headers=invented))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX
        nursery.start_soon(api.as_session, "GET", "/v2/control/account")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rows.begun == READS_PER_CALLER_MAX + 1
        rows.released.set()


async def test_guesses_of_all_callers_together_are_paced(autojump_clock: trio.testing.MockClock) -> None:
    tries = TokenTries()
    for number in range(10 * WRONG_TRIES_AT_ONCE):
        assert not await tries.try_once(f"origin {number}", lambda: False)
    assert trio.current_time() == pytest.approx((9 * WRONG_TRIES_AT_ONCE - 1) * WRONG_TRY_S)
    # The right token uses nothing up, and an hour later nothing is held against anybody.
    await trio.sleep(3600)
    begun = trio.current_time()
    for _ in range(10 * WRONG_TRIES_AT_ONCE):
        assert await tries.try_once("operator", lambda: True)
    assert trio.current_time() == begun


async def test_the_right_token_waits_for_one_guess_of_each_other_caller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries, guessed = TokenTries(), list[str]()

    async def guess(caller: str) -> None:
        await tries.try_once(caller, lambda: False)
        guessed.append(caller)

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(guess, f"origin {number % 3}")
        await trio.sleep(100 * WRONG_TRY_S)
        before = len(guessed)
        assert await tries.try_once("operator", lambda: True)
        assert len(guessed) - before <= 4
        nursery.cancel_scope.cancel()


async def test_a_job_waits_for_its_turn_only_so_long(autojump_clock: trio.testing.MockClock) -> None:
    shares = FairShares(at_once_max=1, timeout_s=8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run, "slow", trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ShareExceeded, match="take too long"):
            await shares.run("slow", never)
        assert trio.current_time() == 8
        await shares.run("other", trio.lowlevel.checkpoint)
        nursery.cancel_scope.cancel()
    await shares.run("slow", trio.lowlevel.checkpoint)
    assert shares._shares == {}


async def test_a_turn_passes_on_in_order_and_not_to_a_job_that_has_gone() -> None:
    shares, order, released = FairShares(at_once_max=1), list[int](), trio.Event()

    async def run(number: int, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await shares.run("caller", partial(note, number))

    async def note(number: int) -> None:
        order.append(number)
        await released.wait()

    async with trio.open_nursery() as nursery:
        scopes = []
        for number in range(4):
            scopes.append(await nursery.start(run, number))
            await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        released.set()
    assert order == [0, 2, 3]
    assert shares._shares == {}


@pytest.mark.parametrize("others", [0, 1])
async def test_a_job_cancelled_as_its_turn_comes_passes_the_turn_on(others: int) -> None:
    shares, done, began = FairShares(at_once_max=1), list[str](), trio.Event()

    async def first() -> None:
        await began.wait()
        # The client of the job that is next is gone in the moment in which this one ends.
        gone.cancel()

    async def run(name: str, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await shares.run("caller", partial(note, name))

    async def note(name: str) -> None:
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run, "caller", first)
        await trio.testing.wait_all_tasks_blocked()
        gone = await nursery.start(run, "gone")
        for number in range(others):
            await trio.testing.wait_all_tasks_blocked()
            await nursery.start(run, f"other {number}")
        await trio.testing.wait_all_tasks_blocked()
        began.set()
    await shares.run("caller", partial(note, "later"))
    assert done == [*(f"other {number}" for number in range(others)), "later"]
    assert shares._shares == {}


async def never() -> None:
    raise AssertionError("the turn is held")


async def test_events_are_sent_on_demand_at_a_rate(autojump_clock: trio.testing.MockClock) -> None:
    rate = SendRate(3, 10.0)

    def sent(caller: str) -> int:
        """How many of ten are not refused."""
        return sum(rate.refuse(caller) is None for _ in range(10))

    assert (sent("eager"), sent("eager"), sent("other")) == (3, 0, 3)
    refusal = rate.refuse("eager")
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 10)
    await trio.sleep(10)
    assert sent("eager") == 1
    await trio.sleep(25)
    assert sent("eager") == 2
    await trio.sleep(1000)
    assert sent("eager") == 3
    # Nothing is kept of a caller whose turns are all there again.
    assert set(rate._used_until) == {"eager"}
