"""What the HTTP server is made with: listening sockets and applications in, a child of the tree out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """Where the service listens. ``operators`` None: operators' routes are served on the public socket."""

    public: socket.socket
    operators: socket.socket | None = None
    connections_max: int = 2048
    """How many connections the limit of open files leaves room for."""


def server_limits(settings: Settings, connections_max: int) -> ServerLimits:
    """The bounds of the server by the settings. An orderly stop leaves the larger part of its time to the
    actors."""
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


def http_factory(
    sockets: ListeningSockets,
    settings: Settings,
    deps: Callable[[], Dependencies],
    reporter: Reporter,
    *,
    is_final: Callable[[], bool],
) -> Callable[[], Supervisor]:
    """Make incarnations of the HTTP server. ``is_final``: whether a stop is the end of the whole service."""
    limits = server_limits(settings, sockets.connections_max)

    def is_exempt(peer: str) -> bool:
        # Everybody comes through a proxy's connections, so a proxy has no share of its own.
        address = parse_address(peer)
        return address is not None and is_trusted(address, settings.trusted_proxies)

    def make() -> Supervisor:
        public = create_app(deps(), ROUTES if sockets.operators is None else PUBLIC_ROUTES)
        apps = [public]
        group: list[Connections] = []

        def connections() -> Connections:
            # The newest incarnation; a listener starts after it, and falls with it.
            group[:] = [Connections(limits, is_exempt=is_exempt)]
            return group[0]

        def listener(listening: socket.socket, app: AsgiApp) -> Callable[[], Listener]:
            return lambda: Listener(listening, app, lambda: group[0], is_final=is_final)

        specs = [
            ChildSpec("connections", connections, shutdown_s=limits.finish_requests_s + 1.0),
            ChildSpec("listener", listener(sockets.public, cast("AsgiApp", public)), shutdown_s=1.0),
        ]
        if sockets.operators is not None:
            operators = create_app(deps(), OPERATORS_ROUTES)
            apps.append(operators)
            specs.append(
                ChildSpec(
                    "operators-listener", listener(sockets.operators, cast("AsgiApp", operators)), shutdown_s=1.0
                )
            )
        start = ChildSpec("application", lambda: RunningChild(Application(apps).run), shutdown_s=1.0)
        return Supervisor(
            "http",
            [start, *specs],
            # rest_for_one: connections need the application, listeners need the connections.
            strategy="rest_for_one",
            intensity=Intensity(10, 60.0),
            reporter=reporter,
        )

    return make


class Application:
    """The lifespans of the applications, as hypercorn keeps them."""

    def __init__(self, apps: Sequence[object]) -> None:
        self._lifespans = [Lifespan(ASGIWrapper(cast("ASGIFramework", app)), Config(), {}) for app in apps]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Start the applications, and end them when cancelled."""
        async with trio.open_nursery() as nursery:
            for lifespan in self._lifespans:
                await nursery.start(lifespan.handle_lifespan)
                await lifespan.wait_for_startup()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                nursery.cancel_scope.cancel()
