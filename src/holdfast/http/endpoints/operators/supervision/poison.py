"""Poison messages: those whose handling crashed their actor, and what operators do with them."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import FILTER_MAX_CHARS, Position, Window, read_operators_page
from holdfast.http.kit.parameters import CURSOR, FROM, LIMIT, TO
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.operators import GROUPS, ActionWithReason
from holdfast.http.schemas.rendering import render
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.operators.poison import PoisonRecord, PoisonState, list_poison, poison_by_id
from holdfast.supervision.poison_replays import NOT_FOUND

route = RouteTable("Operators")

_GROUP: Final = Parameter(
    name="group",
    place="query",
    description="Only messages to actors of this group.",
    schema=(("type", "string"), ("enum", list(GROUPS))),
)
_KEY: Final = Parameter(
    name="key",
    place="query",
    description="Only messages to the actor with this key.",
    schema=(("type", "string"), ("maxLength", FILTER_MAX_CHARS)),
)
_STATE: Final = Parameter(
    name="state",
    place="query",
    description="Only messages in this state.",
    schema=(("type", "string"), ("enum", list(get_args(PoisonState)))),
)
_COLUMNS: Final = {"group": "group_name", "key": "key", "state": "state"}


class PoisonBody(msgspec.Struct, frozen=True):
    """A message whose handling crashed its actor, ``crashes`` times. ``trace_id``, ``reason`` and the rest are of
    the last crash, ``location`` of its exception, ``version`` and ``state_digest`` of the actor's state.

    ``is_replayable`` is false if its content is not stored.
    """

    poison_id: str
    group: str
    key: str
    message_type: str
    state: PoisonState
    is_replayable: bool
    first_at: Time
    last_at: Time
    crashes: int
    trace_id: str | None
    reason_type: str
    reason: str
    location: str | None
    incarnation: int
    version: int | None
    state_digest: str | None
    replays: int
    replayed_at: Time | None
    replay_result: str | None


class PoisonList(msgspec.Struct, frozen=True):
    """A page of poison messages, newest first."""

    data: list[PoisonBody]
    next_cursor: str | None


@route(
    "GET",
    "/ops/api/poison",
    summary="List the messages whose handling crashed their actor, newest first",
    auth=Auth.OPERATOR_READ,
    reply=PoisonList,
    parameters=(_GROUP, _KEY, _STATE, FROM, TO, CURSOR, LIMIT),
    errors=("invalid_parameter", "invalid_cursor"),
)
async def list_poison_messages(call: Call) -> Outcome:
    """One read."""

    def read(rows: Connection, window: Window, after: Position | None) -> list[PoisonRecord]:
        return list_poison(
            rows,
            limit=window.read_max,
            since=window.since,
            until=window.until,
            after=after,
            filters={_COLUMNS[name]: value for name, value in window.filters.items()},
        )

    page = await read_operators_page(
        call,
        read,
        lambda each: Position(each.first_at, each.poison_id),
        kind="poison messages",
        filters=(_GROUP, _KEY, _STATE),
    )
    if isinstance(page, Refusal):
        return page
    return PoisonList(data=[poison_body(each) for each in page.entries], next_cursor=page.next_cursor)


@route(
    "GET",
    "/ops/api/poison/{poison_id}",
    summary="Retrieve a message whose handling crashed its actor",
    auth=Auth.OPERATOR_READ,
    reply=PoisonBody,
    errors=("poison_not_found",),
)
async def read_poison_message(call: Call) -> Outcome:
    """Without its content."""
    found = await call.deps.database.read(lambda rows: poison_by_id(rows, call.path["poison_id"]))
    return NOT_FOUND if found is None else poison_body(found)


@route(
    "POST",
    "/ops/api/poison/{poison_id}/replay",
    summary="Replay a poison message once: its actor handles it as if it had just been sent",
    auth=Auth.OPERATOR_ACT,
    action="replay_poison",
    body=ActionWithReason,
    reply=PoisonBody,
    errors=("poison_not_found", "poison_not_open", "poison_not_replayable", "quarantined"),
)
async def replay_poison_message(call: Call) -> Outcome:
    """If it crashes its actor again it is kept, and counted."""
    found = await call.deps.poison.replay(call.path["poison_id"], deadline_s=call.deps.settings.ask_deadline_s)
    return found if isinstance(found, Refusal) else poison_body(found)


@route(
    "POST",
    "/ops/api/poison/{poison_id}/discard",
    summary="Discard a poison message: its content is deleted",
    auth=Auth.OPERATOR_ACT,
    action="discard_poison",
    body=ActionWithReason,
    reply=PoisonBody,
    errors=("poison_not_found", "poison_not_open"),
)
async def discard_poison_message(call: Call) -> Outcome:
    """The row stays until its retention is over."""
    found = await call.deps.poison.discard(call.path["poison_id"])
    return found if isinstance(found, Refusal) else poison_body(found)


def poison_body(found: PoisonRecord) -> PoisonBody:
    """Render a poison message."""
    return render(PoisonBody, found, group=found.group_name, is_replayable=found.body is not None)
