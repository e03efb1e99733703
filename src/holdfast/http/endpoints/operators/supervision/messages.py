"""The messages that an actor handled, from the records of all processes. Their content is not recorded."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.http.endpoints.operators.supervision.controls import ask_all
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import Position, Window, cut_page, read_asked
from holdfast.http.kit.parameters import PAGE
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.operators import GROUPS
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import KeptMessages, ListMessages, MessageView

route = RouteTable("Operators")


class HandledList(msgspec.Struct, frozen=True):
    """Messages that an actor handled, newest first.

    `messages_kept` says for each process since when its record has all messages, and `unreachable` names those that
    did not answer.
    """

    data: list[MessageView]
    next_cursor: str | None
    messages_kept: list[KeptMessages]
    unreachable: list[str]


class Gathered(NamedTuple):
    """The messages of a key in all processes, newest first, each with its position; and whose records these are."""

    messages: list[tuple[Position, MessageView]]
    kept: list[KeptMessages]
    unreachable: list[str]


async def messages_of(call: Call, group: str, key: str, window: Window, after: Position | None) -> Gathered:
    """Ask all processes at once for a page; one that does not answer in time is named."""
    answers = await ask_all(call.deps, ListMessages(group, key, window.since, window.until, after, window.read_max))
    found = [
        (Position(datetime.fromisoformat(each.at), each.id), each)
        for answer in answers.by_member.values()
        for each in answer.messages
    ]
    found.sort(key=lambda each: each[0], reverse=True)
    return Gathered(
        messages=found[: window.read_max],
        kept=[answer.kept for answer in answers.by_member.values()],
        unreachable=answers.unreachable,
    )


@route(
    "GET",
    "/ops/api/actors/{group}/{key}/messages",
    summary="List the messages that an actor handled: type, wait, turn and outcome, without their content",
    auth=Auth.OPERATOR_READ,
    reply=HandledList,
    parameters=PAGE,
    errors=("group_not_found",),
)
async def list_messages(call: Call) -> Outcome:
    """Answered from memory, also while the database is away; of a key that is not known the list is empty."""
    group, key = call.path["group"], call.path["key"]
    if group not in GROUPS:
        return Refusal(code="group_not_found", message="The group does not exist.")
    owner = f"{group}/{key}"
    asked = read_asked(call, owner, kind="messages")
    if isinstance(asked, Refusal):
        return asked
    window, after = asked
    found = await messages_of(call, group, key, window, after)
    page = cut_page(found.messages, owner, window, lambda each: each[0])
    return HandledList(
        data=[message for _, message in page.entries],
        next_cursor=page.next_cursor,
        messages_kept=found.kept,
        unreachable=found.unreachable,
    )
