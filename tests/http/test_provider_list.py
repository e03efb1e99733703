"""The list of media providers: what all processes counted, and the tasks in the database."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.supervision.control.messages import MemberView
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.figures import (
    ProviderFigures,
    RefusalFigures,
    figures_of,
    frequent_refusals,
    slowest_routes,
)

from .fake_rows import AwayRows
from .test_control_calls import PROCESS, call

if TYPE_CHECKING:
    from tests.http.api import Api

OTHER = MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None)


async def listed(api: Api) -> dict[str, Any]:
    body = (await call(api, "GET", "/ops/api/providers")).json()
    return {each.pop("name"): each for each in body["data"]}


async def test_providers_are_added_up_over_processes(api: Api) -> None:
    down = msgspec.structs.replace(PROCESS.providers["studio"], state="down", call_p99_s=0.5, errors={"timeout": 1})
    other = msgspec.structs.replace(PROCESS, providers={"studio": down})
    controls: Any = api.deps.operating.controls
    controls.others = (OTHER,)
    controls.answer = lambda _command: other if controls.asked[-1][0] == "proc_2" else PROCESS
    await api.add_task(api.task("task_1", at=api.now - timedelta(seconds=30), wake_at=api.now))
    await api.add_task(api.task("task_2", status="processing", wake_at=api.now, dispatched=True, provider="gone"))
    at_work: dict[str, Any] = {"wake_at": api.now, "dispatched": True}
    await api.add_task(api.task("task_3", status="processing", **at_work))
    await api.add_task(api.task("task_4", status="review", **at_work))
    hosted = api.task("task_5", status="processing", **at_work)
    hosting = msgspec.structs.replace(hosted.state.hosting, status="transferring")
    await api.add_task(
        msgspec.structs.replace(hosted, state=msgspec.structs.replace(hosted.state, hosting=hosting))
    )
    await api.deps.operating.overrides.reread()
    found = await listed(api)
    assert found["gone"]["slots_used"] == 1
    assert found["studio"] == {
        "kind": "studio",
        "models": 4,
        "states": {"up": 1, "down": 1},
        "calls": 14,
        "call_p99_s": 0.5,
        "errors": {"timeout": 3},
        "callbacks_refused": {"invalid_signature": 6},
        "tasks": {"queued": 1, "processing": 2, "review": 1},
        "slots": api.deps.registry.catalog.providers["studio"].concurrency,
        "slots_used": 1,
        "oldest_queued_s": 30.0,
    }
    assert (found["gone"]["kind"], found["gone"]["states"], found["gone"]["tasks"]) == (None, {}, {"processing": 1})


async def test_providers_are_listed_while_the_database_is_away(api: Api) -> None:
    controls: Any = api.deps.operating.controls
    controls.answer = lambda _command: PROCESS
    api.change(database=AwayRows())
    found = await listed(api)
    assert (found["studio"]["calls"], found["studio"]["tasks"]) == (7, None)


def test_figures_are_those_of_one_provider() -> None:
    name = "of-this-test"
    assert figures_of(name) == ProviderFigures(calls=0, call_p99_s=None, errors={}, callbacks_refused={})
    metrics.PROVIDER_CALL_S.labels(name, "submit").observe(0.04)
    metrics.PROVIDER_CALL_S.labels(name, "poll").observe(0.04)
    metrics.PROVIDER_ERRORS.labels(name, "submit", "timeout").inc()
    metrics.PROVIDER_ERRORS.labels(name, "poll", "timeout").inc(2)
    metrics.CALLBACKS_REFUSED.labels(name, "invalid_signature").inc()
    metrics.CALLBACKS_REFUSED.labels("another", "invalid_signature").inc()
    found = figures_of(name)
    assert (found.calls, found.errors, found.callbacks_refused) == (2, {"timeout": 3}, {"invalid_signature": 1})
    assert found.call_p99_s is not None
    assert 0.02 <= found.call_p99_s <= 0.05


def test_the_slowest_routes_and_the_most_frequent_refusals_come_first() -> None:
    for status, duration_s in (("200", 0.001), ("200", 0.001), ("503", 14.0)):
        metrics.HTTP_REQUEST_S.labels("slow_of_this_test", status).observe(duration_s)
    metrics.HTTP_REQUEST_S.labels("fast_of_this_test", "200").observe(0.001)
    metrics.REFUSALS.labels("418", "frequent_of_this_test").inc(1_000_000)
    metrics.REFUSALS.labels("418", "rare_of_this_test").inc()
    routes = {each.route: each for each in slowest_routes()}
    slow = routes["slow_of_this_test"]
    assert slow.requests == 3
    assert slow.p50_s <= 0.001
    assert 5 < slow.p99_s <= 15
    assert [each.p99_s for each in routes.values()] == sorted(
        (each.p99_s for each in routes.values()), reverse=True
    )
    assert len(routes) <= 10
    refusals = frequent_refusals()
    assert refusals[0] == RefusalFigures(status=418, code="frequent_of_this_test", requests=1_000_000)
    assert [each.requests for each in refusals] == sorted((each.requests for each in refusals), reverse=True)
