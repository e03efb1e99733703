"""Expired results, their contents, and concurrent storing of the same content."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trio
import trio.testing
from PIL import Image
from sqlalchemy import Connection, text
from tests.recorded_refs import RecordedRef

from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.dependencies import TaskDependencies
from holdfast.actors.task.messages import DecideReview, ExpireAssets, ReceiveProviderUpdate, RecordHosting, Wake
from holdfast.actors.task.worker_messages import Host
from holdfast.actors.workers.asset_sweeper import AssetSweeper, Swept
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.worker import WorkerRef
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.clock import utc_now
from holdfast.ledger.ids import new_id
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.ledger.tasks.task import (
    HostingState,
    OutputItem,
    Task,
    TaskRequest,
    TaskStatus,
    accept_task,
)
from holdfast.ledger.tasks.transitions import HostingFailure, HostOutputs, ProviderTraits
from holdfast.persistence.claims.contents import CLAIM_S, CLAIM_USABLE_S, LEASE_S, Content, claim_content
from holdfast.persistence.journal.drafts import Prepared
from holdfast.persistence.journal.units import Committed, Unit, UnitResult
from holdfast.persistence.queries.loading import load_task, load_task_and_events
from holdfast.persistence.records.accounts import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.tasks import AssetRow
from holdfast.providers.storage.base import AssetMissing, StoreFault, asset_key
from holdfast.providers.storage.local import LocalStore
from holdfast.providers.storage.sniffing import EXTENSIONS
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.reports import DeadLetters

from .conftest import ActorSystem, create_task, terms

RETENTION_S = 7 * 24 * 3600
TYPE = "image/png"


def picture(number: int) -> bytes:
    """A small picture, another for every number."""
    out = io.BytesIO()
    Image.new("RGB", (2, 2), (number % 256, number // 256, 0)).save(out, "PNG")
    return out.getvalue()


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


@dataclass
class MessageRecorder:
    """Records the messages to all actors."""

    received: list[tuple[str, Any]] = field(default_factory=list)
    update: trio.Event = field(default_factory=trio.Event)

    def ref(self, key: str) -> RecordedRef:
        return RecordedRef(lambda message: self._tell(key, message))

    def _tell(self, key: str, message: object) -> None:
        self.received.append((key, message))
        self.update.set()
        self.update = trio.Event()

    async def next(self) -> tuple[str, Any]:
        while not self.received:
            await self.update.wait()
        return self.received.pop(0)


class SlowStore(LocalStore):
    """A local store whose removals wait for the test, or fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.trouble: str | None = None
        self.removing = 0
        self.begun = trio.Event()
        self.go_on = trio.Event()
        self.go_on.set()

    async def delete(self, key: str) -> None:
        self.begun.set()
        await self.go_on.wait()
        if self.trouble is not None:
            raise StoreFault(self.trouble)
        self.removing += 1
        try:
            await super().delete(key)
        finally:
            self.removing -= 1


def update(
    request_id: str, event_id: str, status: Literal["succeeded", "failed"], *, outputs: int = 0
) -> ReceiveProviderUpdate:
    update = ProviderUpdate(
        source="callback", provider="studio", event_id=event_id, request_id=request_id, attempt=1, status=status,
        provider_ref="job_1", outputs=tuple(Output(index=n, url=f"https://s.test/{n}") for n in range(outputs)),
    )  # fmt: skip
    return ReceiveProviderUpdate(update, b"{}")


