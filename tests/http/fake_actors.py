"""Actors that reply as a test says, and record what they were asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from holdfast.actors.account.messages import RecordKeyUse
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import ASK_DEADLINE_S, TrioActorRef, WhileDown
from holdfast.ledger.refusals import Refusal

R = TypeVar("R")
Answer = Callable[[str, Command[Any]], Awaitable[Any]]


@dataclass
class FakeDirectory:
    """Replies with ``answer`` (a value, an exception to raise, or a function) and records every message."""

    answer: Any = None
    asked: list[tuple[str, Command[Any]]] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)
    while_down: list[WhileDown] = field(default_factory=list)
    tells: list[tuple[str, RecordKeyUse]] = field(default_factory=list)

    def ref(self, key: str) -> FakeRef:
        return FakeRef(self, key)

    async def ask(self, key: str, command: Command[R], deadline_s: float) -> R | Refusal:
        self.asked.append((key, command))
        self.deadlines_s.append(deadline_s)
        answer = await self.answer(key, command) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None, f"this directory has no answer to {command!r}"
        return cast(R, answer)

    def tell(self, key: str, command: Command[R]) -> None:
        assert isinstance(command, RecordKeyUse), "the endpoints only ask, except for the use of keys"
        self.tells.append((key, command))


class FakeRef(TrioActorRef):
    """The address of an actor in a :class:`FakeDirectory`."""

    def __init__(self, directory: FakeDirectory, key: str) -> None:
        super().__init__(f"urn:test:{key}")
        self._directory = directory
        self._key = key

    def ask(  # type: ignore[override]  # as in TrioActorRef
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S, while_down: WhileDown = "queue"
    ) -> Awaitable[R | Refusal]:
        self._directory.while_down.append(while_down)
        return self._directory.ask(self._key, message, deadline_s)

    def tell(self, message: Command[object]) -> None:
        self._directory.tell(self._key, message)
