"""What endpoints of processes and actors share: asking control actors, one or all."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.messages import Command
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.ledger.refusals import Refusal

T = TypeVar("T")

GATHER_S: Final = 2.0
"""How long a view over all members waits for each of them."""


async def ask_control(call: Call, member_id: str, command: Command[T]) -> T | Refusal:
    """Ask one member's control actor. Raises as an ask does."""
    return await call.deps.controls.ask(member_id, command, deadline_s=call.deps.settings.ask_deadline_s)


class Answers(NamedTuple, Generic[T]):
    """What control actors answered, by member, and the members that did not answer in time."""

    by_member: dict[str, T]
    unreachable: list[str]


async def ask_all(deps: Dependencies, command: Command[T]) -> Answers[T]:
    """Ask the control actors of all members at once. A refusal is no answer."""
    controls = deps.controls
    answers: dict[str, T | None] = {member.member_id: None for member in controls.members()}

    async def ask_one(member_id: str) -> None:
        with suppress(AskFault):
            answer = await controls.ask(member_id, command, deadline_s=GATHER_S)
            answers[member_id] = None if isinstance(answer, Refusal) else answer

    async with trio.open_nursery() as nursery:
        for member in controls.members():
            if member.unreachable_for_s is None:
                nursery.start_soon(ask_one, member.member_id)
    return Answers(
        {member_id: answer for member_id, answer in answers.items() if answer is not None},
        [member_id for member_id, answer in answers.items() if answer is None],
    )
