"""The asset sweeper: what expires is removed, what is used or claimed remains, and faults lose nothing."""

from __future__ import annotations

import base64
import itertools
import random
from datetime import datetime, timedelta

import msgspec
import pytest
import trio
import trio.testing
from tests.clients import until

from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import ExpireAssets, Host, RecordHosting
from holdfast.actors.workers import asset_sweeper
from holdfast.actors.workers.asset_sweeper import AssetSweeper, Swept
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.task import (
    HostingState,
    OutputItem,
)
from holdfast.ledger.tasks.transitions import HostingFailure, HostOutputs
from holdfast.ledger.values import new_id
from holdfast.persistence.claims.contents import LEASE_S, RESULT_CLAIM_S, RESULT_CLAIM_USABLE_S, ContentClaims
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.records.rows import AssetRow, NewTaskRow
from holdfast.providers.storage.sniffing import EXTENSIONS
from holdfast.telemetry.reports.causes import describe
from holdfast.telemetry.reports.conditions import ignore_outcome

from .asset_setup import RETENTION_S, TYPE, MessageRecorder, Setup, hash_of, picture


def host(*pictures: bytes, request_id: str = "task_other") -> Host:
    outputs = tuple(
        Output(index=index, data=base64.b64encode(data).decode()) for index, data in enumerate(pictures)
    )
    return Host("studio", HostOutputs(request_id, 1, 1, outputs), Hosting(retention_s=RETENTION_S), 30.0)


async def hosting_worker(setup: Setup, messages: MessageRecorder) -> WorkerRef:
    post = WorkerRef("hosting")
    worker = HostingWorker(
        post,
        downloads=None,  # type: ignore[arg-type]  # all outputs are inline
        origins_of=lambda _: frozenset(),
        store=setup.store,
        claims=ContentClaims(setup.system.database.keep_writer()),
        incoming_dir=setup.folder / "incoming",
        tasks=messages,
        take_outcome=ignore_outcome,
        now=setup.now,
    )
    await setup.nursery.start(lambda *, task_status: worker.run(task_status=task_status))
    return post


def test_every_type_has_its_own_file_extension() -> None:
    assert len(set(EXTENSIONS.values())) == len(EXTENSIONS)


async def test_expired_results_are_removed_and_the_charge_stays(setup: Setup) -> None:
    first, second = picture(1), picture(2)
    request_id = await setup.task(first, second)
    sweeper = setup.sweeper()
    setup.passes(RETENTION_S - 1)
    assert await sweeper.sweep() == Swept(0, 0)
    setup.passes(2)
    assert await sweeper.sweep() == Swept(1, 2)
    after = await setup.row(request_id)
    assert (after.status, after.state.cost_micro, len(after.state.output)) == ("succeeded", 700_000, 2)
    assert (after.state.hosting.status, after.state.hosting.final_url_ready) == ("expired", False)
    assert (await setup.count("assets"), await setup.count("contents"), await setup.count("usage_entries")) == (
        0,
        0,
        1,
    )
    assert not await setup.has(first)
    assert not await setup.has(second)
    assert await sweeper.sweep() == Swept(0, 0)


async def test_a_task_that_cannot_be_swept_delays_no_other(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asset_sweeper, "TASKS_MAX", 1)
    refused = await setup.task(picture(1))
    setup.passes(1)
    await setup.task(picture(2))
    setup.passes(RETENTION_S)
    child = setup.tasks.child(refused)
    child.put_in_quarantine(describe(RuntimeError("its row is unreadable")), for_s=3600)
    sweeper = setup.sweeper()
    assert [await sweeper.sweep() for _ in range(4)] == [Swept(0, 0), Swept(1, 1), Swept(0, 0), Swept(0, 0)]
    assert await setup.has(picture(1))
    child.release("readable again")
    assert [await sweeper.sweep() for _ in range(2)] == [Swept(0, 0), Swept(1, 1)]


