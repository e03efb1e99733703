"""Processes that are frozen while they close an account or make an archive, are replaced, and go on later.

They stop themselves before a certain step, as by SIGSTOP, and others, whose clocks have gone on, do all of the work
meanwhile. What the late ones do then must change nothing.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
import trio
from tests.actors.leaving_setup import Clock, Member, start_member

from holdfast.actors.account.leaving import GRACE
from holdfast.actors.account.messages import CloseAccount, ClosingSet, Recharge, SetAlerts
from holdfast.actors.sign_in.messages import SignedIn
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.rules import OWNERS
from holdfast.persistence.claims.archives import LEASE, TRIES_MAX, begin_archive, find_archive
from holdfast.persistence.claims.closings import SETTLED_AFTER
from holdfast.persistence.records.rows import FileRow
from holdfast.persistence.records.tables import files
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.providers.storage.base import asset_key

from .asset_setup import Setup, SlowStore, hash_of, picture

NewOwner: TypeAlias = Callable[[str], Awaitable[SignedIn]]

ROOT = Path(__file__).parents[2]
DAY_S = 86_400
LEDGER = ("operations", "postings", "orders", "receipts", "holds", "credit_lots")


class Workers:
    """The processes of a test, on one database and one store."""

    def __init__(self, url: str, folder: Path) -> None:
        self._given = (url, str(folder))
        self._running: list[subprocess.Popen[bytes]] = []

    async def freeze(self, kind: str, ahead_s: float, step: str, number: int = 1) -> None:
        """Start a process, and wait until it has stopped before a step."""
        process = self._start(kind, ahead_s, step, number)
        _, status = await trio.to_thread.run_sync(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended before {step} {number}"

    async def run(self, kind: str, ahead_s: float) -> None:
        """Run a process that is not frozen to its end."""
        await self._end(self._start(kind, ahead_s, "", 0))

    async def thaw(self) -> None:
        """Let all frozen processes go on, the oldest first, each to its end."""
        for process in [*self._running]:
            process.send_signal(signal.SIGCONT)
            await self._end(process)

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def _start(self, kind: str, ahead_s: float, step: str, number: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tests.leaving_worker",
            kind,
            *self._given,
            str(ahead_s),
            step,
            str(number),
        ]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self._running.append(process)
        return process

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        output, _ = await trio.to_thread.run_sync(process.communicate)
        assert (process.returncode, output.splitlines()[-1:]) == (0, [b"done"]), output
        self._running.remove(process)


@pytest.fixture
async def workers(database_url: str, tmp_path: Path) -> AsyncIterator[Workers]:
    found = Workers(database_url, tmp_path)
    yield found
    found.kill()


@pytest.fixture
async def member(database: Database, nursery: trio.Nursery) -> Member:
    return await start_member(database, nursery, Clock(utc_now()))


@pytest.fixture
def new_owner(member: Member, database: Database, nursery: trio.Nursery, tmp_path: Path) -> NewOwner:
    """Makes accounts that have something of everything: ``await new_owner("ada")``."""

    async def make(name: str) -> SignedIn:
        owner = await member.sign_in(f"{name}@example.com")
        await member.ask(owner.account_id, Recharge(5_000_000))
        await member.ask(owner.account_id, SetAlerts(balance_below_micro=1_000_000, limit_share=1.0, email=True))
        store = SlowStore(tmp_path)
        setup = Setup(member.system, store, owner.account_id, nursery, tmp_path)
        await setup.task(*(picture(number + 16 * len(name)) for number in range(2)))
        await setup.task(picture(7 + 16 * len(name)))
        content = f"a file of {name}".encode()
        await setup.put(content)
        until = utc_now() + timedelta(days=7)
        file = FileRow(
            owner.account_id,
            new_id("file"),
            f"{name}.txt",
            "image/png",
            len(content),
            hash_of(content),
            utc_now(),
            until,
        )
        await database.work(lambda rows: rows.execute(files.insert().values(file._asdict())))
        return owner

    return make


def rows_of_account(url: str, account_id: str) -> dict[str, list[str]]:
    """Return all rows of an account, by their tables."""
    with psycopg.connect(url) as rows:
        return {
            table: sorted(row for (row,) in rows.execute(query, [account_id]))
            for table, owner in OWNERS.items()
            for query in [f"select t::text from {table} t where {owner} = %s"]
        }


def whats(rows: dict[str, list[str]]) -> list[str]:
    """Return what happened to an account, in order."""
    return [row.split(",")[2] for row in rows["account_changes"]]


@pytest.mark.slow
async def test_an_account_is_closed_and_erased_once(
    workers: Workers, member: Member, new_owner: NewOwner, database_url: str
) -> None:
    ada, bob = await new_owner("ada"), await new_owner("bobby")
    before, others = [rows_of_account(database_url, each.account_id) for each in (ada, bob)]
    assert isinstance(await member.ask(ada.account_id, CloseAccount(True)), ClosingSet)
    due_s = GRACE.total_seconds() + DAY_S
    for step in ("due_closings", "read_leaving", "write"):
        await workers.freeze("closings", due_s, step)
    await workers.run("closings", due_s)
    closed = rows_of_account(database_url, ada.account_id)
    assert whats(closed) == ["closing", "closed"]
    settled_s = due_s + SETTLED_AFTER.total_seconds() + 60
    for step, number in (
        ("tasks_of_closed", 1),
        ("write", 1),
        ("erase_rows", 2),
        ("erase_rows", 15),
        ("record_erased", 1),
    ):
        await workers.freeze("closings", settled_s, step, number)
    await workers.run("closings", settled_s)
    erased = rows_of_account(database_url, ada.account_id)
    assert whats(erased) == ["closing", "closed", "erased"]
    assert [table for table in ("sessions", "files", "assets", "alerts", "outbox") if erased[table]] == []
    for table in LEDGER:
        assert erased[table] == closed[table]
        assert {*before[table]} <= {*closed[table]} or table == "credit_lots"
    # The address is free, and signs in to another account.
    newcomer = await member.sign_in(ada.email)
    await member.ask(newcomer.account_id, Recharge(1_000_000))
    new = rows_of_account(database_url, newcomer.account_id)
    # The tasks of this test were not paid for.
    with connected(database_url) as rows:
        audited = run_audit(rows)
    await workers.thaw()
    assert rows_of_account(database_url, ada.account_id) == erased
    assert rows_of_account(database_url, newcomer.account_id) == new
    assert rows_of_account(database_url, bob.account_id) == others
    with connected(database_url) as rows:
        assert run_audit(rows) == audited


@pytest.mark.slow
async def test_an_owner_who_has_signed_in_meanwhile_keeps_the_account(
    workers: Workers, member: Member, new_owner: NewOwner, database_url: str
) -> None:
    ada = await new_owner("ada")
    before = rows_of_account(database_url, ada.account_id)
    assert isinstance(await member.ask(ada.account_id, CloseAccount(True)), ClosingSet)
    for step in ("due_closings", "read_leaving", "write"):
        await workers.freeze("closings", GRACE.total_seconds() + DAY_S, step)
    again = await member.sign_in(ada.email)
    assert (again.account_id, again.was_kept) == (ada.account_id, True)
    kept = rows_of_account(database_url, ada.account_id)
    assert whats(kept) == ["closing", "kept"]
    await workers.thaw()
    assert rows_of_account(database_url, ada.account_id) == kept
    assert {table: kept[table] for table in (*LEDGER, "files", "assets", "tasks")} == {
        table: before[table] for table in (*LEDGER, "files", "assets", "tasks")
    }


@pytest.mark.slow
async def test_an_archive_is_made_once_and_of_its_account(
    workers: Workers, new_owner: NewOwner, database: Database, database_url: str, tmp_path: Path
) -> None:
    ada, bob = await new_owner("ada"), await new_owner("bobby")
    await database.work(begin_archive, ada.account_id, new_id("arc"), new_id("chg"), utc_now())
    steps = (("read_part", 9), ("claim", 1), ("put", 1), ("finish_archive", 1))
    assert len(steps) < TRIES_MAX
    lapsed_s = LEASE.total_seconds() + 60
    for tries, (step, number) in enumerate(steps):
        await workers.freeze("archives", tries * lapsed_s, step, number)
    await database.work(begin_archive, bob.account_id, new_id("arc"), new_id("chg"), utc_now())
    for _ in range(2):
        await workers.run("archives", len(steps) * lapsed_s)
    made = [rows_of_account(database_url, each.account_id) for each in (ada, bob)]
    await workers.thaw()
    for owner, rows, other in ((ada, made[0], bob), (bob, made[1], ada)):
        assert rows_of_account(database_url, owner.account_id) == rows
        assert whats(rows) == ["archive_requested", "archive_made"]
        archive = await database.read(find_archive, owner.account_id)
        assert archive is not None
        assert archive.sha256 is not None
        with zipfile.ZipFile(io.BytesIO((tmp_path / asset_key(archive.sha256, "bin")).read_bytes())) as parts:
            assert parts.testzip() is None
            names = parts.namelist()
            assert (sum(name.startswith("results/") for name in names), "manifest.json" in names) == (3, True)
            for name in names:
                assert other.account_id.encode() not in parts.read(name)
    assert [*(tmp_path / "incoming").iterdir()] == []
