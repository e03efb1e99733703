"""Workers below a supervisor, as the parent has them, with processes that a test drives."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.start.parent.workers import Workers
from holdfast.supervision.spec import Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

from .fake_processes import FakeStarter

RETIRE_S = 40.0
SHUTDOWN_S = 25.0


class Parent:
    """Workers below a supervisor."""

    def __init__(self, count: int, restarts: int = 3, starter: FakeStarter | None = None) -> None:
        self.starter = starter or FakeStarter()
        self.misconfigured = 0
        self.ended: list[int] = []
        self.rolled: list[bool] = []
        self.reporter = Reporter()
        self.workers = Workers(
            count,
            self.starter.start,
            on_end=self.ended.append,
            on_misconfigured=self._note_misconfigured,
            retire_s=RETIRE_S,
            reporter=self.reporter,
        )
        self.tree = Supervisor(
            "processes",
            self.workers.specs(SHUTDOWN_S),
            strategy="one_for_one",
            intensity=Intensity(restarts, 60.0),
            reporter=self.reporter,
            conditions=Conditions(self.reporter),
            rng=random.Random(1),
        )

    def reports(self, kind: str) -> list[Report]:
        return [report for report in reversed(self.reporter.recent()) if report.kind == kind]

    async def roll(self) -> None:
        self.rolled.append(await self.workers.roll())

    async def all_ready(self) -> None:
        await wait_all_tasks_blocked()
        for process in self.starter.started:
            process.be_ready()
        await wait_all_tasks_blocked()

    def _note_misconfigured(self) -> None:
        self.misconfigured += 1


@asynccontextmanager
async def running(parent: Parent) -> AsyncIterator[None]:
    """Run the parent's tree, with its workers ready."""
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parent.tree.run)
            await parent.all_ready()
            yield
            await parent.workers.stop_all()
            await parent.tree.stop()
    assert sorted(parent.ended) == [process.pid for process in parent.starter.started]
    assert all(process.is_closed and process.code is not None for process in parent.starter.started)
