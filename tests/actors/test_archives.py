"""Archives: made once by whichever process, made again if that ends, bounded, and not made of what is gone."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.actors.leaving_setup import Clock, rows_of

from holdfast.actors.workers.archives import ArchiveWorker
from holdfast.ledger.values import new_id
from holdfast.persistence.audit.rules import OWNERS
from holdfast.persistence.claims.archives import (
    KEPT,
    LEASE,
    PARTS,
    TRIES_MAX,
    USAGE,
    begin_archive,
    claim_archive,
    find_archive,
)
from holdfast.persistence.claims.contents import START, ContentClaims, mark_contents
from holdfast.persistence.records.rows import ArchiveRow, FileRow, PaymentEventRow
from holdfast.persistence.records.tables import files, payment_events
from holdfast.persistence.server.database import Database
from holdfast.providers.storage.base import asset_key
from holdfast.providers.storage.local import LocalStore
from holdfast.providers.storage.sniffing import UNKNOWN_TYPE

from .actor_system import ActorSystem

NewWorker = Callable[..., ArchiveWorker]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def new_worker(database: Database, store: LocalStore, clock: Clock, tmp_path: Path) -> NewWorker:
    def make(**options: Any) -> ArchiveWorker:
        claims = ContentClaims(database.keep_writer())
        incoming = tmp_path / "incoming"
        return ArchiveWorker(
            database=database, store=store, claims=claims, directory=incoming, now=clock, **options
        )

    return make


async def asked(database: Database, account_id: str, clock: Clock) -> ArchiveRow:
    return await database.work(begin_archive, account_id, new_id("arc"), new_id("chg"), clock())


async def found(database: Database, account_id: str) -> ArchiveRow:
    archive = await database.read(find_archive, account_id)
    assert archive is not None
    return archive


async def add_file(database: Database, store: LocalStore, account_id: str, content: bytes, clock: Clock) -> str:
    file_id, sha256 = new_id("file"), hashlib.sha256(content).hexdigest()
    store.put(content, sha256, "bin")
    until = clock() + timedelta(days=7)
    file = FileRow(account_id, file_id, "a.txt", UNKNOWN_TYPE, len(content), sha256, clock(), until)
    await database.work(lambda rows: rows.execute(files.insert().values(file._asdict())))
    return file_id


def opened(tmp_path: Path, archive: ArchiveRow) -> dict[str, bytes]:
    assert archive.sha256 is not None
    content = (tmp_path / asset_key(archive.sha256, "bin")).read_bytes()
    assert len(content) == archive.bytes
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


async def test_contents_beyond_the_bound_and_those_that_are_gone_are_named(
    system: ActorSystem, new_worker: NewWorker, store: LocalStore, clock: Clock, tmp_path: Path
) -> None:
    database = system.database
    account_id, _ = await system.open_account(5_000_000)
    other_id, _ = await system.open_account()
    small = await add_file(database, store, account_id, b"small", clock)
    large = await add_file(database, store, account_id, b"large" * 100, clock)
    gone = await add_file(database, store, account_id, b"gone", clock)
    await add_file(database, store, other_id, b"of another", clock)
    given = ("charge.updated", clock(), "ignored", b'{"name": "Ada"}')
    said = [PaymentEventRow("card", f"evt_{owner}", owner, None, *given) for owner in (account_id, other_id)]
    values = [msgspec.structs.asdict(each) for each in said]
    await database.work(lambda rows: rows.execute(payment_events.insert().values(values)))
    await store.delete(asset_key(hashlib.sha256(b"gone").hexdigest(), "bin"))
    await asked(database, account_id, clock)
    assert await new_worker(contents_bytes_max=100).make_next() is True
    parts = opened(tmp_path, await found(database, account_id))
    assert parts[f"files/{small}.bin"] == b"small"
    manifest = json.loads(parts["manifest.json"])
    assert sorted((each["name"], each["reason"]) for each in manifest["omitted_contents"]) == sorted(
        [(f"files/{large}.bin", "too large for this archive"), (f"files/{gone}.bin", "deleted")]
    )
    assert manifest["records"]["files"] == 3
    assert manifest["records"]["operations"] == 1
    assert json.loads(parts["payment_events.jsonl"])["body"] == r"\x" + b'{"name": "Ada"}'.hex()
    assert all(other_id.encode() not in body for body in parts.values())
    # Nothing is made twice, and nothing remains beside it.
    assert await new_worker().make_next() is False
    assert [*(tmp_path / "incoming").iterdir()] == []


def test_an_archive_has_each_table_of_an_account() -> None:
    """A new table goes into the archive, or here with the reason why not."""
    not_records = {
        "account_moves": "in which database the account is, which no owner sees",
        "archives": "this one",
        "checkpoints": "of the audit",
        "file_uses": "until a task ends, whose input names the file",
        "holds": "each is two operations",
        "order_payments": "in the order's state",
        "outbox_attempts": "counted in the event",
        "task_events": "what they said is in the task",
        "usage_totals": "the sums of the usage log",
    }
    written = {part.table for part in (*PARTS, USAGE)}
    assert written - OWNERS.keys() == set()
    assert OWNERS.keys() - written == not_records.keys()


async def test_a_process_that_ends_leaves_the_archive_to_another(
    system: ActorSystem, new_worker: NewWorker, clock: Clock, tmp_path: Path
) -> None:
    database = system.database
    account_id, _ = await system.open_account()
    first = await asked(database, account_id, clock)
    # It has claimed the archive, and ends.
    assert await database.work(claim_archive, clock()) == (account_id, first.archive_id)
    assert await new_worker().make_next() is False
    clock.forward(seconds=LEASE.total_seconds())
    assert await new_worker().make_next() is True
    assert (await found(database, account_id)).made_at == clock()
    # While it is kept, no other is made; afterwards one may be asked for.
    clock.forward(hours=23)
    assert (await asked(database, account_id, clock)).archive_id == first.archive_id
    clock.forward(hours=1)
    second = await asked(database, account_id, clock)
    assert (second.archive_id != first.archive_id, second.made_at) == (True, None)
    for _ in range(TRIES_MAX):
        assert await database.work(claim_archive, clock()) is not None
        clock.forward(seconds=LEASE.total_seconds())
    assert await new_worker().make_next() is False
    third = await asked(database, account_id, clock)
    assert third.archive_id != second.archive_id
    assert await new_worker().make_next() is True
    whats = await rows_of(database, "select what from account_changes order by at, change_id")
    assert [row.what for row in whats] == [
        "archive_requested", "archive_made", "archive_requested", "archive_requested", "archive_made"
    ]  # fmt: skip


async def test_an_archive_that_is_not_wanted_any_more_is_not_stored(
    system: ActorSystem, new_worker: NewWorker, store: LocalStore, clock: Clock, tmp_path: Path
) -> None:
    database = system.database
    account_id, _ = await system.open_account()
    await add_file(database, store, account_id, b"small", clock)
    await asked(database, account_id, clock)
    worker = new_worker()
    opening = store.open

    async def open_late(key: str, start: int = 0, end: int | None = None) -> Any:
        await database.work(lambda rows: rows.exec_driver_sql("delete from archives"))
        return await opening(key, start, end)

    store.open = open_late  # type: ignore[method-assign]
    assert await worker.make_next() is True
    assert await database.read(find_archive, account_id) is None
    assert await rows_of(database, "select from contents") == []


async def test_its_content_is_removed_once_it_is_kept_no_more(
    system: ActorSystem, new_worker: NewWorker, clock: Clock
) -> None:
    database = system.database
    account_id, _ = await system.open_account()
    await asked(database, account_id, clock)
    await new_worker().make_next()
    archive = await found(database, account_id)
    assert archive.expires_at == clock() + KEPT

    async def marked() -> list[str]:
        page = await database.work(mark_contents, clock(), after=START, page_max=10)
        return [content.sha256 for content in page.contents]

    clock.forward(seconds=KEPT.total_seconds())
    assert await marked() == []
    clock.forward(hours=1, seconds=1)
    assert await marked() == [archive.sha256]
