"""A pykka future for one trio thread: awaitable, and never blocking."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, TypeVar

import pykka
import trio

T = TypeVar("T")


class NotReady(RuntimeError):
    """``get`` was called on a future without a value: on trio a future is awaited, never waited for."""

    def __init__(self, future: TrioFuture[Any]) -> None:
        super().__init__("the future has no value yet; await it")
        self.future = future


class TrioFuture(pykka.Future[T]):
    """Set once, awaited by any number of trio tasks.

    pykka's combinators (``map``, ``join``, …) are hooks run by ``get``. Awaiting runs the hook, and when that
    meets a future that is not ready, waits for it and runs the hook again.
    """

    __slots__ = ("_error", "_is_set", "_value", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[trio.lowlevel.Task] = []

    @property
    def is_set(self) -> bool:
        """Whether a value or an exception is there."""
        return self._is_set

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value or raise the exception; raises :class:`NotReady` where there is neither."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self._is_set:
            raise NotReady(self)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set to a T, or bare for a future of None

    def set(self, value: T | None = None) -> None:
        """Give the future its value and wake who waits."""
        self._settle()
        self._value = value

    def set_exception(self, exc_info: Any = None) -> None:
        """Give the future an exception, as an exc_info triple or the one being handled."""
        exception = (exc_info or sys.exc_info())[1]
        assert exception is not None
        self.fail(exception)

    def fail(self, exception: BaseException) -> None:
        """Give the future an exception to raise in whoever awaits it."""
        self._settle()
        self._error = exception

    def _settle(self) -> None:
        assert not self._is_set, "a future is set once"
        self._is_set = True
        for task in self._waiting:
            trio.lowlevel.reschedule(task)
        self._waiting = []

    async def wait(self) -> T:
        """Wait for the value; a cancelled wait leaves the future as it is."""
        if self._get_hook is None:
            # What nearly every wait is: for one value that is not there yet.
            while not self._is_set:
                await self._park()
            return self.get()
        while True:
            try:
                return self.get()
            except NotReady as missing:
                await missing.future._park()

    async def _park(self) -> None:
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()