async def test_content_shared_with_another_task_is_retained(setup: Setup) -> None:
    shared = picture(1)
    await setup.task(shared)
    setup.passes(RETENTION_S / 2)
    later = await setup.task(shared)
    setup.passes(RETENTION_S / 2 + 1)
    sweeper = setup.sweeper()
    assert await sweeper.sweep() == Swept(1, 0)
    assert await setup.has(shared)
    assert (await setup.row(later)).state.hosting.final_url_ready
    setup.passes(RETENTION_S / 2)
    assert await sweeper.sweep() == Swept(1, 1)
    assert not await setup.has(shared)


async def test_content_without_an_asset_is_removed_after_its_claim(setup: Setup) -> None:
    orphan = picture(1)
    await setup.put(orphan)
    sweeper = setup.sweeper()
    setup.passes(RESULT_CLAIM_S)
    assert await sweeper.sweep() == Swept(0, 0)
    setup.passes(1)
    assert await sweeper.sweep() == Swept(0, 1)
    assert not await setup.has(orphan)


async def test_an_expiry_reported_by_several_processes_is_written_once(setup: Setup) -> None:
    request_id = await setup.task(picture(1))
    before = await setup.row(request_id)
    setup.passes(RETENTION_S + 1)
    sweepers = [setup.sweeper() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for sweeper in sweepers:
            nursery.start_soon(sweeper.sweep)
    after = await setup.row(request_id)
    assert (after.version, after.state.hosting.status) == (before.version + 1, "expired")
    assert await setup.count("contents") == 0


async def test_only_ended_tasks_without_results_drop_their_assets(setup: Setup) -> None:
    failed = await setup.task(picture(1), status="failed")
    running = await setup.task(picture(2), status="processing")
    for request_id in (failed, running):
        await setup.tasks.ref(request_id).ask(ExpireAssets())
    assert await setup.count("assets") == 1
    assert (await setup.row(running)).state.hosting.status == "ready"


async def test_a_failed_removal_is_retried_and_then_forgotten(setup: Setup) -> None:
    await setup.put(picture(1))
    setup.passes(RESULT_CLAIM_S + 1)
    sweeper = setup.sweeper()
    setup.store.trouble = "the disk has gone"
    assert await sweeper.sweep() == Swept(0, 0)
    assert not await setup.claim(picture(1))
    setup.store.trouble = None
    setup.passes(10)
    assert await sweeper.sweep() == Swept(0, 1)
    assert await setup.claim(picture(1))


async def test_a_late_removal_is_left_to_the_next_lease(setup: Setup) -> None:
    await setup.put(picture(1))
    setup.passes(RESULT_CLAIM_S + 1)
    slow, other = setup.sweeper(), setup.sweeper()
    setup.store.trouble = "the disk has gone"
    await slow.sweep()
    setup.store.trouble = None
    setup.passes(LEASE_S / 2 + 1)
    assert await slow.sweep() == Swept(0, 0)
    assert await setup.has(picture(1))
    setup.passes(LEASE_S / 2)
    assert await other.sweep() == Swept(0, 1)


async def test_storing_content_waits_for_its_removal(setup: Setup) -> None:
    shared = picture(1)
    await setup.task(shared)
    setup.passes(RETENTION_S + 1)
    messages = MessageRecorder()
    hosting = await hosting_worker(setup, messages)
    setup.store.go_on = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setup.sweeper().sweep)
        await setup.store.begun.wait()
        hosting.tell(host(shared))
        _, received = await messages.next()
        (refused,) = received.results
        assert isinstance(refused, HostingFailure)
        assert not refused.final
        setup.store.go_on.set()
    hosting.tell(host(shared))
    _, received = await messages.next()
    (stored,) = received.results
    assert isinstance(stored, OutputItem)
    assert stored.expires_at == setup.at + timedelta(seconds=RETENTION_S)
    assert await setup.has(shared)


async def test_content_claimed_before_the_sweep_is_retained(setup: Setup) -> None:
    shared = picture(1)
    await setup.task(shared)
    setup.passes(RETENTION_S + 1)
    messages = MessageRecorder()
    hosting = await hosting_worker(setup, messages)
    hosting.tell(host(shared))
    await messages.next()
    assert await setup.sweeper().sweep() == Swept(1, 0)
    assert await setup.has(shared)


