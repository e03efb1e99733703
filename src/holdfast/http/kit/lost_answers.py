"""Resent requests without an Idempotency-Key: a resend gets the reply to the request whose answer was lost.

Some clients send a request again when its connection breaks, and do not say so. A request whose client has gone
before its response is remembered for :data:`REMEMBERED_S` with the Idempotency-Key that it was given here; the
next equal request of the same API key gets that key, and so the reply to the first. Requests that were answered are
not remembered, so equal requests on purpose stay as many as they are.

This is known to one process for as long as it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import uuid4

import trio

REMEMBERED_S: Final = 20.0
NOTICED_WITHIN_S: Final = 0.05
"""How long an equal request waits for one under way: its resend may arrive before the break is noticed."""
LOST_MAX: Final = 10_000


@dataclass
class UnderWay:
    """How many equal requests are being answered; ``one_ended`` is set, and replaced, when one has been."""

    count: int = 0
    one_ended: trio.Event = field(default_factory=trio.Event)


class LostAnswer(NamedTuple):
    """The Idempotency-Key of a lost request, and until when (trio's time) it is remembered."""

    key: str
    until: float


class LostAnswers:
    """The requests of one process whose clients have gone before their responses."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, UnderWay] = {}
        self._lost: dict[bytes, list[LostAnswer]] = {}

    @asynccontextmanager
    async def key_of(self, digest: bytes) -> AsyncIterator[str]:
        """Yield the Idempotency-Key of a request, within which it is answered.

        ``digest`` is equal for equal requests of one API key. The request counts as lost if this context is left by
        an exception, as the cancellation for a client that disconnects is one.
        """
        if (equal := self._under_way.get(digest)) is not None:
            with trio.move_on_after(NOTICED_WITHIN_S):
                await equal.one_ended.wait()
        key = self._take(digest) or uuid4().hex
        under_way = self._under_way.setdefault(digest, UnderWay())
        under_way.count += 1
        try:
            yield key
        except BaseException:
            self._remember(digest, key)
            raise
        finally:
            under_way.count -= 1
            under_way.one_ended.set()
            under_way.one_ended = trio.Event()
            if not under_way.count:
                del self._under_way[digest]

    def _take(self, digest: bytes) -> str | None:
        """Return the key of the oldest lost request with this digest, which from now on is no longer lost."""
        now = trio.current_time()
        lost = [each for each in self._lost.pop(digest, ()) if each.until > now]
        if len(lost) > 1:
            self._lost[digest] = lost[1:]
        return lost[0].key if lost else None

    def _remember(self, digest: bytes, key: str) -> None:
        now = trio.current_time()
        if len(self._lost) >= LOST_MAX:
            self._lost = {each: lost for each, lost in self._lost.items() if lost[-1].until > now}
        if len(self._lost) < LOST_MAX:
            self._lost.setdefault(digest, []).append(LostAnswer(key, now + REMEMBERED_S))
