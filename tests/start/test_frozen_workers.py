"""A worker that shows no sign of life: others accept for it, and in the end it is replaced."""

from __future__ import annotations

import signal
import socket

import trio
from trio.testing import MockClock

from holdfast.start.children.control import Control
from holdfast.start.parent.child_process import ALIVE, ALIVE_S, READY
from holdfast.start.parent.process_slot import FROZEN_S, SILENT_S
from holdfast.telemetry.reports.report import in_words

from .fake_parent import Parent, running
from .fake_processes import FakeProcess

MARGIN_S = 0.1


async def live(*processes: FakeProcess, for_s: float) -> None:
    """Have processes show life for a while; it begins and ends with a sign."""
    until = trio.current_time() + for_s
    while True:
        for process in processes:
            process.say(ALIVE)
        if trio.current_time() >= until:
            break
        await trio.sleep(ALIVE_S)
    await trio.sleep(MARGIN_S)


def covered(parent: Parent, slot: int) -> str:
    """Return the last line with the slots that a worker accepts for."""
    return [line for line in parent.starter.of(slot).lines if line.startswith("cover")][-1]


async def test_a_worker_says_that_it_is_ready_and_alive_at_once(autojump_clock: MockClock) -> None:
    """One that froze between the two would not be noticed, since silence counts from the first sign of life."""
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    control = Control(child.detach())
    with parent, control._socket:
        with trio.move_on_after(ALIVE_S / 2):
            await control.show_life()
        parent.setblocking(False)
        assert parent.recv(1000) == f"{READY}\n{ALIVE}\n".encode()


async def test_others_accept_for_a_silent_worker_until_it_responds(autojump_clock: MockClock) -> None:
    parent = Parent(3)
    async with running(parent):
        silent, *others = parent.starter.started
        await live(*parent.starter.started, for_s=10)
        assert [covered(parent, slot) for slot in range(3)] == ["cover"] * 3
        await live(*others, for_s=SILENT_S)
        assert [covered(parent, slot) for slot in (1, 2)] == ["cover 0"] * 2
        assert not parent.tree.is_ready
        [stuck] = parent.reports("stuck")
        assert (stuck.path, stuck.level) == ("processes/worker-0", "warning")
        assert in_words(stuck).startswith(f"takes too long, 3 s so far: process {silent.pid} does not respond;")
        # Not by the silent one, with which it would be lost if that is killed.
        assert [
            process for process in parent.starter.started if f"{stuck.report_id}" in "".join(process.reports)
        ] == [others[0]]
        await live(silent, *others, for_s=5)
        [back] = parent.reports("recovery")
        assert back.path == "processes/worker-0"
        assert back.duration_s is not None
        assert in_words(back) == f"process {silent.pid} responds again; lasted {back.duration_s:g} s"
        assert [covered(parent, slot) for slot in range(3)] == ["cover"] * 3
        assert silent.signals == []
        assert parent.starter.started == [silent, *others]


async def test_a_parent_that_was_frozen_itself_blames_no_worker(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        workers = parent.starter.started
        await live(*workers, for_s=10)
        autojump_clock.jump(2 * FROZEN_S)
        await trio.testing.wait_all_tasks_blocked()
        await live(*workers, for_s=10)
        assert parent.reports("stuck") == []
        assert parent.reports("recovery") == []
        await live(workers[0], for_s=2 * SILENT_S)
        assert [each.path for each in parent.reports("stuck")] == ["processes/worker-1"]


async def test_a_worker_that_stays_silent_is_killed_and_replaced(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        frozen, other = parent.starter.started
        frozen.ignores_term = True
        await live(frozen, other, for_s=0)
        await live(other, for_s=FROZEN_S - 1)
        assert frozen.signals == []
        await live(other, for_s=2)
        assert frozen.signals == [signal.SIGKILL]
        assert [process.slot for process in parent.starter.started] == [0, 1, 0]
        [crash] = parent.reports("crash")
        assert crash.reason == f"process {frozen.pid} did not respond for 30 s"
        parent.starter.of(0).be_ready()
        await live(other, for_s=0)
        assert covered(parent, 1) == "cover"


async def test_a_worker_that_never_showed_life_is_not_watched(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        await trio.sleep(10 * FROZEN_S)
        assert [process.signals for process in parent.starter.started] == [[], []]
        assert [covered(parent, slot) for slot in range(2)] == ["cover"] * 2


async def test_a_retiring_worker_may_be_silent_for_its_whole_time(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        old = parent.starter.of(0)
        await live(old, for_s=0)
        nursery.start_soon(parent.workers.roll)
        await trio.sleep(MARGIN_S)
        parent.starter.of(0).be_ready()
        await trio.sleep(FROZEN_S + 5)
        assert old.signals == []
        assert parent.starter.of(0) is not old
        old.end(0)


async def test_a_silent_worker_is_replaced_by_a_roll(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        frozen = parent.starter.of(0)
        await live(frozen, for_s=0)
        await trio.sleep(SILENT_S)
        nursery.start_soon(parent.workers.roll)
        await trio.sleep(MARGIN_S)
        parent.starter.of(0).be_ready()
        await trio.sleep(60)
        assert frozen.signals == [signal.SIGKILL]
        assert parent.starter.of(0) is not frozen
        assert parent.tree.is_ready
