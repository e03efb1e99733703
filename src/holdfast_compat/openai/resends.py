"""What this process knows of requests that their clients send again, which say so and have no Idempotency-Key.

It is never needed for a task not to be created twice: which tasks exist is in the rows. It tells apart the resends
of requests that are equal on purpose.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

KEPT_MAX: Final = 10_000
"""Of how many tasks and refused requests it is known at a time."""
REFUSED_S: Final = 120.0
"""How long after a refusal its client may send the request again: they wait two minutes at most."""


class Resends:
    """Requests are equal if they are of one ``group``; a client's attempts at one request are numbered from 0."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[trio.Lock, int]] = {}
        self._joined: OrderedDict[str, int] = OrderedDict()
        """By task, the highest number of an attempt that created or joined it."""
        self._served: OrderedDict[str, None] = OrderedDict()
        """Tasks that a request waits for, or was answered with."""
        self._refused: OrderedDict[tuple[str, int], deque[float]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, group: str) -> AsyncIterator[None]:
        """Let resends of a group look for their tasks one after the other."""
        lock, count = self._locks.get(group, (trio.Lock(), 0))
        self._locks[group] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            count = self._locks[group][1] - 1
            if count:
                self._locks[group] = lock, count
            else:
                del self._locks[group]

    @contextmanager
    def served(self, request_id: str) -> Iterator[None]:
        """Note that a request waits for the task, and is answered with it unless an exception ends this."""
        self._served[request_id] = None
        self._served.move_to_end(request_id)
        if len(self._served) > KEPT_MAX:
            self._served.popitem(last=False)
        try:
            yield
        except BaseException:
            self.lose(request_id)
            raise

    def lose(self, request_id: str) -> None:
        """Note that the request which waited for the task was not answered with it, so that a resend may come."""
        self._served.pop(request_id, None)

    def choose(self, group: str, newest_first: list[str], attempt: int) -> str | None:
        """Return the task of a group that an attempt most likely belongs to; None if it is to have a new one.

        Each attempt takes the task with the highest number below its own, which then has its number. So those of
        other requests, whose numbers are lower, are left for these, whichever order they come in. And so there are
        for any number at most as many tasks with it or a higher one as requests whose last attempt here has it or a
        higher one: if none is left for an attempt, each has been taken by another request. Between equals, one that
        a request waits for or was answered with comes last: a client that sends again was not answered.

        If all are such ones, and an attempt before was refused, this one has no task: most likely it is that one's
        resend. But it may be the resend of a request whose answer was lost after it left this process, equal to the
        refused one. They differ in nothing that is sent. It then creates the task of the
        refused request, whose own resend finds the other: as many tasks as requests, and one more than was accepted
        only if that resend never comes.
        """
        free = [each for each in newest_first if self._joined.get(each, 0) < attempt]
        lost = [each for each in free if each not in self._served]
        if not lost and self._was_refused(group, attempt - 1):
            return None
        return min(free, key=lambda each: (-self._joined.get(each, 0), each in self._served), default=None)

    def joined_later(self, tasks: list[str], attempt: int) -> set[str]:
        """Return which of these tasks an attempt with a higher number created or joined."""
        return {each for each in tasks if self._joined.get(each, 0) > attempt}

    def join(self, request_id: str, attempt: int) -> None:
        """Note that an attempt created the task, or joined it."""
        self._joined[request_id] = attempt
        self._joined.move_to_end(request_id)
        if len(self._joined) > KEPT_MAX:
            self._joined.popitem(last=False)

    def refuse(self, group: str, attempt: int) -> None:
        """Note that an attempt was refused, so that its client may send the next one without having a task."""
        self._refused.setdefault((group, attempt), deque(maxlen=KEPT_MAX)).append(trio.current_time() + REFUSED_S)
        self._refused.move_to_end((group, attempt))
        if len(self._refused) > KEPT_MAX:
            self._refused.popitem(last=False)

    def _was_refused(self, group: str, attempt: int) -> bool:
        """Whether such an attempt was refused; each refusal counts once."""
        until = self._refused.get((group, attempt), deque())
        now = trio.current_time()
        while until:
            if until.popleft() > now:
                return True
        return False
