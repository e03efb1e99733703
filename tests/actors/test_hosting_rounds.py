"""The hosting worker: a later round of a task cancels an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.recorded_refs import RecordedRef

from holdfast.actors.task.messages import RecordHosting
from holdfast.actors.task.worker_messages import Host
from holdfast.actors.workers import hosting
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.worker import WorkerRef
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.clock import utc_now
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.transitions import HostingFailure
from holdfast.providers.outbound.downloads import DownloadRefused

ROUND_1, ROUND_2 = (
    Host("task_1", 1, number, "studio", (Output(index=0, url=f"https://x.test/{number}"),), Hosting(), 30.0)
    for number in (1, 2)
)


class Ear:
    """A task that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[RecordHosting] = []

    def ref(self, key: str) -> RecordedRef:
        assert key == "task_1"
        return RecordedRef(self.heard.append)


class Fetches:
    """Downloads that end when the test says so, each with a refusal that names its address."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.broken_off: list[str] = []
        self.gates: Mapping[str, trio.Event] = {
            host.outputs[0].url or "": trio.Event() for host in (ROUND_1, ROUND_2)
        }

    async def download(self, _client: object, url: str, *_: object, **_options: object) -> DownloadRefused:
        self.begun.append(url)
        try:
            await self.gates[url].wait()
        except trio.Cancelled:
            self.broken_off.append(url)
            raise
        return DownloadRefused("not_found", url, permanent=True)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    fetches = Fetches()
    monkeypatch.setattr(hosting, "download", fetches.download)
    return fetches


async def test_a_later_hosting_round_cancels_an_earlier_one(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    ear, post = Ear(), WorkerRef("hosting")
    nobody: Any = None
    worker = HostingWorker(
        post,
        downloads=nobody,
        origins_of=lambda _: frozenset(),
        store=nobody,
        database=nobody,
        incoming_dir=tmp_path,
        tasks=ear,
        now=utc_now,
    )
    await nursery.start(lambda *, task_status: worker.run(task_status=task_status))
    for host in (ROUND_1, ROUND_1, ROUND_2, ROUND_2, ROUND_1):
        post.tell(host)
        await trio.testing.wait_all_tasks_blocked()
    assert fetches.begun == ["https://x.test/1", "https://x.test/2"]
    assert fetches.broken_off == ["https://x.test/1"]
    fetches.gates["https://x.test/2"].set()
    await trio.testing.wait_all_tasks_blocked()
    failure = HostingFailure(0, "not_found: https://x.test/2", final=True)
    assert ear.heard == [RecordHosting(1, 2, (failure,))]
    # Asked for again once it has ended, the same round is run again.
    post.tell(ROUND_2)
    await trio.testing.wait_all_tasks_blocked()
    assert len(ear.heard) == 2
