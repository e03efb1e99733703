"""All open connections: their limits, their deadlines, and the shutdown of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog
import trio

from holdfast import metrics
from holdfast.http.kit.client_address import origin_of, parse_address
from holdfast.http.server.connection import Address, AsgiApp, Connection
from holdfast.http.server.limits import REFUSED_AT_ONCE_MAX, SWEEP_INTERVAL_S, ServerLimits
from holdfast.ledger.refusals import Refusal
from holdfast.reports.causes import describe

log = structlog.get_logger("holdfast.http")

_TOO_MANY = Refusal(code="overloaded", message="Too many connections are open; try again later.")
_TOO_MANY_OF_PEER = Refusal(code="overloaded", message="Too many connections are open from this address.")


class Connections:
    """One incarnation of the group of connections; a child of a supervisor.

    ``is_exempt`` returns whether a peer, such as a proxy, is exempt from the limit per peer. ``on_stop`` is called
    when the stop begins, to end responses that would go on. A fault in a connection closes that connection and is
    logged; it does not end this group.
    """

    def __init__(
        self,
        limits: ServerLimits,
        *,
        is_exempt: Callable[[str], bool] = lambda _peer: False,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_stopping = False
        self._on_stop = on_stop
        self._limits = limits
        self._is_exempt = is_exempt
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        self._per_peer: Counter[str] = Counter()
        self._refused_count = 0
        self._nursery: trio.Nursery | None = None
        self._stop_requested = trio.Event()
        self._changed = trio.Event()

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
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            for connection in tuple(self._open):
                connection.expire(now)

    # ---------------------------------------------------------------------------------------- admission

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def admit(self, app: AsgiApp, stream: trio.abc.HalfCloseableStream, client: Address, server: Address) -> None:
        """Serve an accepted connection, or refuse it.

        At the limit the longest idle connection is closed. If none is idle, or the peer is at its own limit, the
        new connection gets a 503.
        """
        assert self._nursery is not None, "connections are admitted while the group runs"
        peer = origin_of(parse_address(client[0]))
        refusal = None
        if self._per_peer[peer] >= self._limits.connections_per_peer_max and not self._is_exempt(client[0]):
            refusal = _TOO_MANY_OF_PEER
        elif (
            len(self._open) - self._refused_count >= self._limits.connections_max and not self.close_longest_idle()
        ):
            refusal = _TOO_MANY
        connection = Connection(app, stream, self._limits, self, client=client, server=server, refusal=refusal)
        if refusal is not None:
            metrics.HTTP_CONNECTIONS_CLOSED.labels("refused").inc()
            if self._refused_count >= REFUSED_AT_ONCE_MAX:
                connection.close()
                return
        # Counted here and not in its task, because many connections may be accepted before their tasks run.
        self._open.add(connection)
        self._per_peer[peer] += 1
        self._refused_count += refusal is not None
        metrics.HTTP_CONNECTIONS.set(len(self._open))
        self._nursery.start_soon(self._serve, connection, peer, refusal is not None)

    def close_longest_idle(self) -> bool:
        """Close the longest idle connection; return whether there was one."""
        longest = next(iter(self._idle), None)
        if longest is None:
            return False
        self.became_busy(longest)
        longest.close()
        metrics.HTTP_CONNECTIONS_CLOSED.labels("room").inc()
        return True

    def became_idle(self, connection: Connection) -> None:
        """Record that a connection waits for its next request."""
        self._idle[connection] = None

    def became_busy(self, connection: Connection) -> None:
        """Record that a connection has a request."""
        self._idle.pop(connection, None)

    async def _serve(self, connection: Connection, peer: str, is_refused: bool) -> None:
        try:
            await connection.run()
        except Exception as fault:
            # A bug of this server. The exception may contain the client's data, so it is scrubbed.
            metrics.HTTP_CONNECTIONS_CLOSED.labels("fault").inc()
            found = describe(fault)
            log.error("a connection failed", type=found.reason_type, reason=found.reason, location=found.location)
        finally:
            self._open.discard(connection)
            self._idle.pop(connection, None)
            self._refused_count -= is_refused
            self._per_peer[peer] -= 1
            if not self._per_peer[peer]:
                del self._per_peer[peer]
            metrics.HTTP_CONNECTIONS.set(len(self._open))
            changed, self._changed = self._changed, trio.Event()
            changed.set()
