"""How the process starts without its database, and ends when the supervision tree gives up."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio

from holdfast.actors.workers.newest_queue import NewestQueue
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.values import PLACES
from holdfast.persistence.records.tables import given_emails
from holdfast.persistence.server import migrate as migrating
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.migrate import MigrationReport, migrate
from holdfast.sockets.listening import SlotSockets
from holdfast.start.exit_codes import GAVE_UP
from holdfast.start.service import _lacks_accounts, _log_when_ready, _run
from holdfast.supervision.spec import Backoff, ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import ALONE_MAX, Reporter


async def test_a_tree_that_gives_up_exits_with_one_log_line() -> None:
    starts = 0
    ends: list[str] = []

    async def broken(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal starts
        starts += 1
        task_status.started()
        await trio.sleep(0.5)
        raise ValueError("it broke")

    async def sound(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            ends.append("sound")

    tree = Supervisor(
        "top",
        [
            ChildSpec("sound", lambda: RunningChild(sound)),
            ChildSpec("broken", lambda: RunningChild(broken), backoff=Backoff(0.0, 0.0, jitter=0.0)),
        ],
        strategy="one_for_one",
        intensity=Intensity(1, 60.0),
        reporter=(reporter := Reporter(now=lambda: datetime(2026, 11, 22, tzinfo=UTC))),
        conditions=Conditions(reporter),
    )

    for _ in range(ALONE_MAX + 5):
        reporter.report(Report(kind="dead_letter", path="holdfast/accounts", key="acct_1"))

    async def prepare() -> None:
        await trio.lowlevel.checkpoint()

    parts = SimpleNamespace(
        store=SimpleNamespace(prepare=prepare),
        card=None,
        cells=None,
        reporter=reporter,
        reports=NewestQueue(1),
        samples=SimpleNamespace(leave=lambda: None),
        database=SimpleNamespace(url="postgresql://"),
        settings=SimpleNamespace(env="development", is_production=False, has_token_file=False),
    )
    assembly = SimpleNamespace(tree=tree, parts=parts, http=None)
    with socket.create_server(("127.0.0.1", 0)) as listening, structlog.testing.capture_logs() as logs:
        sockets = SlotSockets(listening)
        code = await _run(cast(Any, assembly), partial(_log_when_ready, cast(Any, assembly), sockets))
    assert code == GAVE_UP
    assert (starts, ends) == (2, ["sound"])
    assert [each.count for each in reporter.recent(1)] == [5]
    logged = [line for line in logs if line["event"] == "the tree gave up"]
    assert [(line["log_level"], "broken" in line["reason"]) for line in logged] == [("critical", True)]
    assert "holdfast serves" in [line["event"] for line in logs]


class FakeTime:
    """A clock that only its own ``sleep`` moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("failures", [0, 3])
def test_a_start_waits_for_its_database(database_url: str, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    attempts = 0

    def away_at_first(url: str) -> MigrationReport:
        nonlocal attempts
        attempts += 1
        if attempts <= failures:
            raise DatabaseAway("the database system is shutting down")
        return migrate(url)

    monkeypatch.setattr(migrating, "migrate", away_at_first)
    monkeypatch.setattr(migrating, "time", clock := FakeTime())
    with structlog.testing.capture_logs() as logs:
        assert migrating.migrate_when_reachable(database_url).applied == ()
    assert clock.now_s - 100 == failures * migrating.DATABASE_RETRY_S
    assert [line["event"] for line in logs if "waiting" in line["event"]] == ["waiting for the database"] * bool(
        failures
    )


def test_a_start_without_a_database_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrating, "time", clock := FakeTime())
    with pytest.raises(DatabaseAway):
        migrating.migrate_when_reachable("postgresql://holdfast@127.0.0.1:1/nothing")
    assert clock.now_s - 100 == migrating.DATABASE_START_S


async def test_a_start_says_which_cells_the_list_lacks(database_url: str) -> None:
    every = (range(PLACES),)
    alone = Cells(1, [Cell(1, every, every, "http://one", "http://one")])
    with connected(database_url) as rows, rows.begin():
        rows.execute(given_emails.insert().values(email_sha256=bytes(32), cell=2, at=datetime.now(UTC)))
    with structlog.testing.capture_logs() as logs:
        assert not await _lacks_accounts(database_url, alone)
    assert [(line["log_level"], line["cells"]) for line in logs if "cells" in line] == [("error", [2])]
