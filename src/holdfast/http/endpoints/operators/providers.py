"""Media providers as all processes together see them, and the tasks that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from holdfast.http.endpoints.operators.processes import ask_all
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter, shown
from holdfast.http.schemas.operators import Reason
from holdfast.ledger.catalog.input_schema import least_input
from holdfast.ledger.catalog.models import Catalog, Model
from holdfast.ledger.catalog.pricing import PricedInput, model_not_found, quote_input
from holdfast.ledger.public_types import Amount
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount
from holdfast.persistence.queries.backlog import Backlog, measure_backlog
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.media.health import ProviderState
from holdfast.providers.media.kinds import PROVIDER_KINDS
from holdfast.providers.media.provider_check import CheckStep
from holdfast.supervision.control.messages import DescribeProcess, ProviderView

route = OperatorRoutes("Providers")


class ProviderDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A media provider."""

    name: str
    """Its name in the catalog."""
    kind: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(PROVIDER_KINDS)})] | None
    """Its kind; null if the catalog does not have it any more."""
    models: int
    """How many models name it."""
    states: dict[ProviderState, int]
    """How many processes see it in each state."""
    calls: int
    """How many calls were made since the processes' starts."""
    call_p99_s: float | None
    """The time that 99 % of the calls took at most, in seconds, in the slowest process; null without calls."""
    errors: dict[str, int]
    """Failed calls since the processes' starts, by reason."""
    callbacks_refused: dict[str, int]
    """Refused callbacks since the processes' starts, by the code of the refusal."""
    tasks: dict[str, int] | None
    """How many of its tasks have not ended, by status; null while the database is away."""
    slots: int | None
    """How many jobs it runs at once, by the catalog or an operator; null if the catalog has it no more."""
    slots_used: int | None
    """How many of them are taken by jobs that may still be running; null while the database is away."""
    oldest_queued_s: float | None
    """The age of the oldest task that waits, in seconds; null if none does, and while the database is away."""


class ProviderList(msgspec.Struct, frozen=True):
    """The providers of the catalog, and those removed whose tasks have not ended."""

    data: list[ProviderDetails]
    """The providers by name."""


@route.read(
    "/ops/api/providers",
    "List the media providers: states, calls, errors, refused callbacks and waiting tasks",
    ProviderList,
)
async def list_providers(call: Call) -> Outcome:
    """Joins one read with what every process has counted."""
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
    catalog = call.deps.registry.catalog
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
        slots=None if config is None else call.deps.operating.overrides.slots({name: config.concurrency})[name],
        slots_used=None if backlog is None else backlog.slots_used.get(name, 0),
        oldest_queued_s=None if backlog is None else backlog.queued_age_s.get(name),
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


class ProviderCheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to try."""

    reason: Reason | None = None
    """Null or omitted: none is recorded."""
    model: str | None = None
    """The model to run; null or omitted: the cheapest one."""
    input: dict[str, Any] | None = None
    """The input to run; null or omitted: the model's example, or a made-up one where it has none."""
    wait_s: Annotated[float, msgspec.Meta(ge=1, le=120)] = 30.0
    """How long to wait for the job's end, in seconds."""
    accept_cost: bool = False
    """Whether the provider may charge for the job; needed if it does."""


class ProviderCheckBody(msgspec.Struct, frozen=True):
    """What a check of a provider found."""

    provider: str
    """The provider's name."""
    model: str
    """The model that was run."""
    ok: bool
    """Whether no step failed."""
    price: Amount
    """What a customer would pay for the job; no account is charged here."""
    charges: bool
    """Whether the provider charges for the job."""
    steps: list[CheckStep]
    """The steps that were taken, in order."""


def provider_not_found(name: str) -> Refusal:
    """Return the refusal for a provider that the catalog does not have."""
    return Refusal(code="provider_not_found", message=f"The provider {shown(name)} is not in the catalog.")


@route.action(
    "/ops/api/providers/{provider}/check",
    "Check a provider by a real job: connection, submission, callback, poll, outputs",
    errors=(
        "provider_not_found",
        "cost_not_accepted",
        "invalid_parameter",
        "model_not_found",
        "model_not_available",
        "invalid_input",
        "quote_unavailable",
    ),
)
async def check_provider(run: ActionRun, given: ProviderCheckRequest, provider: str) -> ProviderCheckBody | Refusal:
    """The response comes when the job has ended, or ``wait_s`` later. No account and no credit is involved."""
    catalog = run.deps.registry.catalog
    charges = run.deps.operating.provider_checks.charges(provider)
    if charges is None or provider not in catalog.providers:
        return provider_not_found(provider)
    priced = _priced(catalog, provider, given)
    if isinstance(priced, Refusal):
        return priced
    price = format_amount(priced.terms.estimate_micro)
    if charges and not given.accept_cost:
        return Refusal(
            code="cost_not_accepted",
            message=f"{provider} charges for a job of {priced.terms.model}, which customers pay {price} for.",
        )
    steps = await run.deps.operating.provider_checks.run(
        provider, priced.terms.upstream_model, priced.input, wait_s=given.wait_s
    )
    failed = next((step.name for step in steps if step.result == "failed"), None)
    if failed is not None:
        run.note("failed", failed_step=failed)
    return ProviderCheckBody(provider, priced.terms.model, failed is None, price, charges, steps)


def _example(model: Model) -> dict[str, object]:
    return least_input(model.schema) if model.example_input is None else model.example_input


def _priced(catalog: Catalog, provider: str, wanted: ProviderCheckRequest) -> PricedInput | Refusal:
    """Return the input to try, with its terms: as wanted, or the cheapest that fits."""
    models = {
        model.id: model
        for model in catalog.models.values()
        if model.type == "async" and model.upstream.provider == provider
    }
    if wanted.model is not None:
        if wanted.model in catalog.models and wanted.model not in models:
            return invalid_parameter("model", f"must be one that {provider} runs", wanted.model)
        if wanted.model not in models:
            return model_not_found(wanted.model, models)
        given = wanted.input if wanted.input is not None else _example(models[wanted.model])
        return quote_input(catalog, wanted.model, given)
    if wanted.input is not None:
        return invalid_parameter("model", "must be given with an input")
    tried = (quote_input(catalog, model.id, _example(model)) for model in models.values())
    fitting = [priced for priced in tried if not isinstance(priced, Refusal)]
    if not fitting:
        return invalid_parameter("model", f"and an input must be given: no model of {provider} takes a made-up one")
    return min(fitting, key=lambda priced: priced.terms.estimate_micro)
