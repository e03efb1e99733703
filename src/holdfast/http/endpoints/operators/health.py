"""For those who run the service and those who call it: health, readiness, counters, and the interface itself."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Answer, Media, Outcome, RouteTable
from holdfast.providers.media.health import ProviderState

route = RouteTable("Operations")

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Alive(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str


class Ready(msgspec.Struct, frozen=True):
    """Whether each part works. Of providers, by name: false where one does not answer, and the state behind it."""

    ready: bool
    database: bool
    tree: bool
    providers: dict[str, bool]
    provider_states: dict[str, ProviderState]


@route("GET", "/healthz", summary="Whether the process is alive", reply=Alive)
async def healthz(_call: Call) -> Outcome:
    """Looks at nothing: a database that is away is no reason to kill the process."""
    return Alive(status="alive")


@route("GET", "/readyz", summary="Whether calls make sense now; 503 while not", reply=Ready, statuses=(200, 503))
async def readyz(call: Call) -> Outcome:
    """What a load balancer asks."""
    found = await call.deps.health.readiness()
    body = Ready(
        ready=found.ready,
        database=found.database,
        tree=found.tree,
        providers={name: state != "down" for name, state in found.providers.items()},
        provider_states=dict(found.providers),
    )
    return Answer(body) if found.ready else Answer(body, status=503, headers=(("Retry-After", "1"),))


@route(
    "GET",
    "/metrics",
    summary="Counters for Prometheus",
    media=(Media(status=200, content_types=("text/plain",), description="The counters."),),
)
async def metrics(call: Call) -> Outcome:
    """The text format every scraper reads."""
    return Response(call.deps.metrics_text(), content_type=METRICS_CONTENT_TYPE)
