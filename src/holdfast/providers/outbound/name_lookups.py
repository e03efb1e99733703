"""Resolve host names with bounded waiting.

The system's resolver blocks a thread, for half a minute if a name's servers do not respond, and some names are
chosen by callers. So each purpose has a limited number of threads of its own, a requester (an account, a provider)
gets only a share of them, and a caller waits for a short time; the thread then ends by itself. A name that failed
is not resolved again for a while. Concurrent callers of one name share a look-up.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from holdfast.providers.outbound.addresses import names_address
from holdfast.telemetry import metrics

THREADS_MAX_COUNT: Final = 64
PER_REQUESTER_MAX_COUNT: Final = 2
TIMEOUT_S: Final = 2.0
"""How long a caller waits for a thread, and then for the thread's answer."""
DEAD_FIRST_S: Final = 5.0
DEAD_MAX_S: Final = 300.0
LATE_ANSWER_S: Final = 60.0
"""How long a response is cached that arrived after its callers' timeout, for their next attempt."""
REMEMBERED_MAX_COUNT: Final = 4096
PROVIDER_TIMEOUT_S: Final = 5.0
PROVIDER_DEAD_MAX_S: Final = 10.0

_PASSING: Final = frozenset({socket.EAI_SYSTEM, socket.EAI_MEMORY})
"""Errors of this machine rather than of the name."""

Found = list[Any] | Exception
"""What the system's resolver returned or raised."""
StartThread = Callable[[Callable[[], Found], Callable[[Any], object]], object]
"""Runs the first function in a thread and passes its outcome to the second, in that thread."""


class _Query(NamedTuple):
    """The arguments of ``getaddrinfo``."""

    host: bytes | None
    port: bytes | str | int | None
    family: int = 0
    type: int = 0
    proto: int = 0
    flags: int = 0


@dataclass(eq=False, slots=True)
class _LookUp:
    """One call of the system's resolver, running in a thread."""

    query: _Query
    requester: str
    done: trio.Event = field(default_factory=trio.Event)
    found: Found | None = None
    is_late: bool = False


@dataclass(slots=True)
class _Remembered:
    """Until when a failed name is not resolved again, or a late answer."""

    until: float
    failures: int = 0
    answers: dict[_Query, list[Any]] = field(default_factory=dict)


