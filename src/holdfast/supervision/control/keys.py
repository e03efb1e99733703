"""The actors of one keyed group, as operators see them and act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest

import msgspec
import trio

from holdfast.actors.runtime.faults import EndedByOperator
from holdfast.actors.runtime.mailbox import SystemMessage
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import (
    CrashKey,
    DescribeKey,
    GroupAction,
    GroupCommand,
    GroupDescription,
    KeyAction,
    KeyDescription,
    KeyList,
    KeySummary,
    ListKeys,
    PauseGroup,
    QuarantineKey,
    ReleaseKey,
    RestartKey,
    ResumeGroup,
)
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_child import EndRequest, KeyedChild
from holdfast.supervision.status import work_of
from holdfast.supervision.turn_watch import await_stack
from holdfast.telemetry.reports.causes import describe

END_TURN_S = 1.0
"""How long an actor may take to finish its turn before an operator's request ends it in the turn."""


@dataclass(frozen=True, slots=True)
class ControlledGroup:
    """A directory. ``mask`` returns what operators see as a key, in every process the same."""

    directory: KeyedDirectory
    member_id: str
    mask: Callable[[str], str]

    async def answer(self, command: GroupCommand) -> object:
        """Do what a command asks, and return its reply."""
        match command:
            case ListKeys():
                return self.list(command)
            case DescribeKey():
                return self.describe_key(command)
            case PauseGroup() | ResumeGroup():
                return self.pause_or_resume(command)
            case _:
                return await self.act(command)

    # ------------------------------------------------------------------------------------------- descriptions

    def describe(self) -> GroupDescription:
        """Describe the group."""
        directory, now = self.directory, trio.current_time()
        states: Counter[str] = Counter()
        messages, oldest = 0, now
        for child in directory.by_key.values():
            states[child.state] += 1
            depth = len(child.mailbox)
            if depth:
                messages += depth
                oldest = min(oldest, child.mailbox.oldest_sent_at() or now)
        by_operator = directory.operators_reason
        return GroupDescription(
            name=directory.name,
            paused_by=None if not directory.is_paused else "crashes" if by_operator is None else "operator",
            pause_reason=directory.pause_reason,
            states=dict(states),
            messages=messages,
            oldest_message_age_s=_rounded(now - oldest) if messages else None,
        )

    def list(self, query: ListKeys) -> KeyList:
        """Return the keys that a query asks for."""
        now = trio.current_time()

        def figure(child: KeyedChild) -> float:
            match query.order:
                case "key":
                    return 0.0
                case "queue":
                    return len(child.mailbox)
                case "wait":
                    return now - (child.mailbox.oldest_sent_at() or now)
                case "rate":
                    return child.turns_per_s(now)

        children = self.directory.by_key.values()
        wanted = ((-figure(c), self.mask(c.key), c) for c in children if query.state in (None, c.state))
        after = (each for each in wanted if each[1] > query.after)
        first = nsmallest(query.limit, after, key=lambda each: each[:2])
        return KeyList([self._summary(child) for _, _, child in first])

    def describe_key(self, command: DescribeKey) -> KeyDescription | Refusal:
        """Describe an actor, or what is remembered of it."""
        key = self._known_key(command.key)
        if key is None:
            return self._not_found(command.key)
        # One without a child is described as the child that it would be with its next message.
        return self._describe(self.directory.by_key.get(key) or self.directory.new_child(key))

    # ------------------------------------------------------------------------------------------------ actions

    async def act(self, action: KeyAction) -> KeyDescription | Refusal:
        """Do what an operator asks of one key, and describe it afterwards."""
        with trio.move_on_after(2 * END_TURN_S):
            # One request at a time: an incarnation ends once. A child that was forgotten meanwhile is replaced.
            while (child := self._find(action.key)) is not None and child.end_request is not None:
                await child.end_request.done.wait()
        if isinstance(action, QuarantineKey) and (child is not None or self.mask(action.key) == action.key):
            # Also of a key that is not active: its next message would start an actor.
            child = self.directory.child(action.key) if child is None else child
            await self._quarantine(child, action)
        elif child is None:
            return self._not_found(action.key)
        elif isinstance(action, ReleaseKey):
            if child.quarantine is None:
                return Refusal(code="actor_not_quarantined", message="The actor is not quarantined.")
            child.release(action.reason)
        elif isinstance(action, RestartKey) and child.actor is None and child.state in {"starting", "backing_off"}:
            # It is about to start: at once, if it is backing off.
            if child.backoff is not None:
                child.backoff.cancel()
        elif child.actor is None:
            return Refusal(code="actor_not_active", message=f"The actor is not active: it is {child.state}.")
        else:
            kind = SystemMessage.CRASH if isinstance(action, CrashKey) else SystemMessage.END
            request = EndRequest("crash" if isinstance(action, CrashKey) else "restart", action.reason)
            await self._end(child, request, kind)
        return self._describe(child)

    def pause_or_resume(self, action: GroupAction) -> GroupDescription:
        """Pause or resume the group."""
        if isinstance(action, PauseGroup):
            self.directory.pause(action.reason)
        else:
            self.directory.resume(action.reason)
        return self.describe()

    async def _quarantine(self, child: KeyedChild, action: QuarantineKey) -> None:
        if child.actor is None:
            child.put_in_quarantine(describe(EndedByOperator(action.reason)), for_s=action.for_s)
        else:
            await self._end(child, EndRequest("quarantine", action.reason, action.for_s), SystemMessage.END)

    @staticmethod
    async def _end(child: KeyedChild, request: EndRequest, message: SystemMessage) -> None:
        """End the present incarnation: after its turn, or in it. Returns when it has ended, or has begun to."""
        child.end_request = request
        child.mailbox.put_system(message)
        with trio.move_on_after(END_TURN_S):
            await request.done.wait()
        if child.end_request is request and child.scope is not None:
            child.scope.cancel(reason=f"an operator ended it: {request.reason}")
            with trio.move_on_after(END_TURN_S):
                await request.done.wait()

    # ------------------------------------------------------------------------------------------------- details

    def _find(self, key: str) -> KeyedChild | None:
        children = self.directory.by_key
        found = children.get(key)
        if found is None or self.mask(key) != key:
            found = next((child for child in children.values() if self.mask(child.key) == key), None)
        return found

    def _known_key(self, masked: str) -> str | None:
        """Return the key that is seen as ``masked``, if it has an actor or its restarts are remembered."""
        child = self._find(masked)
        if child is not None:
            return child.key
        known = self.directory.restarts
        if self.mask(masked) == masked:
            return masked if masked in known else None
        return next((key for key in known if self.mask(key) == masked), None)

    def _not_found(self, key: str) -> Refusal:
        return Refusal(
            code="actor_not_found",
            message=f"No actor of {self.directory.name} is known here by the key {key[:80]!r}.",
        )

    def _summary(self, child: KeyedChild) -> KeySummary:
        now = trio.current_time()
        quarantine = child.quarantine
        return KeySummary(
            group=self.directory.name,
            key=self.mask(child.key),
            member_id=self.member_id,
            state=child.state,
            incarnation=child.incarnation,
            restarts=child.crashes(now),
            work=work_of(child.mailbox, child.actor, now),
            messages_per_s=_rounded(child.turns_per_s(now)),
            quarantined_for_s=_rounded(max(quarantine.until - now, 0.0)) if quarantine is not None else None,
            retry_in_s=_rounded(max(child.backoff.deadline - now, 0.0)) if child.backoff is not None else None,
        )

    def _describe(self, child: KeyedChild) -> KeyDescription:
        turn = child.actor.turn if child.actor is not None else None
        return KeyDescription(
            **msgspec.structs.asdict(self._summary(child)),
            budget=self.directory.limits.child_restarts,
            trace_id=turn.trace_id if turn is not None else None,
            await_stack=await_stack(child.task) if child.task is not None else [],
            quarantine_reason=child.quarantine.reason if child.quarantine is not None else None,
            history=[*self.directory.restarts.get(child.key, ())],
        )


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
