"""The HTTP server: its limits, its applications, and the supervisor of its parts."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan

from holdfast.http.app import OPERATORS_ROUTES, PUBLIC_ROUTES, ROUTES, create_app
from holdfast.http.kit.client_address import is_trusted, parse_address
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.server.connection import AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener
from holdfast.settings import Settings
from holdfast.supervision.reports import Reporter
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

FINISH_REQUESTS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSockets:
    """The listening sockets. ``operators`` None: operators' routes are served on the public socket."""

    public: socket.socket
    operators: socket.socket | None = None
    connections_max: int = 2048
    """The number of connections that the limit of open files allows."""


def server_limits(settings: Settings, connections_max: int) -> ServerLimits:
    """Return the server's limits. An orderly stop leaves most of its time to the actors."""
    return ServerLimits(
        connections_max=connections_max,
        connections_per_peer_max=settings.connections_per_peer_max,
        head_timeout_s=settings.head_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        header_bytes_max=settings.header_bytes_max,
        header_count_max=settings.header_count_max,
        finish_requests_s=min(FINISH_REQUESTS_S, settings.shutdown_s / 3),
    )


def http_supervisor(
    sockets: ListeningSockets, settings: Settings, deps: Dependencies, reporter: Reporter, tree: Supervisor
) -> Supervisor:
    """Return an incarnation of the HTTP server. When ``tree`` stops, the listeners close their sockets."""
    limits = server_limits(settings, sockets.connections_max)
    group: list[Connections] = []

    def is_exempt(peer: str) -> bool:
        # All clients of a proxy share its connections, so a proxy has no limit of its own.
        address = parse_address(peer)
        return address is not None and is_trusted(address, settings.trusted_proxies)

    def connections() -> Connections:
        # Listeners start after the connections and restart with them, so they use the newest incarnation.
        group[:] = [Connections(limits, is_exempt=is_exempt)]
        return group[0]

    def listener(child_id: str, listening: socket.socket, app: object) -> ChildSpec:
        def start() -> Listener:
            return Listener(listening, cast("AsgiApp", app), lambda: group[0], is_final=lambda: tree.is_stopping)

        return ChildSpec(child_id, start, shutdown_s=1.0)

    public = create_app(deps, ROUTES if sockets.operators is None else PUBLIC_ROUTES)
    apps: list[object] = [public]
    listeners = [listener("listener", sockets.public, public)]
    if sockets.operators is not None:
        operators = create_app(deps, OPERATORS_ROUTES)
        apps.append(operators)
        listeners.append(listener("operators-listener", sockets.operators, operators))
    return Supervisor(
        "http",
        [
            ChildSpec("application", lambda: RunningChild(partial(run_lifespans, apps)), shutdown_s=1.0),
            ChildSpec("connections", connections, shutdown_s=limits.finish_requests_s + 1.0),
            *listeners,
        ],
        # rest_for_one: connections need the application, listeners need the connections.
        strategy="rest_for_one",
        intensity=Intensity(10, 60.0),
        reporter=reporter,
    )


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
