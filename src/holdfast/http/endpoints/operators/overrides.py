"""What operators set at run time for a time: slots of a provider, pauses, and how many tasks an account creates."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import msgspec

from holdfast.http.endpoints.operators.accounts import refuse_unknown_account
from holdfast.http.endpoints.operators.processes import ask_all
from holdfast.http.endpoints.operators.providers import provider_not_found
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import Note, Reason, text_of
from holdfast.ledger.catalog.pricing import model_not_found
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_time
from holdfast.persistence.operators.overrides import write_override
from holdfast.persistence.records.operator_tables import NewTasks, Override, OverrideKind
from holdfast.supervision.control.messages import RereadOverrides

FOR_DEFAULT_S: Final = 3_600
FOR_MAX_S: Final = 30 * 86_400
SLOTS_MAX: Final = 100_000
CREATES_PER_S_MAX: Final = 100_000


class OverrideBody(msgspec.Struct, frozen=True):
    """What an operator has set for a time."""

    kind: OverrideKind
    """Whose it is: the slots or new tasks of a provider, the new tasks of a model, or the creates of an account."""
    subject: str
    """The provider's name, the model's id or the account's."""
    number: float | None
    """How many slots, or creates a second; null of a pause."""
    new_tasks: NewTasks | None
    """Whether new tasks wait or are refused; null unless it is a pause."""
    reason: str
    """Why."""
    note: str | None
    """What customers read; null for nothing."""
    operator: str
    """Who has set it."""
    action_id: str
    """The recorded action."""
    set_at: Time
    ends_at: Time
    """When it ends by itself."""


class OverrideList(msgspec.Struct, frozen=True):
    """What is set and has not ended."""

    data: list[OverrideBody]
    """By kind and subject."""
    unreachable: list[str]
    """The members that did not answer, or could not read it; each finds a change within a second of its rows."""


class _ForATime(msgspec.Struct, frozen=True, kw_only=True):
    reason: Reason
    for_s: Annotated[int, msgspec.Meta(ge=1, le=FOR_MAX_S)] = FOR_DEFAULT_S
    """How long, in seconds; at most 30 days."""


class SlotsRequest(_ForATime, frozen=True, kw_only=True):
    """How many jobs a provider runs at once, for all processes together."""

    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    """In place of the catalog's `concurrency`."""


class PauseRequest(_ForATime, frozen=True, kw_only=True):
    """A pause."""

    new_tasks: NewTasks
    """`wait`: they are created and start when it ends; `refuse`: they are refused with `model_paused`."""
    note: Note = ""
    """What customers read in refusals, in the list of models and in quotes."""


class CreatesRequest(_ForATime, frozen=True, kw_only=True):
    """How many tasks an account may create."""

    per_s: Annotated[float, msgspec.Meta(ge=0, le=CREATES_PER_S_MAX, examples=[0.1])]
    """How many in a second; 0.1 is one in ten seconds, 0 is none."""


class EndOverrideRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is ended before its time."""

    kind: OverrideKind
    """Whose it is."""
    subject: Annotated[str, msgspec.Meta(min_length=1, max_length=200, examples=["studio/image-1"])]
    """The provider's name, the model's id or the account's."""
    reason: Reason


route = OperatorRoutes("Overrides")


@route.read("/ops/api/overrides", "List what operators have set for a time, and what has not ended", OverrideList)
async def list_overrides(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    return _listed(call.deps, [])


@route.action(
    "/ops/api/providers/{provider}/slots",
    "Set for a time how many jobs a provider runs at once",
    errors=("provider_not_found",),
)
async def set_provider_slots(run: ActionRun, given: SlotsRequest, provider: str) -> OverrideList | Refusal:
    """It counts for all processes together. Jobs that run already are left alone."""
    if provider not in run.deps.registry.catalog.providers:
        return provider_not_found(provider)
    return await _set(run, "provider_slots", provider, given, number=given.slots)


@route.action(
    "/ops/api/providers/{provider}/pause",
    "Pause a provider for a time: no task of it is started",
    errors=("provider_not_found",),
)
async def pause_provider(run: ActionRun, given: PauseRequest, provider: str) -> OverrideList | Refusal:
    """Tasks that wait go on waiting, up to their deadlines; jobs that run are finished."""
    if provider not in run.deps.registry.catalog.providers:
        return provider_not_found(provider)
    return await _set(run, "provider_pause", provider, given, given.new_tasks, note=given.note)


@route.action(
    "/ops/api/models/{model_id}/pause",
    "Pause a model for a time: no task of it is started",
    errors=("model_not_found",),
)
async def pause_model(run: ActionRun, given: PauseRequest, model_id: str) -> OverrideList | Refusal:
    """Tasks that wait go on waiting, up to their deadlines; jobs that run are finished."""
    models = run.deps.registry.catalog.models
    if model_id not in models:
        return model_not_found(model_id, models)
    return await _set(run, "model_pause", model_id, given, given.new_tasks, note=given.note)


@route.action(
    "/ops/api/accounts/{account_id}/creates",
    "Limit for a time how many tasks an account creates",
    errors=("account_not_found",),
)
async def limit_creates(run: ActionRun, given: CreatesRequest, account_id: str) -> OverrideList | Refusal:
    """Creates above it are refused with `rate_limit_exceeded`. It may allow more than the setting."""
    refusal = await refuse_unknown_account(run.deps, account_id)
    return refusal or await _set(run, "account_creates", account_id, given, number=given.per_s)


@route.action("/ops/api/overrides/end", "End what was set for a time before its end")
async def end_override(run: ActionRun, given: EndOverrideRequest) -> OverrideList | Refusal:
    """What has ended already stays so."""
    run.note(kind=given.kind, subject=given.subject)
    if given.kind == "account_creates":
        run.concern(given.subject)
    # It may have been set by another process a moment ago.
    await run.deps.operating.overrides.reread()
    found = run.deps.operating.overrides.find(given.kind, given.subject)
    return _listed(run.deps, []) if found is None else await _write(run, found._replace(ends_at=run.deps.now()))


async def _set(
    run: ActionRun,
    kind: OverrideKind,
    subject: str,
    given: _ForATime,
    new_tasks: NewTasks | None = None,
    *,
    number: float | None = None,
    note: str = "",
) -> OverrideList:
    now = run.deps.now()
    until = now + timedelta(seconds=given.for_s)
    run.note(until=format_time(until))
    override = Override(
        kind=kind,
        subject=subject,
        number=number,
        new_tasks=new_tasks,
        reason=given.reason,
        note=text_of(note),
        operator=run.operator.name,
        action_id=run.record.action_id,
        set_at=now,
        ends_at=until,
    )
    return await _write(run, override)


async def _write(run: ActionRun, override: Override) -> OverrideList:
    """Write it, and let every process that answers know it before the reply."""
    await run.deps.write_record(partial(write_override, override=override))
    await run.deps.operating.overrides.reread()
    written = run.deps.operating.overrides.seen
    answers = await ask_all(run.deps, RereadOverrides())
    behind = [member_id for member_id, known in answers.by_member.items() if known.seen < written]
    return _listed(run.deps, [*answers.unreachable, *behind])


def _listed(deps: Dependencies, unreachable: list[str]) -> OverrideList:
    return OverrideList([render(OverrideBody, each) for each in deps.operating.overrides.in_force()], unreachable)