async def test_storage_faults_are_reported_without_details(setup: Setup) -> None:
    messages = MessageRecorder()
    hosting = await hosting_worker(setup, messages)
    (setup.folder / "data").write_text("in the way")
    hosting.tell(host(picture(1)))
    _, received = await messages.next()
    (failure,) = received.results
    assert (failure.final, failure.message) == (False, "storage: cannot be written at the moment")


async def test_a_result_reported_long_after_storing_gets_no_asset(setup: Setup) -> None:
    base = setup.new_task()
    transferring = HostingState(
        status="transferring",
        round=1,
        wanted=(Output(index=0),),
        expected=1,
        deadline_at=setup.at + timedelta(days=2),
    )
    state = msgspec.structs.replace(base.state, attempt=1, dispatch="acked", hosting=transferring)
    task = msgspec.structs.replace(base, status="processing", state=state)
    assert isinstance(await setup.system.journal.write(Unit(rows=(NewTaskRow(task),))), Committed)
    data = picture(1)
    result = OutputItem(
        index=0, asset_id=new_id("asset"), sha256=hash_of(data), bytes=len(data), content_type=TYPE,
        expires_at=setup.at + timedelta(seconds=task.request.terms.hosting.retention_s),
        width=2, height=2, duration_s=None,
    )  # fmt: skip
    setup.passes(RESULT_CLAIM_USABLE_S + 1)
    await setup.tasks.ref(task.request_id).ask(RecordHosting(1, 1, (result,)))
    assert await setup.row(task.request_id) == task
    assert await setup.count("assets") == 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_concurrent_storing_and_sweeping_never_lose_a_file(setup: Setup, seed: int) -> None:
    rng = random.Random(seed)
    pictures = [picture(number) for number in range(3)]
    under_way: dict[object, datetime] = {}
    removed: list[int] = []

    async def store_and_drop() -> None:
        # Until contents were removed and stored again often enough to have met.
        rounds = itertools.count()
        while next(rounds) < 8 or sum(removed) <= len(pictures):
            data, me = rng.choice(pictures), object()
            under_way[me] = setup.at
            if await setup.claim(data):
                await trio.to_thread.run_sync(setup.store.put, data, hash_of(data), "png")
                asset_id = new_id("asset")
                row = AssetRow(
                    setup.account_id, new_id("task"), 0, asset_id, hash_of(data), 1, TYPE, setup.at, setup.at
                )
                assert isinstance(await setup.system.journal.write(Unit(rows=(row,))), Committed)
                del under_way[me]
                await trio.sleep(rng.random() * 0.05)
                assert await setup.has(data), "a row without its file"
                await setup.change("delete from assets where asset_id = :id", id=asset_id)
            else:
                del under_way[me]
            await trio.sleep(rng.random() * 0.1)

    async def let_time_pass() -> None:
        # A hundred seconds at a time, and within what the design rests on: rows follow claims, removals end.
        while True:
            await trio.sleep(0.0005)
            oldest = min(under_way.values(), default=setup.at)
            if not setup.store.removing and setup.at - oldest < timedelta(seconds=RESULT_CLAIM_USABLE_S):
                setup.passes(100)

    async def keep_sweeping(sweeper: AssetSweeper) -> None:
        while True:
            removed.append((await sweeper.sweep()).removed)
            await trio.sleep(0.001)

    async with trio.open_nursery() as background:
        background.start_soon(let_time_pass)
        for _ in range(2):
            background.start_soon(keep_sweeping, setup.sweeper())
        async with trio.open_nursery() as storing:
            for _ in range(4):
                storing.start_soon(store_and_drop)

        async def is_empty() -> bool:
            return not await setup.count("contents")

        # Unreferenced content is removed in the end.
        await until(is_empty)
        background.cancel_scope.cancel()
    assert sum(removed) > len(pictures)
    assert not any([await setup.has(data) for data in pictures])
