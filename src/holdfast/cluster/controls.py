"""The control actors of all members: asked here, or over the link to the other member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import trio

from holdfast.actors.runtime.faults import OutcomeUnknown, Unavailable
from holdfast.actors.runtime.messages import Command
from holdfast.cluster.codec import CannotEncode
from holdfast.cluster.faults import LinkLost, NotAccepted
from holdfast.cluster.groups import CONTROL
from holdfast.cluster.members import Members
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.actor import ControlRef
from holdfast.supervision.control.messages import MemberView

R = TypeVar("R")


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
        """Return all members, this one first, and for a while those that went without a word."""
        now = trio.current_time()
        others = [
            MemberView(
                member_id=peer.member.process_id,
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
            if peer.member.process_id == member_id:
                if peer.link is None:
                    raise Unavailable(f"the member {member_id} cannot be reached")
                try:
                    return cast("R | Refusal", await peer.link.ask(CONTROL, member_id, command, deadline_s))
                except (CannotEncode, NotAccepted) as fault:
                    raise Unavailable(f"the member {member_id} did not accept the command: {fault}") from fault
                except LinkLost as lost:
                    raise OutcomeUnknown(str(lost)) from lost
        return Refusal(code="member_not_found", message="There is no such member.", param="member_id")
