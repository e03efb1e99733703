"""All open connections: their limits, their deadlines, and the shutdown of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog
import trio

from holdfast.http.server.connection import Address, AsgiApp, LogFault, ServerConnection
from holdfast.http.server.http1 import (
    TOO_MANY,
    TOO_MANY_OF_PEER,
    Refuse,
    ServerRefusal,
    refusal_bytes,
    refuse_in_words,
)
from holdfast.http.server.limits import (
    REFUSED_AT_ONCE_MAX,
    STALLED_S,
    SWEEP_INTERVAL_S,
    ServerLimits,
)
from holdfast.http.server.sources import OriginOf, Sources
from holdfast.sockets.connected import ConnectedSocket
from holdfast.telemetry import metrics

log = structlog.get_logger(__name__)


def log_traceback(event: str, fault: Exception) -> None:
    """Log an exception as it is."""
    log.error(event, exc_info=fault)


class Connections:
    """One incarnation of the group of connections; a child of a supervisor.

    ``peer_of`` returns by what the connections from an address count together. ``is_proxy`` returns whether it is
    a proxy's address: then its clients, whom ``origin_of`` tells apart, are limited instead of it. ``on_stop`` is
    called when the stop begins, to end responses that would go on. ``refuse`` forms the server's own responses.
    ``log_fault`` logs the faults of applications and connections, each of which closes its connection alone.
    """

    def __init__(
        self,
        limits: ServerLimits,
        *,
        peer_of: Callable[[str], str] = lambda address: address,
        is_proxy: Callable[[str], bool] = lambda _peer: False,
        origin_of: OriginOf = lambda _peer, _headers: None,
        on_stop: Callable[[], None] = lambda: None,
        refuse: Refuse = refuse_in_words,
        log_fault: LogFault = log_traceback,
    ) -> None:
        self.is_stopping = False
        self._on_stop = on_stop
        self.refuse = refuse
        self.log_fault = log_fault
        self._limits = limits
        self._peer_of = peer_of
        self._is_proxy = is_proxy
        self._sources = Sources(limits, origin_of)
        operators = limits.operators_connections_max
        self._admitted_max = {False: max(1, limits.connections_max - operators), True: operators}
        """The most connections of the public listener, and of the operators' (True)."""
        self._admitted: Counter[bool] = Counter()
        self._stalled: list[ServerConnection] = []
        """At the last sweep, the longest stalled last."""
        self._open: set[ServerConnection] = set()
        self.idle: dict[ServerConnection, None] = {}
        self._per_peer: Counter[str] = Counter()
        self._refused_count = 0
        self._nursery: trio.Nursery | None = None
        self._stop_requested = trio.Event()
        self._changed = trio.Event()
        self._has_open = trio.Event()

    # --------------------------------------------------------------------------------------- lifecycle

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve admitted connections until stopped; then finish current requests and abort the rest."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._sweep)
            task_status.started()
            await self._stop_requested.wait()
            self.begin_stop()
            with trio.move_on_after(self._limits.finish_requests_s):
                await self.wait_empty()
            for connection in tuple(self._open):
                connection.abort("stop")
            await self.wait_empty()
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Request the stop, which takes at most ``finish_requests_s``."""
        self._stop_requested.set()

    def begin_stop(self) -> None:
        """Close each connection after its current request, or after one more if it is idle."""
        self.is_stopping = True
        self._on_stop()
        for connection in tuple(self._open):
            connection.begin_stop()

    async def wait_empty(self) -> None:
        """Wait until no connection is open."""
        while self._open:
            await self._changed.wait()

    async def _sweep(self) -> None:
        while True:
            if not self._open:
                self._has_open = trio.Event()
                await self._has_open.wait()
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            for connection in tuple(self._open):
                connection.expire(now)
            self._find_stalled(now)

    def _find_stalled(self, now: float) -> None:
        """Find who could make room, where a listener has its most connections."""
        full = [each for each, most in self._admitted_max.items() if self._admitted[each] >= most > 0]
        stalled = [
            each for each in self._open if each.is_for_operators in full and now - each.waits_since() >= STALLED_S
        ]
        self._stalled = sorted(stalled, key=ServerConnection.waits_since, reverse=True)

    # ---------------------------------------------------------------------------------------- admission

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def admit(
        self,
        app: AsgiApp,
        stream: trio.abc.HalfCloseableStream,
        client: Address,
        server: Address,
        *,
        is_for_operators: bool = False,
    ) -> None:
        """Serve an accepted connection, or refuse it.

        At the limit of a peer its longest idle connection is closed; without one the new connection gets a 429. At
        the limit of a listener the longest idle or stalled one of all is closed; without one it gets a 503.
        """
        assert self._nursery is not None, "connections are admitted while the group runs"
        peer, is_proxy = self._peer_of(client[0]), self._is_proxy(client[0])
        refusal = None
        if (
            not is_proxy
            and self._per_peer[peer] >= self._limits.connections_per_peer_max
            and not self._close_longest_idle(lambda each: each.peer == peer)
        ):
            refusal = TOO_MANY_OF_PEER
        elif self._admitted[is_for_operators] >= self._admitted_max[is_for_operators] and not (
            self._close_longest_idle(lambda each: each.is_for_operators == is_for_operators)
            or self._abort_longest_stalled(is_for_operators=is_for_operators)
        ):
            refusal = TOO_MANY
        if refusal is not None:
            metrics.HTTP_CONNECTIONS_CLOSED.labels("refused").inc()
            if self._refused_count >= REFUSED_AT_ONCE_MAX and isinstance(stream, ConnectedSocket):
                stream.close_after(refusal_bytes(refusal.status, *self.refuse(refusal, peer)))
                return
        connection = ServerConnection(
            app,
            stream,
            self._limits,
            self,
            client=client,
            server=server,
            peer=peer,
            is_for_operators=is_for_operators,
            sources=self._sources if is_proxy else None,
            refusal=refusal,
        )
        # Counted here and not in its task, because many connections may be accepted before their tasks run.
        self._open.add(connection)
        self._has_open.set()
        self._count(connection, refusal, 1)
        self._nursery.start_soon(self._serve, connection, refusal)

    def _count(self, connection: ServerConnection, refusal: ServerRefusal | None, change: int) -> None:
        """Count a connection; refused ones do not count for their peer or listener."""
        if refusal is not None:
            self._refused_count += change
        else:
            self._admitted[connection.is_for_operators] += change
            self._per_peer[connection.peer] += change
            if not self._per_peer[connection.peer]:
                del self._per_peer[connection.peer]
        metrics.HTTP_CONNECTIONS.set(len(self._open))

    def close_longest_idle(self) -> bool:
        """Close the longest idle connection; return whether there was one."""
        return self._close_longest_idle(lambda _each: True)

    def _close_longest_idle(self, may_be_closed: Callable[[ServerConnection], bool]) -> bool:
        longest = next((each for each in self.idle if may_be_closed(each)), None)
        if longest is None:
            return False
        del self.idle[longest]
        longest.close()
        metrics.HTTP_CONNECTIONS_CLOSED.labels("room").inc()
        return True

    def _abort_longest_stalled(self, *, is_for_operators: bool) -> bool:
        while self._stalled:
            longest = self._stalled.pop()
            is_stalled = trio.current_time() - longest.waits_since() >= STALLED_S
            if is_stalled and longest in self._open and longest.is_for_operators == is_for_operators:
                longest.abort("room")
                return True
        return False

    async def _serve(self, connection: ServerConnection, refusal: ServerRefusal | None) -> None:
        try:
            await connection.run()
        except Exception as fault:
            # A bug of this server.
            metrics.HTTP_CONNECTIONS_CLOSED.labels("fault").inc()
            self.log_fault("a connection failed", fault)
        finally:
            self._open.discard(connection)
            self.idle.pop(connection, None)
            self._count(connection, refusal, -1)
            changed, self._changed = self._changed, trio.Event()
            changed.set()
