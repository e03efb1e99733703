"""Scripted children for tests of supervision, and the log of what they did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.supervision.spec import Backoff, ChildSpec, Intensity, Restart, Strategy
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports import causes
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.scrubbing import scrub

SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))
NO_WAIT = Backoff(0.0, 0.0, jitter=0.0)


class ScriptedChild:
    """One incarnation of a scripted child."""

    def __init__(self, scripted: ScriptedTree, child_id: str) -> None:
        self._troupe = scripted
        self._child_id = child_id
        self._cue = trio.Event()
        self._fault: BaseException | None = None

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        scripted, me = self._troupe, self._child_id
        scripted.live[me] += 1
        scripted.most_live[me] = max(scripted.most_live[me], scripted.live[me])
        scripted.players[me] = self
        try:
            await trio.sleep(scripted.start_takes_s.get(me, 0.0))
            if scripted.failing_starts[me] > 0:
                scripted.failing_starts[me] -= 1
                raise RuntimeError(f"{me} cannot start")
            scripted.ups[me] += 1
            scripted.log.append(f"+{me}")
            task_status.started()
            await self._cue.wait()
            if self._fault is not None:
                raise self._fault
            await trio.sleep(scripted.stop_takes_s.get(me, 0.0))
        finally:
            scripted.live[me] -= 1
            scripted.log.append(f"-{me}")

    async def stop(self) -> None:
        self._troupe.log.append(f"?{self._child_id}")
        if self._child_id in self._troupe.rude:
            raise OSError("cannot stop politely")
        if self._child_id not in self._troupe.deaf:
            self._cue.set()

    def end(self, fault: BaseException | None) -> None:
        """Finish (None) or crash."""
        self._fault = fault
        self._cue.set()


class ScriptedTree:
    """Makes players and supervisors. ``log`` holds +id (up), ?id (asked to stop), -id (gone), in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.live: Counter[str] = Counter()
        self.most_live: Counter[str] = Counter()
        self.ups: Counter[str] = Counter()
        self.failing_starts: Counter[str] = Counter()
        self.players: dict[str, ScriptedChild] = {}
        self.start_takes_s: dict[str, float] = {}
        self.stop_takes_s: dict[str, float] = {}
        self.deaf: set[str] = set()
        self.rude: set[str] = set()
        self.reporter = Reporter(logger=SILENT)
        self.conditions = Conditions(self.reporter)

    def spec(self, child_id: str, restart: Restart = "permanent", **more: Any) -> ChildSpec:
        more.setdefault("backoff", NO_WAIT)
        return ChildSpec(child_id, lambda: ScriptedChild(self, child_id), restart, **more)

    def supervisor(
        self, *specs: ChildSpec, strategy: Strategy = "one_for_one", restarts: int = 3, **more: Any
    ) -> Supervisor:
        return Supervisor(
            more.pop("name", "top"),
            specs,
            strategy=strategy,
            intensity=more.pop("intensity", None) or Intensity(restarts, more.pop("period_s", 5.0)),
            reporter=self.reporter,
            conditions=self.conditions,
            rng=random.Random(1),
            **more,
        )

    def crash(self, child_id: str, fault: BaseException | None = None) -> None:
        self.players[child_id].end(fault if fault is not None else ValueError(f"{child_id} broke"))

    def finish(self, child_id: str) -> None:
        self.players[child_id].end(None)

    def take_log(self) -> list[str]:
        log, self.log = self.log, []
        return log

    def reports(self, kind: str, context: str | None = None) -> list[Report]:
        """Oldest first."""
        return [
            report
            for report in reversed(self.reporter.recent())
            if report.kind == kind and context in (None, report.context)
        ]

    def running(self, supervisor: Supervisor) -> AbstractAsyncContextManager[None]:
        """Run ``supervisor`` around the body, which begins when all are up with an empty log; then stop it."""
        return self._playing(supervisor)

    @asynccontextmanager
    async def _playing(self, supervisor: Supervisor) -> AsyncIterator[None]:
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda *, task_status: supervisor.run(task_status=task_status))
                self.log.clear()
                yield
                await supervisor.stop()

    @staticmethod
    async def settle() -> None:
        """Wait until nothing more happens without time passing."""
        await wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()


@pytest.fixture(scope="session")
def new_scripted_tree() -> Callable[[], ScriptedTree]:
    return ScriptedTree


@pytest.fixture
def scripted() -> ScriptedTree:
    return ScriptedTree()


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of exceptions that are described, each with a search for secrets; they may be long."""
    texts: list[str] = []

    def noted(text: str) -> str:
        texts.append(text)
        return scrub(text)

    monkeypatch.setattr(causes, "scrub", noted)
    return texts
