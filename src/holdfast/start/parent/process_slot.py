"""A slot for one child process, which is started, watched, and replaced without a gap.

A process that is frozen keeps its listening socket, and connections wait there for nothing. So a worker shows that
its event loop runs; while it does not, others accept for it.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable
from typing import Literal

import trio

from holdfast.start.exit_codes import BAD_CONFIGURATION
from holdfast.start.parent.child_process import ALIVE, ALIVE_S, READY, RETIRE, ChildProcess
from holdfast.supervision.status import ChildStatus

START_S = 60.0
"""How long a process may take until it is ready, at the first try."""
START_MAX_S = 960.0
SILENT_S = 3 * ALIVE_S
"""After this long without a sign of life others accept for a process. It may be frozen, or its machine be busy."""
FROZEN_S = 30.0
"""After this long it is killed."""
LATE_S = 1.0
"""If this process looks so much later than it meant to, it was frozen itself."""


class ProcessEnded(Exception):
    """A child process ended without being stopped, or was not ready in time."""


class StartTime:
    """How long the next process of a slot may take until it is ready: twice as long after each that was not.

    Killed after the same time again and again, it would never be ready on a machine that is busy enough.
    """

    def __init__(self) -> None:
        self.limit_s = START_S

    def note_ready(self) -> None:
        """The next one has the time of a first try."""
        self.limit_s = START_S

    def note_late(self) -> None:
        """The next one has twice the time."""
        self.limit_s = min(2 * self.limit_s, START_MAX_S)


class _Run:
    """One process of a slot."""

    def __init__(self, process: ChildProcess) -> None:
        self.process = process
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self.silent_since: float | None = None
        """Since when it has shown no sign of life (trio's clock); None while it does."""
        self.changed = trio.Event()
        self.is_reload_due = False

    def enter(self, state: Literal["ready", "ended"]) -> None:
        self.state = state
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def wait_past(self, state: Literal["starting", "ready"]) -> None:
        while self.state in ("starting", state):
            await self.changed.wait()


class ProcessSlot:
    """The process in a slot, and its successor while it is replaced; a child of a supervisor.

    It ends with its process, unless that was replaced; the supervisor then makes another one for the slot, with the
    same ``start_time``. ``on_change`` is called when its process becomes ready or ends, ``on_end`` with the pid of
    each that ended. ``on_silence`` is called with its pid when it shows no sign of life for :data:`SILENT_S`, and
    again, with how long that lasted, when it does. With ``may_finish`` a process that ends with exit code 0 had
    nothing to do.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[ChildProcess]],
        start_time: StartTime,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_end: Callable[[int], None] = lambda _pid: None,
        on_silence: Callable[[int, float | None], None] = lambda _pid, _lasted_s: None,
        on_misconfigured: Callable[[], None] = lambda: None,
        may_finish: bool = False,
    ) -> None:
        self._start = start
        self._start_time = start_time
        self._on_change = on_change
        self._on_end = on_end
        self._on_silence = on_silence
        self._on_misconfigured = on_misconfigured
        self._may_finish = may_finish
        self._runs: list[_Run] = []
        self._current: _Run | None = None
        self._nursery: trio.Nursery | None = None
        self._stopping = trio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether its process serves, and shows signs of life."""
        run = self._current
        return run is not None and run.state == "ready" and run.silent_since is None

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that run here: one, or two while it is replaced."""
        return tuple(run.process.pid for run in self._runs)

    def children(self) -> tuple[ChildStatus, ...]:
        """Return the children that a supervisor could show: none."""
        return ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run processes until stopped. Raises :class:`ProcessEnded`, in a group, and OSError."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    self._current = await self._launch(nursery)
                    task_status.started()
                    await self._stopping.wait()
                    self.send_signal(signal.SIGTERM)
                    while self._runs:
                        await self._runs[0].wait_past("ready")
                finally:
                    # Before the nursery closes: a successor whose start returns later must not be watched in it.
                    self._nursery = None
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for run in tuple(self._runs):
                    run.process.send_signal(signal.SIGKILL)
                    await self._note_end(run)
            self._on_change()

    async def stop(self) -> None:
        """Stop the process in order."""
        self._stopping.set()

    async def wait_started(self) -> bool:
        """Wait while the slot's process is starting, and return whether one serves."""
        if self._current is not None:
            await self._current.wait_past("starting")
        return self._current is not None and self._current.state == "ready"

    async def replace(self, *, retire_s: float) -> bool:
        """Start a second process, and when it is ready let the first finish, for ``retire_s`` at most.

        False: the second one was not ready in time, or the slot has no process now; the first continues. Raises
        OSError if the second one cannot be started.
        """
        old, nursery = self._current, self._nursery
        if old is None or nursery is None or self._stopping.is_set():
            return False
        new = await self._launch(nursery)
        await new.wait_past("starting")
        if new.state != "ready" or self._stopping.is_set():
            return False
        self._current = new
        self._on_change()
        old.process.tell(RETIRE)
        with trio.move_on_after(retire_s):
            await old.wait_past("ready")
        if old.state != "ended":
            old.process.send_signal(signal.SIGKILL)
            await old.wait_past("ready")
        return True

    def tell(self, line: str) -> bool:
        """Send a line to the process that serves. False: there is none, or it does not read."""
        return self._current is not None and self._current.state == "ready" and self._current.process.tell(line)

    def send_signal(self, number: int) -> None:
        """Send a signal to all processes here.

        A HUP waits until a process is ready: before that nothing handles it, and it would end the process.
        """
        for run in self._runs:
            if number == signal.SIGHUP and run.state == "starting":
                run.is_reload_due = True
            else:
                run.process.send_signal(number)

    async def _launch(self, nursery: trio.Nursery) -> _Run:
        run = _Run(await self._start())
        self._runs.append(run)
        if self._nursery is not nursery:
            # The slot has ended meanwhile.
            with trio.CancelScope(shield=True):
                run.process.send_signal(signal.SIGKILL)
                await self._note_end(run)
            return run
        nursery.start_soon(self._watch, run)
        if self._stopping.is_set():
            run.process.send_signal(signal.SIGTERM)
        return run

    async def _watch(self, run: _Run) -> None:
        trouble = await self._follow(run)
        if trouble is not None:
            run.process.send_signal(signal.SIGKILL)
        was_ready = run.state == "ready"
        code = await self._note_end(run)
        if run is not self._current or self._stopping.is_set():
            return
        if code == 0 and self._may_finish:
            self._stopping.set()
            return
        if code == BAD_CONFIGURATION and not was_ready:
            self._on_misconfigured()
        raise ProcessEnded(f"process {run.process.pid} {trouble or _how_it_ended(code)}")

    async def _follow(self, run: _Run) -> str | None:
        """Read a process's lines until it closes its side. Returns why it must be killed, if it must.

        Silence counts once it has shown a sign of life: the emulators' process shows none. It does not while this
        process was frozen itself: what it then finds unread may be from all that time.
        """
        patience_s = start_s = self._start_time.limit_s
        while True:
            with trio.move_on_after(patience_s) as waiting:
                line = await run.process.next_line()
            if not waiting.cancelled_caught:
                if line is None:
                    return None
                if line == READY and run.state == "starting":
                    patience_s = math.inf
                    self._start_time.note_ready()
                    run.enter("ready")
                    if run.is_reload_due:
                        run.process.send_signal(signal.SIGHUP)
                    self._on_change()
                elif line == ALIVE:
                    patience_s = SILENT_S
                    self._note_life(run)
            elif trio.current_time() - waiting.deadline > LATE_S:
                continue
            elif run.state == "starting":
                self._start_time.note_late()
                return f"was not ready within {start_s:g} s"
            elif run is not self._current or self._stopping.is_set():
                patience_s = math.inf  # it is ending, for which it has a limit of its own
            elif run.silent_since is not None:
                return f"did not respond for {FROZEN_S:g} s"
            else:
                patience_s = FROZEN_S - SILENT_S
                run.silent_since = trio.current_time() - SILENT_S
                self._on_silence(run.process.pid, None)
                self._on_change()

    def _note_life(self, run: _Run) -> None:
        if run.silent_since is not None:
            lasted_s, run.silent_since = trio.current_time() - run.silent_since, None
            self._on_silence(run.process.pid, lasted_s)
            self._on_change()

    async def _note_end(self, run: _Run) -> int:
        code = await run.process.wait()
        run.process.close()
        if run in self._runs:
            self._runs.remove(run)
            self._on_end(run.process.pid)
        run.enter("ended")
        return code


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
