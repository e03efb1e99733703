"""Health, readiness and metrics."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from quart import Response

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import BodyResponse, Media, Outcome, RouteTable
from holdfast.providers.media.health import ProviderState

route = RouteTable("Service")

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Alive(msgspec.Struct, frozen=True):
    """The process responds."""

    status: Literal["alive"]
    """Always `alive`."""


class Ready(msgspec.Struct, frozen=True):
    """Whether each part works."""

    ready: bool
    """Whether the process takes requests."""
    database: bool
    """Whether the database answers."""
    tree: bool
    """Whether the supervisor tree runs."""
    providers: dict[str, bool]
    """For each media provider by its name, whether its state is anything but `down`."""
    provider_states: dict[str, ProviderState]
    """The state of each media provider, by its name."""


@route("GET", "/healthz", summary="Check whether the process is alive", reply=Alive)
async def healthz(_call: Call) -> Outcome:
    """Checks nothing but this process: an unavailable database is no reason to restart the process."""
    return Alive(status="alive")


@route(
    "GET",
    "/readyz",
    summary="Check whether the service is ready for requests; 503 if not",
    reply=Ready,
    statuses=(200, 503),
)
async def readyz(call: Call) -> Outcome:
    """For load balancers."""
    found = call.deps.operating.readiness()
    body = Ready(
        ready=found.ready,
        database=found.database,
        tree=found.tree,
        providers={name: state != "down" for name, state in found.providers.items()},
        provider_states=dict(found.providers),
    )
    return BodyResponse(body) if found.ready else BodyResponse(body, status=503, headers=(("Retry-After", "1"),))


@route(
    "GET",
    "/metrics",
    summary="Retrieve the metrics in Prometheus's text format",
    media=(Media(status=200, content_types=("text/plain",), description="The metrics."),),
)
async def metrics(call: Call) -> Outcome:
    """Metrics of this process."""
    return Response(await call.deps.operating.metrics_text(), content_type=METRICS_CONTENT_TYPE)