@dataclass
class Setup:
    """Task actors on a real database, a local store, and a test clock."""

    system: ActorSystem
    store: SlowStore
    account_id: str
    nursery: trio.Nursery
    folder: Path
    at: datetime = field(default_factory=utc_now)
    messages: MessageRecorder = field(default_factory=MessageRecorder)
    tasks: KeyedDirectory = field(init=False)
    rival: KeyedDirectory = field(init=False)

    def now(self) -> datetime:
        return self.at

    def passes(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def sweeper(self, **parts: Any) -> AssetSweeper:
        given = {
            "database": self.system.database,
            "tasks": self.tasks,
            "store": self.store,
            "now": self.now,
            **parts,
        }
        return AssetSweeper(**given)

    async def claim(self, data: bytes) -> bool:
        content, at = Content(hash_of(data), TYPE), self.at
        claimed: bool = await self.system.database.work(lambda rows: claim_content(rows, content, at))
        return claimed

    async def put(self, data: bytes) -> None:
        assert await self.claim(data)
        await self.store.put(stream(data), hash_of(data), "png")

    async def task(self, *pictures: bytes, status: TaskStatus = "succeeded") -> str:
        """Create a task in ``status`` that has just stored ``pictures``."""
        for data in pictures:
            await self.put(data)
        until = self.at + timedelta(seconds=RETENTION_S)
        items = tuple(
            OutputItem(
                index=position, asset_id=new_id("asset"), sha256=hash_of(data), bytes=len(data),
                content_type=TYPE, expires_at=until,
            )
            for position, data in enumerate(pictures)
        )  # fmt: skip
        task = self.new_task()
        ready = HostingState(status="ready", final_url_ready=True, assets_ready_event="skipped")
        state = msgspec.structs.replace(task.state, hosting=ready, output=items, cost_micro=700_000)
        task = msgspec.structs.replace(task, status=status, state=state, wake_at=None)
        rows = [
            AssetRow(
                task.account_id, task.request_id, item.index, item.asset_id or "", item.sha256 or "",
                item.bytes or 0, TYPE, self.at, until,
            )
            for item in items
        ]  # fmt: skip
        verdict = await self.system.journal.write(Unit(rows=(task, *rows)))
        assert isinstance(verdict, Committed)
        return task.request_id

    def new_task(self) -> Task:
        return accept_task(
            self.account_id,
            new_id("task"),
            TaskRequest(
                input={},
                terms=terms(),
                quote_id="quo_1",
                api_key_id=None,
                hold_id=new_id("op"),
                hold_micro=terms().hold_micro,
            ),
            self.at,
        )

    async def stored(self, position: int, data: bytes, *, round_number: int = 1) -> RecordHosting:
        """Return the report that an output was stored."""
        await self.put(data)
        until = self.at + timedelta(seconds=RETENTION_S)
        output = OutputItem(
            index=position, asset_id=new_id("asset"), sha256=hash_of(data), bytes=len(data), content_type=TYPE,
            expires_at=until,
        )  # fmt: skip
        return RecordHosting(1, round_number, (output,))

    async def storing(self, first: bytes) -> str:
        """Create a task of two outputs, the first of which is stored."""
        key_id = new_id("key")
        key = ApiKeyRecord(self.account_id, key_id, "hk_test_x", "k", ("tasks:write",), self.at)
        assert isinstance(await self.system.journal.write(Unit(rows=(ApiKeyRow(key, key_id.encode()),))), Committed)
        await self.system.accounts.ref(self.account_id).ask(Recharge(5_000_000))
        created = await self.system.accounts.ref(self.account_id).ask(create_task(key_id))
        assert isinstance(created, TaskAccepted)
        request_id = created.request_id
        self.passes(60)
        await self.tasks.ref(request_id).ask(Wake())
        await self.tasks.ref(request_id).ask(update(request_id, "evt_1", "succeeded", outputs=2))
        await self.tasks.ref(request_id).ask(await self.stored(0, first))
        return request_id

    async def conflict(self, first: bytes) -> str:
        """Create the same task in review: its provider reported failure after success."""
        request_id = await self.storing(first)
        await self.tasks.ref(request_id).ask(update(request_id, "evt_2", "failed"))
        assert (await self.row(request_id)).status == "review"
        return request_id

    async def row(self, request_id: str) -> Task:
        task: Task = await self.system.database.read(lambda rows: load_task(rows, request_id))
        return task

    async def count(self, table: str) -> int:
        def query(rows: Connection) -> int:
            return int(rows.execute(text(f"select count(*) from {table}")).scalar_one())

        found: int = await self.system.database.read(query)
        return found

    async def change(self, statement: str, **values: Any) -> None:
        await self.system.database.work(lambda rows: rows.execute(text(statement), values).rowcount)

    async def has(self, data: bytes) -> bool:
        try:
            async with await self.store.open(asset_key(hash_of(data), "png")):
                return True
        except AssetMissing:
            return False


@pytest.fixture
async def setup(system: ActorSystem, nursery: trio.Nursery, tmp_path: Path) -> Setup:
    """A running setup with one account."""
    account_id, _ = await system.open_account()
    setup = Setup(system, SlowStore(tmp_path / "data"), account_id, nursery, tmp_path)
    unused = setup.messages.ref("")
    about = TaskDependencies(
        accounts=system.accounts,
        dispatcher=unused,
        provider_calls=unused,
        hosting=unused,
        outbox=unused,
        traits=lambda _: ProviderTraits(idempotent_submit=True, polls=True, cancels=True),
        callback_url=lambda _: "",
        now=setup.now,
        rng=random.Random(1),
    )

    async def load(request_id: str) -> Any:
        return await system.database.read(load_task_and_events, request_id)

    def factory(request_id: str, mailbox: Mailbox) -> TaskActor:
        return TaskActor(request_id, mailbox, system.journal, load=load, deps=about)

    async def probe() -> bool:
        return True

    setup.tasks, setup.rival = (
        KeyedDirectory(
            "tasks",
            factory,
            gate=system.database.gate,
            probe=probe,
            reporter=system.reporter,
            dead_letters=DeadLetters(),
            rng=random.Random(1),
        )
        for _ in range(2)
    )
    await nursery.start(setup.tasks.run)
    await nursery.start(setup.rival.run)
    return setup


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
        database=setup.system.database,
        incoming_dir=setup.folder / "incoming",
        tasks=messages,
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
    setup.passes(CLAIM_S)
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


async def test_early_outputs_expire_with_the_rest(setup: Setup) -> None:
    first, second = picture(1), picture(2)
    request_id = await setup.conflict(first)
    setup.passes(RETENTION_S + 1)
    sweeper = setup.sweeper()
    assert await sweeper.sweep() == Swept(0, 0)
    await setup.tasks.ref(request_id).ask(DecideReview(approve=True))
    await setup.tasks.ref(request_id).ask(await setup.stored(1, second, round_number=2))
    done = await setup.row(request_id)
    until = setup.at + timedelta(seconds=RETENTION_S)
    assert (done.status, [item.expires_at for item in done.state.output]) == ("succeeded", [until] * 2)

    def expiries(rows: Connection) -> list[datetime]:
        return list(rows.execute(text("select expires_at from assets")).scalars())

    assert await setup.system.database.read(expiries) == [until] * 2
    setup.passes(RETENTION_S - 1)
    assert await sweeper.sweep() == Swept(0, 0)
    setup.passes(2)
    assert await sweeper.sweep() == Swept(1, 2)


async def test_an_end_based_on_a_void_step_is_void(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    request_id = await setup.storing(picture(1))
    # Another process moves the row; ours does not know it.
    await setup.rival.ref(request_id).ask(update(request_id, "evt_2", "failed"))
    last = await setup.stored(1, picture(2))
    writer = setup.system.journal._writer
    write, begun, go_on = writer.write, threading.Event(), threading.Event()

    def waits(units: Sequence[Unit], prepared: Prepared | None) -> list[UnitResult]:
        begun.set()
        assert go_on.wait(10)
        return write(units, prepared)

    monkeypatch.setattr(writer, "write", waits)
    with trio.fail_after(20):
        # Ours moves it as well, to a version of the same number, and ends the task on top of that while this is
        # still on its way to the disk.
        setup.tasks.ref(request_id).tell(update(request_id, "evt_3", "succeeded", outputs=2))
        assert await trio.to_thread.run_sync(begun.wait, 10)
        setup.tasks.ref(request_id).tell(last)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        await setup.tasks.ref(request_id).ask(Wake())
    assert (await setup.row(request_id)).status == "review"


async def test_an_idle_wake_checks_for_changes_by_other_processes(setup: Setup) -> None:
    request_id = await setup.conflict(picture(1))
    await setup.rival.ref(request_id).ask(DecideReview(approve=True))
    setup.messages.received.clear()
    # The process that approved is gone, and its message to store the rest is lost.
    setup.passes(61)
    await setup.tasks.ref(request_id).ask(Wake())
    assert [type(command) for _, command in setup.messages.received] == [Host]


async def test_an_outdated_actor_reloads_before_it_replies(setup: Setup) -> None:
    request_id = await setup.task(picture(1), status="processing")
    await setup.tasks.ref(request_id).ask(ExpireAssets())
    await setup.change("update tasks set status = 'succeeded', version = version + 1")
    await setup.tasks.ref(request_id).ask(ExpireAssets())
    assert (await setup.row(request_id)).state.hosting.status == "expired"
    assert await setup.count("assets") == 0


async def test_a_failed_removal_is_retried_and_then_forgotten(setup: Setup) -> None:
    await setup.put(picture(1))
    setup.passes(CLAIM_S + 1)
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
    setup.passes(CLAIM_S + 1)
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
    with trio.fail_after(10):
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
    with trio.fail_after(10):
        hosting.tell(host(shared))
        await messages.next()
    assert await setup.sweeper().sweep() == Swept(1, 0)
    assert await setup.has(shared)


async def test_storage_faults_are_reported_without_details(setup: Setup) -> None:
    messages = MessageRecorder()
    hosting = await hosting_worker(setup, messages)
    (setup.folder / "data").write_text("in the way")
    with trio.fail_after(10):
        hosting.tell(host(picture(1)))
        _, received = await messages.next()
    (failure,) = received.results
    assert (failure.final, failure.message) == (False, "storage: cannot be written at the moment")


async def test_partial_downloads_are_deleted_at_start(setup: Setup) -> None:
    incoming = setup.folder / "incoming"
    incoming.mkdir()
    for name, age_s in (("incoming-old", 90_000), ("incoming-young", 60)):
        (incoming / name).write_bytes(b"half")
        os.utime(incoming / name, (time.time() - age_s,) * 2)
    await hosting_worker(setup, MessageRecorder())
    assert [path.name for path in incoming.iterdir()] == ["incoming-young"]


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
    assert isinstance(await setup.system.journal.write(Unit(rows=(task,))), Committed)
    data = picture(1)
    result = OutputItem(
        index=0, asset_id=new_id("asset"), sha256=hash_of(data), bytes=len(data), content_type=TYPE,
        expires_at=setup.at + timedelta(seconds=task.request.terms.hosting.retention_s),
        width=2, height=2, duration_s=None,
    )  # fmt: skip
    setup.passes(CLAIM_USABLE_S + 1)
    await setup.tasks.ref(task.request_id).ask(RecordHosting(1, 1, (result,)))
    assert await setup.row(task.request_id) == task
    assert await setup.count("assets") == 0


@pytest.mark.parametrize("seed", range(2))
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
                await setup.store.put(stream(data), hash_of(data), "png")
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
            if not setup.store.removing and setup.at - oldest < timedelta(seconds=CLAIM_USABLE_S):
                setup.passes(100)

    async def keep_sweeping(sweeper: AssetSweeper) -> None:
        while True:
            removed.append((await sweeper.sweep()).removed)
            await trio.sleep(0.001)

    with trio.fail_after(30):
        async with trio.open_nursery() as background:
            background.start_soon(let_time_pass)
            for _ in range(2):
                background.start_soon(keep_sweeping, setup.sweeper())
            async with trio.open_nursery() as storing:
                for _ in range(4):
                    storing.start_soon(store_and_drop)
            # Unreferenced content is removed in the end.
            for _ in range(1000):
                if not await setup.count("contents"):
                    break
                await trio.sleep(0.01)
            background.cancel_scope.cancel()
    assert sum(removed) > len(pictures)
    assert not any([await setup.has(data) for data in pictures])
