"""What this process knows of the attempts at requests without an Idempotency-Key.

Clients send a request again when it is refused for now or its connection breaks. Requests are equal if they are of
one group: of one API key, with the same path and content. Whether an equal request is another attempt at one before
or is meant as one more is seen from what this process did with that one:

- Some clients number their attempts. Which tasks there are for them is in the rows
  (:mod:`holdfast_compat.openai.resent_creates`); here is which attempt has which task, which of the tasks were
  answered with, and which attempts were refused. None of it is needed for a task not to be created twice.
- Others do not say that they send a request again. One whose client has gone before its response is remembered for
  :data:`LOST_S` with the Idempotency-Key that it was given here, and the next equal request gets that key, and so
  the reply to the first. Requests that were answered are not remembered, so equal ones stay as many as they are.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

import trio

from holdfast.http.kit.calls import Call

KEPT_MAX: Final = 10_000
"""How many entries of a kind are kept; of more the one that was longest not set is forgotten."""
REFUSED_S: Final = 120.0
"""How long after a refusal its client may send the request again: they wait two minutes at most."""
LOST_S: Final = 20.0
"""How long a request whose client has gone is remembered."""
NOTICED_WITHIN_S: Final = 1.0
"""How long an equal request waits for one under way, whose break may be noticed after its resend has arrived."""
READ_WITHIN_CHECKPOINTS: Final = 3
"""Of a connection whose end has come to this machine, the server has read it and cancelled its handler by then."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(OrderedDict[K, V]):
    """The :data:`KEPT_MAX` entries that were set last."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > KEPT_MAX:
            self.popitem(last=False)


class Unanswered(Newest[K, deque[tuple[float, V]]]):
    """Requests without a result, by what their resends have in common; each counts once, and for ``for_s``."""

    def __init__(self, for_s: float) -> None:
        super().__init__()
        self._for_s = for_s

    def add(self, common: K, request: V) -> None:
        """Add a request, of which a resend needs to know what is given."""
        self[common] = requests = self.get(common, deque[tuple[float, V]](maxlen=KEPT_MAX))
        now = trio.current_time()
        while requests and requests[0][0] <= now:
            requests.popleft()
        requests.append((now + self._for_s, request))

    def take(self, common: K) -> V | None:
        """Return the oldest request that still counts, and forget it; None if there is none."""
        requests, now = self.pop(common, deque[tuple[float, V]]()), trio.current_time()
        while requests:
            until, request = requests.popleft()
            if until > now:
                if requests:
                    self[common] = requests
                return request
        return None


@dataclass(slots=True)
class UnderWay:
    """The requests of a group that are being handled."""

    count: int = 0
    turn: trio.Lock = field(default_factory=trio.Lock)
    one_ended: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True)
class Resend:
    """An attempt at a request after the first, by its number, and what was found out while it is handled."""

    group: str
    number: int
    acts_as: int = field(init=False)
    """Its number; or, if a refusal of the attempt before was taken for its own, what that one acted as."""
    outwaited: set[str] = field(default_factory=set)
    """Tasks of other requests: after a later attempt had joined them, this one's client was still there."""

    def __post_init__(self) -> None:
        self.acts_as = self.number


class Refused(NamedTuple):
    """An attempt that joined no task and is not known to have created one."""

    acted_as: int
    key: str
    """The key of its reply, if its create was decided after all."""


async def _read_what_has_come() -> None:
    """Let the server read what has come while this process waited, also if it was not running then."""
    for _ in range(READ_WITHIN_CHECKPOINTS):
        await trio.lowlevel.checkpoint()


def group_of(call: Call, content: bytes) -> str:
    """Return the group of a request, whose path and body are the ``content``, or what they have in common."""
    return hashlib.sha256(call.known_key.key_id.encode() + content).hexdigest()


