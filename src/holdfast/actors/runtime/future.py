"""A pykka future for one trio thread: awaited, never blocking; and the deadlines of those that asks wait for."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Final, TypeVar

import pykka
import trio

from holdfast.actors.runtime.faults import OutcomeUnknown

T = TypeVar("T")

NEVER: Final = float("inf")
GRAIN_S: Final = 0.02
"""The shortest time between two runs of the timer of deadlines, each of which scans the whole table."""


class NotReady(RuntimeError):
    """``get`` was called on a future that has no value yet. Await ``until_set()``, then call it again."""

    def __init__(self, until_set: Callable[[], Awaitable[None]]) -> None:
        super().__init__("the future has no value yet; await it")
        self.until_set = until_set


class TrioFuture(pykka.Future[T]):
    """A future that is set once and awaited by any number of trio tasks.

    pykka's combinators (``map``, ``join``, …) are hooks run by ``get``. Awaiting runs the hook; where that meets a
    future that is not ready, it waits for that one and runs the hook again.
    """

    __slots__ = ("_error", "_value", "_waiting", "is_set")

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False
        """Whether it has a value or an exception."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[trio.lowlevel.Task] = []

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value or raise the exception. Raises :class:`NotReady` if it has neither."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.is_set:
            raise NotReady(self._until_set)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set to a T, or without a value for a future of None

    def set(self, value: T | None = None) -> None:
        """Set the value and wake all waiting tasks."""
        self._wake()
        self._value = value

    def set_exception(
        self,
        exc_info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] | None = None,
    ) -> None:
        """Set an exception: that of ``exc_info``, or the one being handled."""
        exception = (exc_info or sys.exc_info())[1]
        assert exception is not None
        self.fail(exception)

    def fail(self, exception: BaseException) -> None:
        """Set an exception, to be raised in all waiting tasks."""
        self._wake()
        self._error = exception

    def _wake(self) -> None:
        assert not self.is_set, "a future is set once"
        self.is_set = True
        for task in self._waiting:
            trio.lowlevel.reschedule(task)
        self._waiting = []

    async def wait(self) -> T:
        """Wait for the value. Cancelling the wait does not change the future."""
        if self._get_hook is None:
            # The usual case: one value, not set yet.
            while not self.is_set:
                await self._until_set()
            return self.get()
        while True:
            try:
                return self.get()
            except NotReady as missing:
                await missing.until_set()

    async def _until_set(self) -> None:
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def __await__(self) -> Generator[None, None, T]:
        return self.wait().__await__()


class AskDeadlines:
    """The deadlines (trio's clock) of asks, by their futures, with one timer.

    A cancel scope for each ask would cost as much as the ask. The timer is a system task of trio, since an ask
    outlives a restart of the directory it was sent to.
    """

    def __init__(self) -> None:
        self._waiting: dict[TrioFuture[object], tuple[float, float]] = {}
        self._alarm_at = NEVER
        self._sooner: trio.Event | None = None

    def add(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> None:
        """Fail ``future`` with :class:`OutcomeUnknown` unless it is set or removed before ``deadline``.

        It fails then or a moment later (:data:`GRAIN_S`), never sooner.
        """
        self._waiting[future] = (deadline, deadline_s)
        if deadline < self._alarm_at:
            self._alarm_at = deadline
            if self._sooner is None:
                self._sooner = trio.Event()
                trio.lowlevel.spawn_system_task(self._run, name="ask deadlines")
            else:
                self._sooner.set()

    async def wait(self, future: TrioFuture[object], deadline: float, deadline_s: float) -> object:
        """Return what ``future`` is set to. Raises :class:`OutcomeUnknown` unless that is before ``deadline``."""
        self.add(future, deadline, deadline_s)
        try:
            return await future.wait()
        finally:
            self.remove(future)

    def remove(self, future: TrioFuture[object]) -> None:
        """Forget ``future``: its ask has ended."""
        self._waiting.pop(future, None)

    async def _run(self) -> None:
        # The timer is not moved when an ask ends: the next ask then finds one that is early enough.
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._alarm_at):
                await self._sooner.wait()
                continue
            now = trio.current_time()
            for future, (deadline, deadline_s) in list(self._waiting.items()):
                if deadline <= now:
                    del self._waiting[future]
                    if not future.is_set:
                        future.fail(OutcomeUnknown(f"no answer within {deadline_s:g} s"))
            earliest = min((deadline for deadline, _ in self._waiting.values()), default=NEVER)
            self._alarm_at = max(earliest, now + GRAIN_S)
