"""Poison messages: those whose handling crashed their actor, and what operators do with them."""

from __future__ import annotations

from typing import Annotated, Final, get_args

import msgspec

from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import GROUPS, ActionWithReason
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.operators.poison import list_poison, poison_by_id
from holdfast.persistence.records.operator_tables import PoisonRecord, PoisonState
from holdfast.supervision.poison_replays import NOT_FOUND

route = OperatorRoutes("Poison messages")

FILTERS: Final = (
    filter_by("group", "Only messages to actors of this group.", GROUPS),
    filter_by("key", "Only messages to the actor with this key."),
    filter_by("state", "Only messages in this state.", get_args(PoisonState)),
)


class PoisonBody(msgspec.Struct, frozen=True):
    """A message whose handling crashed its actor."""

    poison_id: str
    """The message's id, `poi_…`."""
    group: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(GROUPS)})]
    """The group of the actor."""
    key: str
    """The actor's key in its group."""
    message_type: str
    """The type of the message."""
    state: PoisonState
    """What became of it."""
    is_replayable: bool
    """Whether its content is stored, so that it can be replayed."""
    first_at: Time
    """When it crashed its actor first."""
    last_at: Time
    """When it crashed its actor last."""
    crashes: int
    """How often it crashed its actor."""
    trace_id: str | None
    """The trace of the last crash; null without one."""
    reason_type: str
    """The type of the last crash's exception."""
    reason: str
    """That exception in words."""
    location: str | None
    """`module:line` of that exception; null if it is not known."""
    incarnation: int
    """The actor's incarnation that crashed last."""
    version: int | None
    """The version of the actor's state at the last crash; null if it had none."""
    state_digest: str | None
    """A hash of the actor's state at the last crash; null if it had none."""
    replays: int
    """How often it was replayed."""
    replayed_at: Time | None
    """When it was replayed last; null if it was not."""
    replay_result: str | None
    """The result of the last replay; null if there was none."""


class PoisonList(StoredListBody[PoisonBody], frozen=True):
    """A page of poison messages, newest first."""


@route.read(
    "/ops/api/poison",
    "List the messages whose handling crashed their actor; newest first",
    PoisonList,
    parameters=(*FILTERS, *PAGE),
)
async def list_poison_messages(call: Call) -> Outcome:
    """Messages are listed without their content, newest first by their first crash."""
    return await list_for_operators(
        call, list_poison, poison_body, lambda each: Position(each.first_at, each.poison_id)
    )


_on_message: Final = route.below("/ops/api/poison/{poison_id}", errors=("poison_not_found",))


@_on_message.read("", "Retrieve a message whose handling crashed its actor", PoisonBody)
async def read_poison_message(call: Call) -> Outcome:
    """The message is shown without its content."""
    found = await call.deps.database.read(lambda rows: poison_by_id(rows, call.path["poison_id"]))
    return NOT_FOUND if found is None else poison_body(found)


@_on_message.action(
    "/replay",
    "Replay a poison message once: its actor handles it as if it had just been sent",
    name="replay_poison",
    errors=("poison_not_open", "poison_not_replayable", "quarantined"),
)
async def replay_poison_message(run: ActionRun, _: ActionWithReason, poison_id: str) -> PoisonBody | Refusal:
    """If it crashes its actor again it is kept, and counted."""
    found = await run.deps.operating.poison.replay(
        poison_id, deadline_s=run.deps.settings.ask_deadline_s, unless_since=run.unless_since
    )
    return found if isinstance(found, Refusal) else poison_body(found)


@_on_message.action(
    "/discard",
    "Discard a poison message: its content is deleted",
    name="discard_poison",
    errors=("poison_not_open",),
)
async def discard_poison_message(run: ActionRun, _: ActionWithReason, poison_id: str) -> PoisonBody | Refusal:
    """The row stays until its retention is over."""
    found = await run.deps.operating.poison.discard(poison_id)
    return found if isinstance(found, Refusal) else poison_body(found)


def poison_body(found: PoisonRecord) -> PoisonBody:
    """Render a poison message."""
    return render(PoisonBody, found, group=found.group_name, is_replayable=found.body is not None)