class RequestAttempts:
    """The attempts of one process; a client's attempts at one request are numbered from 0."""

    def __init__(self) -> None:
        self._under_way: dict[str, UnderWay] = {}
        self._joined = Newest[str, int]()
        """By task, the highest number of an attempt that created or joined it."""
        self._served = Newest[str, None]()
        """Tasks that a request waits for, or was answered with."""
        self._refused = Unanswered[tuple[str, int], Refused](REFUSED_S)
        """By group and number."""
        self._lost = Unanswered[str, str](LOST_S)
        """By group, the Idempotency-Keys of requests whose clients do not number their attempts."""

    @contextmanager
    def _handling(self, group: str) -> Iterator[UnderWay]:
        under_way = self._under_way.setdefault(group, UnderWay())
        under_way.count += 1
        try:
            yield under_way
        finally:
            under_way.count -= 1
            under_way.one_ended.set()
            under_way.one_ended = trio.Event()
            if not under_way.count:
                del self._under_way[group]

    # ----------------------------------------------------------------- clients that do not number their attempts

    async def answer(
        self, group: str, respond: Callable[[str], Awaitable[V]], undelivered: list[Callable[[], None]]
    ) -> V:
        """Return the response to a request, which is made with the Idempotency-Key that the request is given.

        The request is lost if this ends with an exception, as the cancellation for a client that has gone is one,
        or if what this adds to ``undelivered`` is called.
        """
        if (equal := self._under_way.get(group)) is not None:
            with trio.move_on_after(NOTICED_WITHIN_S):
                await equal.one_ended.wait()
            await _read_what_has_come()
        key = self._lost.take(group) or token_hex(16)
        with self._handling(group):
            try:
                response = await respond(key)
                await _read_what_has_come()
            except BaseException:
                self._lost.add(group, key)
                raise
        undelivered.append(lambda: self._lost.add(group, key))
        return response

    # ------------------------------------------------------------------------ clients that number their attempts

    @asynccontextmanager
    async def turn(self, group: str) -> AsyncIterator[None]:
        """Let resends of a group look for their tasks one after the other."""
        with self._handling(group) as under_way:
            async with under_way.turn:
                yield

    @contextmanager
    def served(self, request_id: str) -> Iterator[None]:
        """Note that a request waits for the task, and is answered with it unless an exception ends this."""
        self._served[request_id] = None
        try:
            yield
        except BaseException:
            self.lose(request_id)
            raise

    def lose(self, request_id: str) -> None:
        """Note that the request which waited for the task was not answered with it, so that a resend may come."""
        self._served.pop(request_id, None)

    def join(self, request_id: str, attempt: int) -> None:
        """Note that an attempt created the task, or joined it."""
        self._joined[request_id] = attempt

    def refuse(self, resend: Resend, key: str) -> None:
        """Note that an attempt has no task, unless a reply with that key says so; its client may send the next."""
        self._refused.add((resend.group, resend.number), Refused(resend.acts_as, key))

    def must_outwait(self, resend: Resend, tasks: Iterable[str]) -> bool:
        """Whether a later attempt created or joined one of these tasks, which is then noted as outwaited."""
        later = {each for each in tasks if self._number(each) > resend.number} - resend.outwaited
        resend.outwaited |= later
        return bool(later)

    def choose(self, resend: Resend, newest_first: Mapping[str, str]) -> str | None:
        """Return the task of its group that an attempt is to join, so that it has its number; None: a new one.

        The tasks are given by the keys of the replies that say so. If there is none but such that requests wait for
        or were answered with, and the attempt before was refused here, this is most likely the resend of that one,
        which chooses as the refused attempt would have: after a first one it has no task. A refusal counts for one
        resend. If the refused attempt had created a task after all, this chooses as the attempt that has joined
        that task, or as a second one.
        """
        while (chosen := self._find(resend, newest_first.values())) is None or chosen in self._served:
            refused = self._take_refused(resend)
            if refused is None:
                return chosen
            created = newest_first.get(refused.key)
            acted_as = refused.acted_as if created is None else max(1, self._number(created))
            resend.acts_as = min(resend.acts_as, acted_as)
        if self._number(chosen) < resend.acts_as - 1:
            # Nothing has the number of the attempt before, so if one was refused it was this request's.
            self._take_refused(resend)
        return chosen

    def _find(self, resend: Resend, newest_first: Iterable[str]) -> str | None:
        """Return the task that an attempt joins if none before it was refused.

        One that its number or a higher one has joined belongs to another request. Of the others it is one with the
        highest number; of these, one that no request waits for or was answered with, since a client that sends
        again was not answered; of these, the newest.
        """
        free = [each for each in newest_first if self._number(each) < resend.acts_as]
        return max(free, key=lambda each: (self._number(each), each not in self._served), default=None)

    def _take_refused(self, resend: Resend) -> Refused | None:
        """Return what is known of a refusal of the attempt before, and forget it."""
        return self._refused.take((resend.group, resend.acts_as - 1))

    def _number(self, request_id: str) -> int:
        return self._joined.get(request_id, 0)
