"""A pykka future for one trio thread: awaited, never blocking."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TypeVar

import pykka
import trio

T = TypeVar("T")


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

    __slots__ = ("_error", "_is_set", "_value", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[trio.lowlevel.Task] = []

    @property
    def is_set(self) -> bool:
        """Whether it has a value or an exception."""
        return self._is_set

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value or raise the exception. Raises :class:`NotReady` if it has neither."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self._is_set:
            raise NotReady(self._until_set)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set to a T, or without a value for a future of None

    def set(self, value: T | None = None) -> None:
        """Set the value and wake all waiting tasks."""
        self._settle()
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
        self._settle()
        self._error = exception

    def _settle(self) -> None:
        assert not self._is_set, "a future is set once"
        self._is_set = True
        for task in self._waiting:
            trio.lowlevel.reschedule(task)
        self._waiting = []

    async def wait(self) -> T:
        """Wait for the value. Cancelling the wait does not change the future."""
        if self._get_hook is None:
            # The usual case: one value, not set yet.
            while not self._is_set:
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
