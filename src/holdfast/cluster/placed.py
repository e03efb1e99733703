"""Addresses of actors wherever they live: asks go to the member that owns the actor's place, or are served here.

What the owner did not accept is served here, and the fence makes that safe. If the process that serves an ask is
not the owner any more, and the owner's writes make its decisions void, the ask goes to the owner after all. An ask
whose link closed may have taken effect: it is repeated once, at the new owner, if repeating it changes nothing;
otherwise its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import trio

from holdfast.actors.runtime.faults import NotAccepted, OutcomeUnknown, Overloaded, Quarantined, Unavailable
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import (
    ACCEPT_AGAIN_S,
    ActorRef,
    KeyedRef,
    TellRef,
    TrioActorRef,
    WhileDown,
)
from holdfast.cluster.codec import CONTROL, CannotEncode, LinkLost
from holdfast.cluster.link import Link
from holdfast.cluster.members import Members
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.actor import ControlRef
from holdfast.supervision.control.messages import MemberView
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry import metrics

R = TypeVar("R")


class PlacedDirectory:
    """The actors of one kind in all members. ``place_of`` returns the place of a key."""

    def __init__(self, name: str, local: KeyedDirectory, members: Members, place_of: Callable[[str], int]) -> None:
        self.name = name
        local.is_elsewhere = lambda key: self._link_to(key) is not None
        self._local = local
        self._members = members
        self._place_of = place_of

    def ref(self, key: str) -> ActorRef:
        """Return an actor's address."""
        return KeyedRef(self, key)

    async def ask(self, key: str, message: Command[R], deadline_s: float, while_down: WhileDown) -> R | Refusal:
        """Ask the actor of a key. Raises as :meth:`AskRef.ask` does."""
        deadline, is_repeated = trio.current_time() + deadline_s, False
        while True:
            link = self._link_to(key)
            if link is not None:
                left_s = deadline - trio.current_time()
                try:
                    reply = await link.ask(self.name, key, message, left_s, fails_fast=while_down == "fail")
                except (CannotEncode, NotAccepted):
                    metrics.FORWARDED.labels("served_here").inc()
                except LinkLost as lost:
                    metrics.FORWARDED.labels("lost").inc()
                    if is_repeated or not message.is_repeatable:
                        raise OutcomeUnknown(str(lost)) from lost
                    is_repeated = True
                    continue
                except Unavailable as fault:
                    if while_down != "wait" or isinstance(fault, Quarantined) or left_s <= ACCEPT_AGAIN_S:
                        raise
                    await trio.sleep(ACCEPT_AGAIN_S)
                    continue
                else:
                    metrics.FORWARDED.labels("answered").inc()
                    # The actor's handler of a Command[R] replies with an R.
                    return cast("R | Refusal", reply)
            # Its actor here gives it back while the owner's writes make it void.
            with suppress(NotAccepted):
                return await self._local.ask(key, message, deadline - trio.current_time(), while_down)

    def tell(self, key: str, message: Command[object]) -> None:
        """Tell the actor of a key."""
        link = self._link_to(key)
        _tell_via(self._members, link, self._local.ref(key), group=self.name, key=key, message=message)

    def _link_to(self, key: str) -> Link | None:
        """Return the link to the owner of a key; None if it is served here."""
        return None if self._members.is_alone else self._members.link_to(self._place_of(key))


class SingletonRef(TrioActorRef):
    """The address of the worker that does a message's work for all members; ``name_of`` returns the work's name."""

    def __init__(
        self, group: str, local: TellRef, members: Members, name_of: Callable[[Command[object]], str]
    ) -> None:
        super().__init__(f"urn:holdfast:singleton:{group}")
        self._group = group
        self._local = local
        self._members = members
        self._name_of = name_of

    def tell(self, message: Command[object]) -> None:
        """Send a command to the member that does its work."""
        if self._members.is_alone:
            self._local.tell(message)
            return
        link = self._members.link_for_name(self._name_of(message))
        _tell_via(self._members, link, self._local, group=self._group, key="", message=message)


def _tell_via(
    members: Members, link: Link | None, local: TellRef, *, group: str, key: str, message: Command[object]
) -> None:
    """Tell over a link, or here if there is none or it does not take the message. A full link drops it."""
    if link is None:
        local.tell(message)
        return
    try:
        link.tell(group, key, message)
    except Overloaded:
        metrics.DEAD_LETTERS.labels("full").inc()
        if members.on_full is not None:
            members.on_full(group, key, type(message).__name__)
    except (CannotEncode, NotAccepted):
        local.tell(message)


class Controls:
    """The control actors by member id. ``place_of`` returns the place of a key, by group."""

    def __init__(self, members: Members, local: ControlRef, place_of: Mapping[str, Callable[[str], int]]) -> None:
        self._members = members
        self._local = local
        self._place_of = place_of

    @property
    def me(self) -> str:
        """The id of this process."""
        return self._members.me

    def members(self) -> Sequence[MemberView]:
        """Return all members, this one first."""
        now = trio.current_time()
        others = [
            MemberView(
                member_id=peer.member.member_id,
                is_this=False,
                state=peer.member.membership.state,
                unreachable_for_s=None if (since := peer.unreachable_since) is None else round(now - since, 1),
            )
            for peer in self._members.peers()
        ]
        me = MemberView(member_id=self.me, is_this=True, state=self._members.state, unreachable_for_s=None)
        return [me, *sorted(others, key=lambda each: each.member_id)]

    def owner_of(self, group: str, key: str) -> str:
        """Return the member that serves a key of a group; this one for a group without places."""
        place_of = self._place_of.get(group)
        link = None if place_of is None else self._members.link_to(place_of(key))
        return self.me if link is None else link.member_id

    async def ask(self, member_id: str, command: Command[R], *, deadline_s: float) -> R | Refusal:
        """Ask a member's control actor.

        Refuses with ``member_not_found``. Raises as an ask does; ``Unavailable`` if the member cannot be reached.
        """
        if member_id == self.me:
            # The control actor replies to a Command[R] with an R.
            return cast("R | Refusal", await self._local.ask(command, deadline_s=deadline_s))
        for peer in self._members.peers():
            if peer.member.member_id == member_id:
                if peer.link is None:
                    raise Unavailable(f"the member {member_id} cannot be reached")
                try:
                    return cast("R | Refusal", await peer.link.ask(CONTROL, member_id, command, deadline_s))
                except (CannotEncode, NotAccepted) as fault:
                    raise Unavailable(f"the member {member_id} did not accept the command: {fault}") from fault
                except LinkLost as lost:
                    raise OutcomeUnknown(str(lost)) from lost
        return Refusal(code="member_not_found", message="There is no such member.", param="member_id")
