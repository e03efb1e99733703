"""Tasks with stored outputs, their workers, and a store that can be slow."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio
import trio.testing
from PIL import Image
from sqlalchemy import Connection, text
from tests.content_claims import claim_content
from tests.made_requests import make_request, make_terms
from tests.recorded_refs import RecordedRef

from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.task.messages import ReceiveProviderUpdate, RecordHosting, Wake
from holdfast.actors.workers.asset_sweeper import AssetSweeper
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.ledger.tasks.task import (
    HostingState,
    OutputItem,
    Task,
    TaskStatus,
    accept_task,
)
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.claims.contents import Content
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.queries.loading import load_task
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.rows import AssetRow, NewTaskRow
from holdfast.providers.storage.base import AssetMissing, StoreFault, asset_key
from holdfast.providers.storage.local import LocalStore
from holdfast.supervision.directory import KeyedDirectory

from .actor_system import ActorSystem, create_task

RETENTION_S = 7 * 24 * 3600


TYPE = "image/png"


def picture(number: int) -> bytes:
    """A small picture, another for every number."""
    out = io.BytesIO()
    Image.new("RGB", (2, 2), (number % 256, number // 256, 0)).save(out, "PNG")
    return out.getvalue()


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    request_id: str,
    event_id: str,
    status: Literal["succeeded", "failed"],
    *,
    outputs: int = 0,
    provider: str = "studio",
) -> ReceiveProviderUpdate:
    update = ProviderUpdate(
        source="callback", provider=provider, event_id=event_id, request_id=request_id, attempt=1, status=status,
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
        return await self.system.database.work(claim_content, content, at)

    async def put(self, data: bytes) -> None:
        assert await self.claim(data)
        await trio.to_thread.run_sync(self.store.put, data, hash_of(data), "png")

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
        verdict = await self.system.journal.write(Unit(rows=(NewTaskRow(task), *rows)))
        assert isinstance(verdict, Committed)
        return task.request_id

    def new_task(self) -> Task:
        request = make_request(make_terms(), hold_id=new_id("op"))
        return accept_task(self.account_id, new_id("task"), request, self.at)

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
        key = ApiKeyRecord(self.account_id, key_id, "hk_test_x", KeyTerms("k", ("tasks:write",)), self.at)
        assert isinstance(await self.system.journal.write(Unit(rows=(ApiKeyRow(key, key_id.encode()),))), Committed)
        await self.system.ask(self.account_id, Recharge(5_000_000))
        created = await self.system.ask(self.account_id, create_task(key_id))
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
