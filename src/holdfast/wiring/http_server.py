"""The HTTP server: its limits, its applications, and the supervisor of its parts."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan

from holdfast.http.app import OPERATORS_ROUTES, PUBLIC_ROUTES, SERVED, HoldfastApp
from holdfast.http.kit.client_address import client_address, hops_of, is_trusted, origin_of, parse_address
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.extensions import what_is_lacking
from holdfast.http.kit.forwarding import Clients
from holdfast.http.kit.responses import server_response
from holdfast.http.server.connection import AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener
from holdfast.http.services.receipt_pdf import EXTRA, can_render
from holdfast.settings.checks import CORE
from holdfast.settings.settings import Settings
from holdfast.sockets.listening import Sockets
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild
from holdfast.telemetry.reports.causes import describe
from holdfast.telemetry.reports.reporter import Reporter

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

log = structlog.get_logger(__name__)

FINISH_REQUESTS_S = 5.0
SEND_LATE_S = 5.0
"""How much longer than its head and body a request may take when a retired worker finishes it."""
ORIGINS_CACHED = 1024
OPERATORS_LISTENER = "operators-listener"


def server_limits(settings: Settings) -> ServerLimits:
    """Return the server's limits. An orderly stop leaves most of its time to the actors."""
    return ServerLimits(
        connections_max=settings.connections_max,
        operators_connections_max=0 if settings.ops_port is None else max(1, settings.connections_max // 8),
        connections_per_peer_max=settings.connections_per_peer_max,
        head_timeout_s=settings.head_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        header_bytes_max=settings.header_bytes_max,
        body_bytes_max=settings.body_bytes_max,
        header_count_max=settings.header_count_max,
        finish_requests_s=min(FINISH_REQUESTS_S, settings.shutdown_s / 3),
    )


class HttpServer:
    """The HTTP server of the process in ``slot``, across its incarnations, on its sockets.

    While another worker is down it accepts on that one's too. ``is_final``: whether the tree is stopping.
    """

    def __init__(
        self, sockets: Sockets, slot: int, deps: Dependencies, reporter: Reporter, is_final: Callable[[], bool]
    ) -> None:
        for distribution, purpose in what_is_lacking().items():
            log.info(f"no {purpose}: {distribution} is not installed")
        if not can_render():
            log.info(f"no receipts as PDF: {CORE}[{EXTRA}] is not installed")
        self._own = sockets.of_slots[slot]
        self._siblings = {number: each for number, each in sockets.of_slots.items() if number != slot}
        self._is_shared = sockets.is_shared
        self._settings = deps.settings
        self._deps = deps
        self._clients = None if deps.cells is None else deps.state(Clients)
        self._reporter = reporter
        self._is_final = is_final
        self._limits = server_limits(deps.settings)
        self._proxy_header = deps.settings.proxy_header.lower().encode()
        reported = partial(_origin_reported, deps.settings)
        self._origin_reported = functools.lru_cache(maxsize=ORIGINS_CACHED)(reported)
        self._connections = Connections(self._limits)
        self._listeners: dict[str, Listener] = {}
        self._covered: Collection[int] = ()
        self._covering_changed = trio.Event()

    def start(self) -> Supervisor:
        """Return an incarnation. When the tree stops, the listeners close their sockets."""
        limits, own = self._limits, self._own
        public = HoldfastApp(self._deps, SERVED if own.operators is None else PUBLIC_ROUTES)
        apps: list[object] = [public]
        listeners = [self._listener("listener", own.public, public)]
        if own.operators is not None:
            operators = HoldfastApp(self._deps, OPERATORS_ROUTES)
            apps.append(operators)
            listeners.append(self._listener(OPERATORS_LISTENER, own.operators, operators))
        if self._siblings:
            run = partial(self._accept_for_siblings, apps)
            listeners.append(ChildSpec("siblings-listener", lambda: RunningChild(run), shutdown_s=1.0))
        return Supervisor(
            "http",
            [
                ChildSpec("application", lambda: RunningChild(partial(run_lifespans, apps)), shutdown_s=1.0),
                ChildSpec(
                    "refused-requests", lambda: RunningChild(self._deps.operating.refused.run), shutdown_s=1.0
                ),
                ChildSpec("connections", self._new_connections, shutdown_s=limits.finish_requests_s + 1.0),
                *listeners,
            ],
            # rest_for_one: connections need the application, listeners need the connections.
            strategy="rest_for_one",
            intensity=Intensity(10, 60.0),
            reporter=self._reporter,
            conditions=self._deps.conditions,
        )

    async def retire(self) -> None:
        """Close the listening sockets, and wait for the open connections for as long as a request may take.

        For a process whose successor serves already: nothing is cut that a client could still finish.
        """
        settings = self._settings
        self.accept_for(())
        for listener in self._listeners.values():
            listener.retire()
        self._connections.begin_stop()
        with trio.move_on_after(settings.head_timeout_s + settings.body_timeout_s + SEND_LATE_S):
            await self._connections.wait_empty()

    async def close_clients(self) -> None:
        """Close the connections to other cells."""
        if self._clients is not None:
            await self._clients.close()

    def accept_for(self, slots: Collection[int]) -> None:
        """Accept on the sockets of the workers in ``slots`` too, and of no others."""
        self._covered = slots
        changed, self._covering_changed = self._covering_changed, trio.Event()
        changed.set()

    def _new_connections(self) -> Connections:
        # Listeners start after the connections and restart with them, so they use the newest incarnation.
        self._deps.following.changes.is_ending = False
        self._connections = Connections(
            self._limits,
            peer_of=lambda address: origin_of(parse_address(address)),
            is_proxy=self._is_proxy,
            origin_of=self._origin_of,
            on_stop=self._end_waits,
            refuse=partial(server_response, self._deps.operating.refused),
            log_fault=log_fault,
        )
        return self._connections

    def _end_waits(self) -> None:
        """End the responses that would go on, or wait for something."""
        self._deps.operating.reports.end_readers()
        self._deps.following.changes.end()

    def _is_proxy(self, peer: str) -> bool:
        address = parse_address(peer)
        return address is not None and is_trusted(address, self._settings.trusted_proxies)

    def _origin_of(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Return by what a request that came through a proxy counts; None if the proxy reports no client."""
        return self._origin_reported(peer, tuple(value for name, value in headers if name == self._proxy_header))

    def _listener(self, child_id: str, listening: socket.socket, app: object) -> ChildSpec:
        def start() -> Listener:
            self._listeners[child_id] = listener = Listener(
                listening,
                cast("AsgiApp", app),
                lambda: self._connections,
                is_final=self._is_final,
                is_shared=self._is_shared,
                is_for_operators=child_id == OPERATORS_LISTENER,
            )
            return listener

        return ChildSpec(child_id, start, shutdown_s=1.0)

    async def _accept_for_siblings(self, apps: Sequence[object], *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            while True:
                async with trio.open_nursery() as nursery:
                    for sibling in [self._siblings[slot] for slot in self._covered if slot in self._siblings]:
                        # In the order of the applications: public, operators.
                        for listening, app in zip(sibling.each(), apps, strict=False):
                            listener = Listener(
                                listening,
                                cast("AsgiApp", app),
                                lambda: self._connections,
                                is_final=lambda: False,
                                is_for_operators=app is not apps[0],
                            )
                            nursery.start_soon(listener.run)
                    await self._covering_changed.wait()
                    nursery.cancel_scope.cancel()
        finally:
            if self._is_final():
                # Without a parent these may be the last copies. Clients would wait at them, and the next service
                # could not have the address, for as long as this process finishes requests.
                for sibling in self._siblings.values():
                    for listening in sibling.each():
                        listening.close()


def _origin_reported(settings: Settings, peer: str, header_lines: tuple[bytes, ...]) -> str | None:
    lines = [line.decode("latin1") for line in header_lines]
    address = client_address(peer, lines, settings.trusted_proxies, header=settings.proxy_header)
    if address is not None and is_trusted(address, settings.trusted_proxies):
        # A client must not escape its limit by a header that cannot be read: those who send one count together.
        is_unreadable = bool(lines) and hops_of(lines, settings.proxy_header) is None
        return origin_of(parse_address(peer)) if is_unreadable else None
    return None if address is None else origin_of(address)


def log_fault(event: str, fault: Exception) -> None:
    """Log a fault of a connection, scrubbed: its text may contain the client's data."""
    found = describe(fault)
    log.error(event, type=found.reason_type, reason=found.reason, location=found.location)


async def run_lifespans(apps: Sequence[object], *, task_status: trio.TaskStatus[None]) -> None:
    """Start the applications by the ASGI lifespan protocol, and end them when cancelled."""
    lifespans = [Lifespan(ASGIWrapper(cast("ASGIFramework", app)), Config(), {}) for app in apps]
    async with trio.open_nursery() as nursery:
        for lifespan in lifespans:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            nursery.cancel_scope.cancel()
