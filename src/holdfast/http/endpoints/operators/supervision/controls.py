"""What endpoints of processes and actors share: asking control actors, one or all."""

from __future__ import annotations

from typing import Final, TypeVar

import trio

from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.messages import Command
from holdfast.http.kit.calls import Call
from holdfast.ledger.refusals import Refusal

T = TypeVar("T")

GATHER_S: Final = 2.0
"""How long a view over all members waits for each of them."""


async def ask_control(call: Call, member_id: str, command: Command[T]) -> T | Refusal:
    """Ask one member's control actor. Raises as an ask does."""
    return await call.deps.controls.ask(member_id, command, deadline_s=call.deps.settings.ask_deadline_s)


async def ask_all(call: Call, command: Command[T]) -> dict[str, T | None]:
    """Ask the control actors of all members at once; None for one that does not answer in time."""
    controls = call.deps.controls
    answers: dict[str, T | None] = {member.member_id: None for member in controls.members()}

    async def ask_one(member_id: str) -> None:
        try:
            answer = await controls.ask(member_id, command, deadline_s=GATHER_S)
        except AskFault:
            return
        answers[member_id] = None if isinstance(answer, Refusal) else answer

    async with trio.open_nursery() as nursery:
        for member in controls.members():
            if member.unreachable_for_s is None:
                nursery.start_soon(ask_one, member.member_id)
    return answers
