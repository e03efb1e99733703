"""The hosting worker: its rounds of one task, and their turns."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.recorded_refs import RecordedRef

from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import Host, RecordHosting
from holdfast.actors.workers import hosting
from holdfast.actors.workers.hosting import ROUNDS_MAX, TURN_TIMEOUT_S, HostingWorker
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.transitions import HostingFailure, HostOutputs
from holdfast.ledger.values import utc_now
from holdfast.providers.outbound.downloads import DownloadRefused
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.telemetry.reports.conditions import TakeOutcome, ignore_outcome
from holdfast.telemetry.traces import traceparent, within_trace


def host(number: int, task: str = "task_1", *, provider: str = "studio", at: str = "https://x.test") -> Host:
    outputs = (Output(index=0, url=f"{at}/{number}"),)
    return Host(provider, HostOutputs(task, 1, number, outputs), Hosting(), 30.0)


ROUND_1, ROUND_2 = host(1), host(2)


class TaskRecorder:
    """Records the messages to a task."""

    def __init__(self) -> None:
        self.received: list[RecordHosting] = []

    def ref(self, _key: str) -> RecordedRef:
        return RecordedRef(self.received.append)


class Fetches:
    """Downloads that end when the test opens their gate, each refused with its URL.

    Those in ``discards`` then wait, as one whose file a busy thread deletes.
    """

    def __init__(self) -> None:
        self.started: list[str] = []
        self.traces: dict[str, str | None] = {}
        self.cancelled: list[str] = []
        self.gates: Mapping[str, trio.Event] = defaultdict(trio.Event)
        self.discards: dict[str, trio.Event] = {}

    async def download(self, _client: object, url: str, *_: object, **_options: object) -> DownloadRefused:
        self.started.append(url)
        self.traces[url] = traceparent.get()
        try:
            await self.gates[url].wait()
        except trio.Cancelled:
            self.cancelled.append(url)
            raise
        finally:
            with trio.CancelScope(shield=True):
                if url in self.discards:
                    await self.discards[url].wait()
        return DownloadRefused("not_found", url, permanent=True)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    fetches = Fetches()
    monkeypatch.setattr(hosting, "download", fetches.download)
    return fetches


def new_worker(
    tmp_path: Path, take_outcome: TakeOutcome = ignore_outcome, *, downloads: Any = None
) -> tuple[TaskRecorder, WorkerRef, HostingWorker]:
    tasks, ref = TaskRecorder(), WorkerRef("hosting")
    unused: Any = None
    worker = HostingWorker(
        ref,
        downloads=downloads,
        origins_of=lambda _: frozenset(),
        store=unused,
        claims=unused,
        incoming_dir=tmp_path,
        tasks=tasks,
        take_outcome=take_outcome,
        now=utc_now,
    )
    return tasks, ref, worker


async def start_worker(
    nursery: trio.Nursery, tmp_path: Path, take_outcome: TakeOutcome = ignore_outcome, *, downloads: Any = None
) -> tuple[TaskRecorder, WorkerRef]:
    tasks, ref, worker = new_worker(tmp_path, take_outcome, downloads=downloads)
    await nursery.start(lambda *, task_status: worker.run(task_status=task_status))
    return tasks, ref


@pytest.mark.usefixtures("mock_clock")
async def test_a_later_hosting_round_cancels_an_earlier_one(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path
) -> None:
    tasks, ref = await start_worker(nursery, tmp_path)
    for message in (ROUND_1, ROUND_1, ROUND_2, ROUND_2, ROUND_1):
        ref.tell(message)
        await trio.testing.wait_all_tasks_blocked()
    assert fetches.started == ["https://x.test/1", "https://x.test/2"]
    assert fetches.cancelled == ["https://x.test/1"]
    fetches.gates["https://x.test/2"].set()
    await trio.testing.wait_all_tasks_blocked()
    failure = HostingFailure(0, "not_found: https://x.test/2", final=True)
    assert tasks.received == [RecordHosting(1, 2, (failure,))]
    # Once ended, the same round runs again on request.
    ref.tell(ROUND_2)
    await trio.testing.wait_all_tasks_blocked()
    assert len(tasks.received) == 2


async def test_a_round_without_a_turn_is_put_off_and_does_not_count(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    tasks, ref = await start_worker(nursery, tmp_path)
    for number in range(ROUNDS_MAX + 1):
        ref.tell(host(number, f"task_{number}"))
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(TURN_TIMEOUT_S + 1)
    await trio.testing.wait_all_tasks_blocked()
    assert len(fetches.started) == ROUNDS_MAX
    put_off = HostingFailure(0, "storage: other results are being stored", final=False, by_store=True)
    [put_off_round] = tasks.received
    assert put_off_round.results == (put_off,)
    # Those that have a turn keep it.
    assert fetches.cancelled == []
    fetches.gates[fetches.started[0]].set()
    await trio.testing.wait_all_tasks_blocked()
    number = put_off_round.round_number
    ref.tell(host(number, f"task_{number}"))
    await trio.testing.wait_all_tasks_blocked()
    assert fetches.started[ROUNDS_MAX:] == [f"https://x.test/{number}"]


@pytest.mark.usefixtures("mock_clock")
async def test_a_round_that_a_later_one_replaces_while_it_waits_never_starts(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path
) -> None:
    tasks, ref = await start_worker(nursery, tmp_path)
    for number in range(10, 10 + ROUNDS_MAX):
        with within_trace(f"trace_{number}"):
            ref.tell(host(number, f"task_{number}"))
    for message in (ROUND_1, ROUND_2):
        with within_trace(f"trace_{message.effect.round}"):
            ref.tell(message)
    await trio.testing.wait_all_tasks_blocked()
    fetches.gates["https://x.test/10"].set()
    fetches.gates["https://x.test/2"].set()
    await trio.testing.wait_all_tasks_blocked()
    assert fetches.started[ROUNDS_MAX:] == ["https://x.test/2"]
    numbers = (*range(10, 10 + ROUNDS_MAX), 2)
    assert fetches.traces == {f"https://x.test/{number}": f"trace_{number}" for number in numbers}
    assert [round_.round_number for round_ in tasks.received] == [10, 2]


@pytest.mark.usefixtures("mock_clock")
async def test_a_cancelled_round_may_end_after_the_later_one(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path
) -> None:
    first, second, other = "https://x.test/1", "https://x.test/2", "https://x.test/3"
    fetches.discards[first] = trio.Event()
    tasks, ref = await start_worker(nursery, tmp_path)
    for message in (host(3, "task_other"), ROUND_1, ROUND_2):
        ref.tell(message)
        await trio.testing.wait_all_tasks_blocked()
    for event in (fetches.gates[second], fetches.discards[first], fetches.gates[other]):
        event.set()
        await trio.testing.wait_all_tasks_blocked()
    assert fetches.cancelled == [first]
    assert [round_.round_number for round_ in tasks.received] == [2, 3]


async def test_a_round_replaced_as_it_ends_cancels_no_other(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "ROUNDS_MAX", 1)
    tasks, _, worker = new_worker(tmp_path)
    await nursery.start(lambda *, task_status: worker.run(task_status=task_status))
    for message in (ROUND_1, host(3, "task_3")):
        worker.on_receive(message)
    await trio.testing.wait_all_tasks_blocked()
    fetches.gates["https://x.test/1"].set()
    worker.on_receive(ROUND_2)
    for number in (2, 3):
        fetches.gates[f"https://x.test/{number}"].set()
    await trio.testing.wait_all_tasks_blocked()
    assert [each.round_number for each in tasks.received] == [1, 3, 2]
    assert fetches.cancelled == []


async def test_a_replaced_round_leaves_its_turn_to_the_next(
    nursery: trio.Nursery, fetches: Fetches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "ROUNDS_MAX", 1)
    tasks, ref = await start_worker(nursery, tmp_path)
    for message in (ROUND_1, host(3, "task_3"), ROUND_2):
        ref.tell(message)
    for number in (2, 3):
        fetches.gates[f"https://x.test/{number}"].set()
    await trio.testing.wait_all_tasks_blocked()
    assert [each.round_number for each in tasks.received] == [3, 2]


async def test_a_disk_that_takes_no_output_is_reported_and_counts_no_round(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> DownloadRefused:
        raise OSError(errno.ENOSPC, "No space left on device in /srv/incoming")

    monkeypatch.setattr(hosting, "download", full)
    outcomes: list[str | None] = []
    tasks, ref = await start_worker(nursery, tmp_path, outcomes.append)
    ref.tell(ROUND_1)
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes == ["No space left on device in /srv/incoming"]
    failure = HostingFailure(0, "storage: cannot be written at the moment", final=False, by_store=True)
    assert [each.results for each in tasks.received] == [(failure,)]


async def test_providers_that_hang_take_no_connection_of_others(nursery: trio.Nursery, tmp_path: Path) -> None:
    connected, all_hang, providers = 0, trio.Event(), 8

    async def hang(stream: trio.SocketStream) -> None:
        nonlocal connected
        connected += 1
        if connected == providers * ROUNDS_MAX:
            all_hang.set()
        async with stream:
            await trio.sleep_forever()

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, hang, [listener])
    origin = listener.socket.getsockname()
    _, ref = await start_worker(nursery, tmp_path, downloads=GuardedClient(local_allowed=True))
    for number in range(providers * ROUNDS_MAX):
        at = f"http://{origin[0]}:{origin[1]}"
        ref.tell(host(number, f"task_{number}", provider=f"provider_{number % providers}", at=at))
    await all_hang.wait()
