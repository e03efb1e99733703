"""The overview: health at a glance, what waits for an operator, plots, newest reports; and the providers."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.http.endpoints.operators.books import LedgerHealth, read_ledger_health
from holdfast.http.endpoints.operators.costs import CostReport, CostTable, list_costs
from holdfast.http.endpoints.operators.overrides import OverrideList, list_overrides
from holdfast.http.endpoints.operators.processes import (
    ProcessSamples,
    Tree,
    count_quarantined,
    list_samples,
    read_tree,
)
from holdfast.http.endpoints.operators.providers import ProviderList, list_providers
from holdfast.http.endpoints.operators.reports import ReportList, list_reports
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast.providers.media.health import ProviderState
from holdfast.supervision.control.messages import ProcessDescription
from holdfast.telemetry.metrics.samples import Sample
from holdfast.telemetry.reports.conditions import UNAVAILABLE, LastingCondition
from holdfast_console.operators.processes import read_quarantined
from holdfast_console.operators.trends import latest, plots_of
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops")
async def overview(visit: Visit) -> ViewResult:
    """The state of the whole service; parts that are not available say so."""
    sampled = await visit.read(list_samples, ProcessSamples)
    processes = [] if isinstance(sampled, Refusal) else [each.samples for each in sampled.processes]
    tree = await visit.read(read_tree, Tree)
    members = [] if isinstance(tree, Refusal) else tree.members
    answered = [member.process for member in members if member.process is not None]
    quarantined = None if isinstance(tree, Refusal) else count_quarantined(answered)
    values = {
        "conditions": _lasting(answered),
        "providers": _provider_states(answered),
        "health": visit.call.deps.operating.readiness(),
        "tree": tree,
        "quarantined": quarantined,
        "now_figures": _figures(latest(processes)),
        "ledger": await visit.read(read_ledger_health, LedgerHealth),
        "reports": await visit.read(list_reports, ReportList, query={"limit": "8", "level": "info"}),
        "overrides": await visit.read(list_overrides, OverrideList),
        "far_ahead": _far_ahead(await visit.read(list_costs, CostReport, query={"credit": "known"})),
        "plots": plots_of(processes, visit.call.deps.now()),
    }
    set_apart = await read_quarantined(visit, "3") if quarantined else {"groups": []}
    return Html("overview.html", {**values, **set_apart}, is_live=True)


STATES: Final[tuple[ProviderState, ...]] = ("unknown", "up", "silent", "down")
"""The states of a provider, the worst last."""


class Lasting(NamedTuple):
    """A condition, with the ``text`` of the process that has it for longest, and the ``processes`` that have it."""

    name: str
    subject: str
    text: str
    lasts_s: float
    failures: int
    processes: list[ProcessDescription]


def _lasting(processes: list[ProcessDescription]) -> list[Lasting]:
    """Return what lasts in any process, the longest first; requests are refused for one of the others."""
    found: dict[tuple[str, str], list[tuple[LastingCondition, ProcessDescription]]] = {}
    for process in processes:
        for condition in process.conditions:
            found.setdefault((condition.name, condition.subject), []).append((condition, process))
    lasting: list[Lasting] = []
    for (name, subject), each in found.items():
        first = max((condition for condition, _ in each), key=lambda condition: condition.lasts_s)
        failures = sum(condition.count for condition, _ in each)
        where = [process for _, process in each]
        lasting.append(Lasting(name, subject, first.text, first.lasts_s, failures, where))
    return sorted(lasting, key=lambda each: (each.name == UNAVAILABLE.name, -each.lasts_s))


def _provider_states(processes: list[ProcessDescription]) -> dict[str, ProviderState]:
    """Return the state of each provider, the worst that any process sees: each notices by its own calls."""
    worst: dict[str, ProviderState] = {}
    for process in processes:
        for name, each in process.providers.items():
            worst[name] = max(worst.get(name, each.state), each.state, key=STATES.index)
    return worst


def _far_ahead(costs: CostReport | Refusal) -> list[CostTable]:
    """Return what is far ahead of the rest; of a day what is not so in the last minutes, too."""
    found = [] if isinstance(costs, Refusal) else [each for each in costs.data if each.is_far_ahead]
    lately = {(each.what, each.by, each.lines[0].name) for each in found if each.time == "minutes"}
    return [each for each in found if each.time != "day" or (each.what, each.by, each.lines[0].name) not in lately]


def _figures(samples: list[Sample]) -> dict[str, float | None]:
    """Return the rates of all processes together, and the slowest commit of any."""
    return {
        "requests_per_s": sum(
            sample.responses_2xx_per_s
            + sample.responses_3xx_per_s
            + sample.responses_4xx_per_s
            + sample.responses_5xx_per_s
            for sample in samples
        ),
        "refused_per_s": sum(sample.responses_4xx_per_s for sample in samples),
        "failed_per_s": sum(sample.responses_5xx_per_s for sample in samples),
        "creates_per_s": sum(sample.creates_per_s for sample in samples),
        "settled_per_s": sum(sample.settled_per_s for sample in samples),
        "commit_p99_s": max((sample.commit_p99_s for sample in samples if sample.commit_p99_s), default=None),
        "actors_active": sum(sample.actors_active for sample in samples),
        "connections_open": sum(sample.connections_open for sample in samples),
    }


@view("/ops/costs")
async def who_costs_most(visit: Visit) -> ViewResult:
    """The largest of each kind in the last minutes, or in a day."""
    time = "day" if visit.parameter("time") == "day" else "minutes"
    return Html("costs.html", {"costs": await visit.read(list_costs, CostReport), "time": time}, is_live=True)


@view("/ops/overrides")
async def set_for_a_time(visit: Visit) -> ViewResult:
    """All that operators have set for a time."""
    return Html("overrides.html", {"overrides": await visit.read(list_overrides, OverrideList)}, is_live=True)


@view("/ops/providers")
async def providers(visit: Visit) -> ViewResult:
    """Every provider, each with its reports and what is set for it."""
    found = await visit.read(list_providers, ProviderList)
    names = [] if isinstance(found, Refusal) else [each.name for each in found.data]
    models = visit.call.deps.registry.catalog.models.values()
    values = {
        "providers": found,
        "models": {name: [each.id for each in models if each.upstream.provider == name] for name in names},
        "overrides": await visit.read(list_overrides, OverrideList),
        "reports": {
            name: await visit.read(list_reports, ReportList, query={"provider": name, "limit": "5"})
            for name in names
        },
    }
    return Html("providers.html", values, is_live=True)
