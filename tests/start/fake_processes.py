"""Child processes that a test drives."""

from __future__ import annotations

import signal

import trio

from holdfast.start.parent.child_process import READY, ChildProcess


class FakeProcess(ChildProcess):
    """A process that is ready and ends when the test says so. A TERM ends it with 0, unless ``ignores_term``."""

    def __init__(self, slot: int, pid: int) -> None:
        self.slot = slot
        self.pid = pid
        self.lines: list[str] = []
        self.reports: list[str] = []
        self.is_deaf = False
        self.signals: list[int] = []
        self.ignores_term = False
        self.is_closed = False
        self.code: int | None = None
        self._changed = trio.Event()
        self._send, self._receive = trio.open_memory_channel[str](100)

    def be_ready(self) -> None:
        self.say(READY)

    def say(self, line: str) -> None:
        self._send.send_nowait(line)

    def end(self, code: int) -> None:
        self.code = code
        self._send.close()
        self._pulse()

    async def next_line(self) -> str | None:
        async for line in self._receive:
            return line
        return None

    async def wait(self) -> int:
        while self.code is None:
            await self._changed.wait()
        await trio.lowlevel.checkpoint()
        return self.code

    def tell(self, line: str) -> bool:
        if self.is_deaf:
            return False
        (self.reports if line.startswith("report ") else self.lines).append(line)
        return True

    def send_signal(self, number: int) -> None:
        if self.code is not None:
            return
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.end(-number)
        elif number == signal.SIGTERM and not self.ignores_term:
            self.end(0)

    def close(self) -> None:
        self.is_closed = True

    def _pulse(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class FakeStarter:
    """Starts fake processes; ``started`` has them in order."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []

    async def start(self, slot: int) -> FakeProcess:
        await trio.lowlevel.checkpoint()
        self.started.append(FakeProcess(slot, 1000 + len(self.started)))
        return self.started[-1]

    def of(self, slot: int) -> FakeProcess:
        """The newest process of a slot."""
        return [process for process in self.started if process.slot == slot][-1]
