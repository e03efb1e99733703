"""The memory that bodies of requests take, shared so that who has most of it makes room for others."""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

from holdfast.ledger.refusals import Refusal

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""What all bodies take together. With what is parsed of them it is half of the memory of a small machine, and with
the largest bodies that the settings allow by default it is 128 requests at once.
"""

UNCOUNTED_BYTES_MAX: Final = 64 * 1024
"""A body that says it is no larger is not counted: the server reads as much ahead of any."""

NO_MEMORY: Final = Refusal(
    code="overloaded",
    message="Too many large bodies are received at once, most of them from this account or address. "
    "Nothing was changed; try again later.",
)


class HeldBody:
    """A body from its first byte until its request has ended, or has no use for it any more."""

    __slots__ = ("_memory", "bytes_count", "callers", "is_refused", "last_s", "preparation")

    def __init__(self, memory: BodyMemory, callers: tuple[str, str]) -> None:
        self._memory = memory
        self.callers = callers
        self.bytes_count = 0
        self.last_s = 0.0
        """When its last part came."""
        self.preparation = trio.CancelScope()
        """Around its reading and parsing: nothing was done for the request yet."""
        self.is_refused = False

    def add(self, bytes_count: int) -> None:
        """Count a part that has come. This or another body may then be refused."""
        self._memory.add(self, bytes_count)

    def begin_request(self) -> Refusal | None:
        """Note that the body is read and parsed: it is refused now, or not any more."""
        self._memory.begin_request(self)
        return NO_MEMORY if self.is_refused else None

    def release(self) -> None:
        """Count the body no more; once is enough."""
        self._memory.release(self)


class BodyMemory:
    """Counts the bytes of bodies in memory, by their accounts and origins.

    When they are more than ``bytes_max``, a body that is still received or parsed is refused: one of the account or
    the origin that has most bytes, and of its bodies the one of which nothing has come for longest.
    """

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._counts: Counter[str] = Counter()
        """How many bytes each account and each origin has."""
        self._prepared: dict[HeldBody, None] = {}
        """The bodies that may be refused."""
        self.bytes_count = 0

    def begin(self, caller: str | None, origin: str) -> HeldBody:
        """Begin to count a body, of a caller if it is known; :meth:`HeldBody.release` ends it."""
        origin = f"origin:{origin}"
        body = HeldBody(self, (caller or origin, origin))
        self._prepared[body] = None
        return body

    def add(self, body: HeldBody, bytes_count: int) -> None:
        """Count a part of a body, and refuse bodies until all others have room."""
        if body.is_refused:
            return
        body.last_s = trio.current_time()
        self._count(body, bytes_count)
        while self.bytes_count > self._bytes_max and self._prepared:
            refused = max(self._prepared, key=self._weight)
            refused.is_refused = True
            refused.preparation.cancel()
            self.release(refused)

    def begin_request(self, body: HeldBody) -> None:
        """Refuse the body no more."""
        self._prepared.pop(body, None)

    def release(self, body: HeldBody) -> None:
        """Count a body no more."""
        self._prepared.pop(body, None)
        self._count(body, -body.bytes_count)

    def _weight(self, body: HeldBody) -> tuple[list[int], float]:
        """What its account or its origin has, by whichever has more, then by the other, then how old it is."""
        return sorted((self._counts[each] for each in body.callers), reverse=True), -body.last_s

    def _count(self, body: HeldBody, change: int) -> None:
        self.bytes_count += change
        body.bytes_count += change
        for each in body.callers:
            self._counts[each] += change
            if not self._counts[each]:
                del self._counts[each]
