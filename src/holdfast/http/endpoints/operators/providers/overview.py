"""Media providers as all processes together see them, and the tasks that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from holdfast.http.endpoints.operators.supervision.controls import ask_all
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.persistence.queries.backlog import Backlog, measure_backlog
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import DescribeProcess, ProviderView

route = RouteTable("Operators")


class ProviderDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A media provider.

    ``states`` counts processes by the state they see. ``calls``, ``errors`` by reason and ``callbacks_refused`` by
    code are since the processes' starts; ``call_p99_s`` is the slowest process's. ``tasks`` counts unfinished ones
    by status; of the ``slots`` of the catalog, ``slots_used`` are taken by jobs that may still be running. These
    counts and the age of the oldest that waits are null while the database is away.
    """

    name: str
    kind: str | None
    models: int
    states: dict[str, int]
    calls: int
    call_p99_s: float | None
    errors: dict[str, int]
    callbacks_refused: dict[str, int]
    tasks: dict[str, int] | None
    slots: int | None
    slots_used: int | None
    oldest_queued_s: float | None


class ProviderList(msgspec.Struct, frozen=True):
    """The providers of the catalog, and those removed whose tasks have not ended."""

    data: list[ProviderDetails]


@route(
    "GET",
    "/ops/api/providers",
    summary="List the media providers: states, calls, errors, refused callbacks and waiting tasks",
    auth=Auth.OPERATOR_READ,
    reply=ProviderList,
)
async def list_providers(call: Call) -> Outcome:
    """One read, and what every process has counted."""
    answers = await ask_all(call.deps, DescribeProcess())
    seen = [answer.providers for answer in answers.by_member.values()]
    now = call.deps.now()
    backlog = None
    # While the database is away, what the processes know is shown alone.
    with suppress(DatabaseAway):
        backlog = await call.deps.database.read(lambda rows: measure_backlog(rows, now))
    names = {name for views in seen for name in views}
    if backlog is not None:
        names |= {provider for provider, _ in backlog.tasks}
    return ProviderList(
        data=[
            _provider(call, name, [views[name] for views in seen if name in views], backlog)
            for name in sorted(names)
        ]
    )


def _provider(call: Call, name: str, views: list[ProviderView], backlog: Backlog | None) -> ProviderDetails:
    catalog = call.deps.catalog()
    config = catalog.providers.get(name)
    return ProviderDetails(
        name=name,
        kind=None if config is None else config.kind,
        models=sum(model.upstream.provider == name for model in catalog.models.values()),
        states=dict(Counter(view.state for view in views)),
        calls=sum(view.calls for view in views),
        call_p99_s=max((view.call_p99_s for view in views if view.call_p99_s is not None), default=None),
        errors=_sum(view.errors for view in views),
        callbacks_refused=_sum(view.callbacks_refused for view in views),
        tasks=None if backlog is None else {status: n for (of, status), n in backlog.tasks.items() if of == name},
        slots=None if config is None else config.concurrency,
        slots_used=None if backlog is None else backlog.slots_used.get(name, 0),
        oldest_queued_s=None if backlog is None else backlog.queued_age_s.get(name),
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
