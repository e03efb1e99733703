"""Resent requests without an Idempotency-Key: a resend gets the reply to the request whose answer was lost.

Some clients send a request again when its connection breaks, and do not say so. A request whose client has gone
before its response is remembered for :data:`REMEMBERED_S` with the Idempotency-Key that it was given here; the
next equal request of the same API key gets that key, and so the reply to the first. Requests that were answered are
not remembered, so equal requests on purpose stay as many as they are.

This is known to one process for as long as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import Final, NamedTuple

import trio

REMEMBERED_S: Final = 20.0
NOTICED_WITHIN_S: Final = 1.0
"""How long an equal request waits for one under way, whose break may be noticed after its resend has arrived."""
READ_WITHIN_CHECKPOINTS: Final = 3
"""A client that went while its answer was made has its handler cancelled by then: the server has read its end."""
LOST_MAX: Final = 10_000
"""How many different requests are remembered. Of more the oldest is forgotten: a resend comes within seconds."""


@dataclass(slots=True)
class UnderWay:
    """How many equal requests are being answered. Who waits for the end of one sets ``one_ended``."""

    count: int = 0
    one_ended: trio.Event | None = None


class LostAnswer(NamedTuple):
    """The Idempotency-Key of a lost request, and until when (trio's time) it is remembered."""

    key: str
    until: float


class LostAnswers:
    """The requests of one process whose clients have gone before their responses."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, UnderWay] = {}
        self._lost: dict[bytes, list[LostAnswer]] = {}

    def key_of(self, digest: bytes) -> AnswerContext:
        """Return the context in which a request is answered; it yields the request's Idempotency-Key.

        ``digest`` is equal for equal requests of one API key. The request counts as lost if this context is left by
        an exception, as the cancellation for a client that disconnects is one.
        """
        return AnswerContext(self, digest)

    async def begin(self, digest: bytes) -> str:
        """Begin to answer a request, and return its key."""
        if (equal := self._under_way.get(digest)) is not None:
            if equal.one_ended is None:
                equal.one_ended = trio.Event()
            with trio.move_on_after(NOTICED_WITHIN_S):
                await equal.one_ended.wait()
        key = self._take(digest) or token_hex(16)
        self._under_way.setdefault(digest, UnderWay()).count += 1
        return key

    def end(self, digest: bytes, lost_key: str | None) -> None:
        """End the answer to a request, which was lost if its key is given."""
        if lost_key is not None:
            self._remember(digest, lost_key)
        under_way = self._under_way[digest]
        under_way.count -= 1
        if under_way.one_ended is not None:
            under_way.one_ended.set()
            under_way.one_ended = None
        if not under_way.count:
            del self._under_way[digest]

    def _take(self, digest: bytes) -> str | None:
        """Return the key of the oldest lost request with this digest, which from now on is no longer lost."""
        if digest not in self._lost:
            return None
        now = trio.current_time()
        lost = [each for each in self._lost.pop(digest) if each.until > now]
        if len(lost) > 1:
            self._lost[digest] = lost[1:]
        return lost[0].key if lost else None

    def _remember(self, digest: bytes, key: str) -> None:
        if digest not in self._lost and len(self._lost) >= LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost.setdefault(digest, []).append(LostAnswer(key, trio.current_time() + REMEMBERED_S))


class AnswerContext:
    """The context of one answer; of a class, since a generator's costs each create twenty calls."""

    __slots__ = ("_answers", "_digest", "_key")

    def __init__(self, answers: LostAnswers, digest: bytes) -> None:
        self._answers = answers
        self._digest = digest
        self._key = ""

    async def __aenter__(self) -> str:
        self._key = await self._answers.begin(self._digest)
        return self._key

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: object) -> None:
        lost_key: str | None = self._key
        try:
            if kind is None:
                for _ in range(READ_WITHIN_CHECKPOINTS):
                    await trio.lowlevel.checkpoint()
                lost_key = None
        finally:
            self._answers.end(self._digest, lost_key)