class NameLookups(trio.abc.HostnameResolver):
    """Look-ups for one ``purpose``, a label in the metrics. Bound to one run of trio.

    At most ``threads_max_count`` threads, including those whose callers have stopped waiting, and at most
    ``per_requester_max_count`` of them for one requester. A name that failed is refused at once for
    ``DEAD_FIRST_S``, twice as long after each further failure, and never longer than ``dead_max_s``.
    ``start_thread`` is replaced in tests.
    """

    def __init__(
        self,
        purpose: str,
        *,
        threads_max_count: int = THREADS_MAX_COUNT,
        per_requester_max_count: int = PER_REQUESTER_MAX_COUNT,
        timeout_s: float = TIMEOUT_S,
        dead_max_s: float = DEAD_MAX_S,
        start_thread: StartThread = trio.lowlevel.start_thread_soon,
    ) -> None:
        self.purpose = purpose
        self.limiter = trio.CapacityLimiter(threads_max_count)
        self._per_requester_max_count = per_requester_max_count
        self._timeout_s = timeout_s
        self._dead_max_s = dead_max_s
        self._start_thread = start_thread
        self._shares: dict[str, trio.CapacityLimiter] = {}
        self._under_way: dict[_Query, _LookUp] = {}
        self._remembered: OrderedDict[bytes | None, _Remembered] = OrderedDict()

    async def addresses(self, host: str, port: int, *, requester: str = "") -> Sequence[str]:
        """Return a host's addresses, in the system's order. Raises ``OSError`` and ``UnicodeError``."""
        if names_address(host):
            return [host]
        query = _Query(host.encode("ascii"), port, type=socket.SOCK_STREAM)
        found = await self._answer(query, requester)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def getaddrinfo(  # noqa: PLR0917 - the signature is trio's
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve a name for trio; each name has its own share of the threads."""
        requester = "" if host is None else host.decode("ascii", "replace")
        return await self._answer(_Query(host, port, family, type, proto, flags), requester)

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        """Return the name of an address."""
        return await trio.to_thread.run_sync(
            socket.getnameinfo, sockaddr, flags, limiter=self.limiter, abandon_on_cancel=True
        )

    async def _answer(self, query: _Query, requester: str) -> list[Any]:
        look_up = None
        while look_up is None:
            remembered = self._remembered.get(query.host)
            if remembered is not None and trio.current_time() < remembered.until:
                metrics.NAME_LOOKUPS.labels(self.purpose, "remembered").inc()
                if query in remembered.answers:
                    return remembered.answers[query]
                if remembered.failures:
                    raise socket.gaierror(socket.EAI_AGAIN, "the name failed to resolve recently")
            look_up = self._under_way.get(query) or await self._begin(query, requester)
        with trio.move_on_after(self._timeout_s):
            await look_up.done.wait()
        if look_up.found is None:
            metrics.NAME_LOOKUPS.labels(self.purpose, "timed_out").inc()
            look_up.is_late = True
            self._note_failure(query.host)
            raise socket.gaierror(socket.EAI_AGAIN, "the name was not resolved in time")
        if isinstance(look_up.found, Exception):
            # A copy for each caller: raising one exception again and again makes its traceback grow.
            raise copy(look_up.found) from None
        return look_up.found

    async def _begin(self, query: _Query, requester: str) -> _LookUp | None:
        """Start a thread once one is free; None if another caller has started the same look-up."""
        look_up = _LookUp(query, requester)
        share = self._shares.setdefault(requester, trio.CapacityLimiter(self._per_requester_max_count))
        held: list[trio.CapacityLimiter] = []
        try:
            with trio.move_on_after(self._timeout_s):
                for limiter in (share, self.limiter):
                    await limiter.acquire_on_behalf_of(look_up)
                    held.append(limiter)
            if len(held) == 2 and query not in self._under_way:
                self._start(look_up)
                held.clear()
                return look_up
            if query in self._under_way:
                return None
            metrics.NAME_LOOKUPS.labels(self.purpose, "no_thread").inc()
            raise socket.gaierror(socket.EAI_AGAIN, "too many name look-ups are running")
        finally:
            for limiter in held:
                limiter.release_on_behalf_of(look_up)
            self._drop_share(requester)

    def _start(self, look_up: _LookUp) -> None:
        token = trio.lowlevel.current_trio_token()

        def deliver(outcome: Any) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._finish, look_up, outcome.unwrap())

        self._under_way[look_up.query] = look_up
        try:
            self._start_thread(partial(_resolve, look_up.query), deliver)
        except RuntimeError as fault:
            del self._under_way[look_up.query]
            raise OSError("no thread can be started to look up a name") from fault

    def _finish(self, look_up: _LookUp, found: Found) -> None:
        """Record the thread's outcome, whether or not a caller still waits."""
        query = look_up.query
        del self._under_way[query]
        self._shares[look_up.requester].release_on_behalf_of(look_up)
        self.limiter.release_on_behalf_of(look_up)
        self._drop_share(look_up.requester)
        look_up.found = found
        look_up.done.set()
        if isinstance(found, Exception):
            metrics.NAME_LOOKUPS.labels(self.purpose, "failed").inc()
            if isinstance(found, socket.gaierror) and found.errno not in _PASSING:
                self._note_failure(query.host)
            return
        metrics.NAME_LOOKUPS.labels(self.purpose, "late" if look_up.is_late else "answered").inc()
        self._remembered.pop(query.host, None)
        if look_up.is_late:
            self._remember(query.host, _Remembered(trio.current_time() + LATE_ANSWER_S, answers={query: found}))

    def _note_failure(self, host: bytes | None) -> None:
        """Refuse the name for a while, longer each time; further failures while it is refused are not counted."""
        known, now = self._remembered.get(host), trio.current_time()
        if known is not None and known.failures and now < known.until:
            return
        failures = 1 + (0 if known is None else known.failures)
        pause_s = min(self._dead_max_s, DEAD_FIRST_S * 2 ** min(failures - 1, 16))
        self._remember(host, _Remembered(now + pause_s, failures))

    def _remember(self, host: bytes | None, remembered: _Remembered) -> None:
        self._remembered[host] = remembered
        self._remembered.move_to_end(host)
        if len(self._remembered) > REMEMBERED_MAX_COUNT:
            self._remembered.popitem(last=False)

    def _drop_share(self, requester: str) -> None:
        share = self._shares.get(requester)
        if share is not None and not share.borrowed_tokens and not share.statistics().tasks_waiting:
            del self._shares[requester]


def limit_name_lookups() -> None:
    """Make trio resolve all other names, those of configured servers, in threads of their own.

    For the running call of ``trio.run``. The operator chose these names, so the timeout is longer and retries are
    sooner.
    """
    names = NameLookups("providers", timeout_s=PROVIDER_TIMEOUT_S, dead_max_s=PROVIDER_DEAD_MAX_S)
    trio.socket.set_custom_hostname_resolver(names)


def _resolve(query: _Query) -> Found:
    """Call the system's resolver; blocks."""
    try:
        return socket.getaddrinfo(*query)
    except Exception as fault:
        return fault
