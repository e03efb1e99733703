"""The workers of one parent: their slots, which workers accept for others, and rolls.

The parent has no database code: its reports go to a worker, which stores them.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from holdfast.start.parent.child_process import COVER, REPORT, ChildProcess
from holdfast.start.parent.process_slot import SILENT_S, ProcessSlot, StartTime
from holdfast.supervision.spec import Backoff, ChildSpec
from holdfast.telemetry.reports.report import Level, Report
from holdfast.telemetry.reports.reporter import Reporter

WAITING_MAX = 1_000

BACKOFF = Backoff(0.1, 30.0, factor=3.0)
"""Steep: a slot whose process always ends at once spends little more than its share of the restart budget."""


class ReportRelay:
    """Passes reports on in their order; without a worker that serves the newest ones wait.

    ``send`` sends a line to one worker, and returns whether it was taken.
    """

    def __init__(self, send: Callable[[str], bool]) -> None:
        self._send = send
        self._waiting: deque[Report] = deque(maxlen=WAITING_MAX)

    def accept(self, report: Report) -> None:
        """Pass a report on, after those that wait: a listener of the reporter."""
        self._waiting.append(report)
        self.flush()

    def flush(self) -> None:
        """Pass on what waits, as far as it is taken."""
        while self._waiting and self._send(f"{REPORT} {msgspec.json.encode(self._waiting[0]).decode()}"):
            self._waiting.popleft()


class Workers:
    """The slots of the workers.

    ``start`` starts the process of a slot. ``on_end`` is called with the pid of each that ended,
    ``on_misconfigured`` when the first one of a slot ends with exit code 2. ``retire_s`` is how long one that was
    replaced may take to end. All reports of ``reporter`` go to a worker to be stored.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int], Awaitable[ChildProcess]],
        *,
        on_end: Callable[[int], None],
        on_misconfigured: Callable[[], None],
        retire_s: float,
        reporter: Reporter,
    ) -> None:
        self.count = count
        self._reporter = reporter
        self._relay = ReportRelay(self._tell_one)
        reporter.listen(self._relay.accept)
        self._start = start
        self._on_end = on_end
        self._on_misconfigured = on_misconfigured
        self._retire_s = retire_s
        self._slots: dict[int, ProcessSlot] = {}
        self._start_times = [StartTime() for _ in range(count)]
        self._was_ready: set[int] = set()

    def specs(self, shutdown_s: float) -> list[ChildSpec]:
        """Return the slots as children of a supervisor."""
        return [
            ChildSpec(f"worker-{slot}", partial(self._new_slot, slot), shutdown_s=shutdown_s, backoff=BACKOFF)
            for slot in range(self.count)
        ]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to every worker."""
        for slot in self._slots.values():
            slot.send_signal(number)

    def tell_all(self, line: str) -> None:
        """Send a line to every worker that serves, as far as it is taken."""
        for slot in self._slots.values():
            if slot.is_ready:
                slot.tell(line)

    async def stop_all(self) -> None:
        """Stop all workers together; a supervisor would stop one after the other."""
        for slot in self._slots.values():
            await slot.stop()

    async def roll(self) -> bool:
        """Replace the workers one after the other. False: a new one was not ready, and the rest was left alone.

        A worker that is starting may run older code, and is replaced once it is ready. A slot without one is
        skipped, because a new one is about to start there.
        """
        for number in range(self.count):
            slot = self._slots.get(number)
            if slot is None or not await slot.wait_started():
                continue
            before = slot.pids
            try:
                is_replaced = await slot.replace(retire_s=self._retire_s)
                why = "the new process was not ready in time"
            except OSError as fault:
                is_replaced, why = False, str(fault)
            if not is_replaced:
                self._report_roll(number, why, level="error")
                return False
            self._report_roll(number, f"process {_listed(before)} by {_listed(slot.pids)}")
        return True

    def _report_roll(self, number: int, reason: str, *, level: Level | None = None) -> None:
        path = f"processes/worker-{number}"
        self._reporter.report(Report(kind="roll", path=path, reason=reason, level=level))

    def _report_silence(self, number: int, pid: int, lasted_s: float | None) -> None:
        """Report that the process of a slot shows no sign of life, or does so again."""
        self._reporter.report(
            Report(
                kind="stuck" if lasted_s is None else "recovery",
                path=f"processes/worker-{number}",
                reason=f"process {pid} {'does not respond' if lasted_s is None else 'responds again'}",
                duration_s=SILENT_S if lasted_s is None else round(lasted_s, 1),
                # Its machine may be busy; if it stays silent it is killed, and its end is a crash.
                level="warning" if lasted_s is None else None,
            )
        )

    def _tell_one(self, line: str) -> bool:
        """Send a line to one worker that serves and responds; return whether one has taken it."""
        return any(slot.is_ready and slot.tell(line) for slot in self._slots.values())

    def _new_slot(self, number: int) -> ProcessSlot:
        self._slots[number] = slot = ProcessSlot(
            partial(self._start, number),
            self._start_times[number],
            on_change=self._cover,
            on_end=self._on_end,
            on_silence=partial(self._report_silence, number),
            on_misconfigured=self._on_misconfigured if number not in self._was_ready else lambda: None,
        )
        return slot

    def _cover(self) -> None:
        """Have the ready workers accept for those that are not."""
        ready = {number for number, slot in self._slots.items() if slot.is_ready}
        self._was_ready |= ready
        missing = " ".join(str(number) for number in range(self.count) if number not in ready)
        for number in ready:
            self._slots[number].tell(f"{COVER} {missing}".rstrip())
        self._relay.flush()


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
