"""The members of the cluster as this process sees them, and which of them owns what.

The rows say who is ready; a place belongs to a member only while there is a link to it. So when a link closes, the
places of its member move at once, whether it was stopped, killed, frozen or cut off. Members may disagree for a
moment: then two of them serve an account, which the fence makes slow but harmless.

Members that can call different providers, as while a catalog changes, do not send each other anything.

A process joins, opens its links, and is then ready. Before it ends it drains: others send it nothing more, and it
sends what it still receives to the members that took over its places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog
import trio

from holdfast.actors.runtime.mailbox import AskDeadlines
from holdfast.actors.workers.heartbeat import Presence
from holdfast.cluster.answering import Answering, LocalGroup
from holdfast.cluster.codec import Codec
from holdfast.cluster.endpoints import DIAL_TIMEOUT_S, MemberEndpoint
from holdfast.cluster.frames import PROTOCOL
from holdfast.cluster.link import Link
from holdfast.cluster.placement import owner_of_name, owners_of_places
from holdfast.persistence.claims.processes import Member, Membership, MemberState
from holdfast.persistence.journal.changes import Change, Changes
from holdfast.telemetry import metrics

log = structlog.get_logger(__name__)

SINGLETONS = frozenset(
    {
        "checker",
        "reconciler",
        "order-sweeper",
        "top-ups",
        "receipts",
        "asset-sweeper",
        "lot-sweeper",
        "sweeper",
        "closings",
        "archives",
        "bulk-actions",
    }
)
"""The work that one member does for all, besides assigning the slots of each provider."""
JOIN_S = 2.0
"""How long a new member waits for its links before it is ready without some of them."""
DRAIN_S = 1.0
"""How long a draining member waits until its row says so."""
READ_S = 1.0
"""How long the line on a closed link waits for the member's row."""
UNREACHED_S = 5.0
"""A member that cannot be reached for so long is logged: one that has just ended is not missed."""
LINKS_MAX = 256
"""How many connections of other members are open at once."""
REDIAL_FIRST_S = 0.05
REDIAL_S = 2.0
"""The time between two attempts to open a link, at first and at most."""


def slots_of(provider: str) -> str:
    """Return the name of a singleton: assigning the slots of a provider."""
    return f"slots of {provider}"


def reports_of(host: str) -> str:
    """Return the name of a singleton: reporting whether webhooks are delivered to a host."""
    return f"webhooks to {host}"


class Peer:
    """Another member, and the link to it while that is up."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.link: Link | None = None
        self.scope = trio.CancelScope()
        self.tried = trio.Event()
        self.failures = 0
        self.has_left = False
        self.logged: set[str] = set()
        self.unreachable_since: float | None = trio.current_time()
        """Since when there is no link (trio's clock); None while there is one."""

    def is_new(self, reason: str) -> bool:
        """Remember why there is no link, and return whether that is a new reason since there was one."""
        is_known = reason in self.logged
        self.logged.add(reason)
        return not is_known

    def may_own(self, providers: frozenset[str]) -> bool:
        """Whether it may own places: it is ready, linked, and can call these providers and no others."""
        is_ready = self.member.membership.state == "ready" and not self.has_left
        return is_ready and self.member.providers == providers and self.link is not None and self.link.is_up


class Members:
    """This process's membership, and its links to the others."""

    def __init__(
        self,
        presence: Presence,
        endpoint: MemberEndpoint,
        *,
        cluster: str,
        codecs: Mapping[str, Codec],
        changes: Changes,
    ) -> None:
        self._presence = presence
        self._endpoint = endpoint
        self._cluster = cluster
        self._codecs = codecs
        self._changes = changes
        self._deadlines = AskDeadlines()
        self._groups: dict[str, LocalGroup] = {}
        self._me = presence.process.member_id
        self._providers: frozenset[str] = frozenset()
        self._peers: dict[str, Peer] = {}
        self.is_alone = True
        """Whether this process serves everything itself."""
        self._links: Sequence[Link | None] = ()
        self.on_full: Callable[[str, str, str], None] | None = None
        """Called with the group, key and type of a message that a full link dropped."""
        self.owners: tuple[str, ...] = ()
        """The members that own places."""
        self._known = trio.Event()
        self._rows_read = trio.Event()
        self._announced = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._listens = False
        self._answering: dict[Answering, None] = {}
        self._others: frozenset[str] = frozenset()
        """All other members that have a row, also those without a link."""
        changes.is_complete = self._is_sent_everything
        presence.wanted = self._wanted
        presence.on_members = self._on_members

    def serve(self, group: str, local: LocalGroup) -> None:
        """Answer the asks of other members to a group of actors."""
        self._groups[group] = local

    def link_to(self, place: int) -> Link | None:
        """Return the link to the owner of a place; None if asks are served here."""
        return None if self.is_alone else self._links[place]

    def link_for_name(self, singleton: str) -> Link | None:
        """Return the link to the member that does a singleton's work; None if this process does."""
        if self.is_alone:
            return None
        peer = self._peers.get(owner_of_name(singleton, self.owners))
        return None if peer is None else peer.link

    @property
    def me(self) -> str:
        """The id of this process."""
        return self._me

    @property
    def state(self) -> MemberState:
        """The state of this process."""
        return self._presence.membership.state

    def peers(self) -> Sequence[Peer]:
        """Return the other members: those with a lease, and those to which there is a link."""
        return [*self._peers.values()]

    # ------------------------------------------------------------------------------------------------ its run

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen, and keep a link to every other member."""
        listeners, addresses = self._endpoint.listen(self._me[-12:])
        self._listens = bool(listeners)
        self._set_state("joining", addresses)
        self._known = trio.Event()
        try:
            async with trio.open_nursery() as self._nursery:
                for listener in listeners:
                    self._nursery.start_soon(partial(trio.serve_listeners, self._answer, [listener]))
                self._nursery.start_soon(self._join)
                self._nursery.start_soon(trio.sleep_forever)
                task_status.started()
        finally:
            self._nursery = None
            self._peers.clear()
            self._set_state("joining")
            self._endpoint.forget(addresses)

    async def drain(self) -> None:
        """Give up all places, and wait until the others can know it."""
        self._set_state("draining")
        if self._peers:
            with trio.move_on_after(DRAIN_S):
                await self._announced.wait()

    async def stop(self) -> None:
        """Write the last replies, and close all links."""
        with trio.move_on_after(DRAIN_S):
            for answering in list(self._answering):
                await answering.flush()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _set_state(self, state: MemberState, addresses: tuple[str, ...] | None = None) -> None:
        before = self._presence.membership
        self._presence.membership = Membership(
            state, before.addresses if addresses is None else addresses, PROTOCOL
        )
        self._announced = trio.Event()
        self._assign_places()
        self._presence.beat_soon()

    async def _join(self) -> None:
        await self._known.wait()
        with trio.move_on_after(JOIN_S):
            for peer in list(self._peers.values()):
                await peer.tried.wait()
        self._set_state("ready")

    # --------------------------------------------------------------------------------------------- the others

    def _on_members(self, members: Sequence[Member], written: Membership) -> None:
        """Take the rows that a heartbeat has read, after it wrote ``written``."""
        if self._nursery is None:
            return
        found = {member.member_id: member for member in members}
        was_complete = self._is_sent_everything()
        self._others = frozenset(found)
        for member_id in self._peers.keys() - found.keys():
            self._remove(self._peers[member_id])
        for member_id, member in found.items():
            peer = self._peers.get(member_id)
            if peer is not None:
                peer.member, peer.has_left = member, False
            elif member.membership.protocol == PROTOCOL and self._listens:
                peer = self._peers[member_id] = Peer(member)
                self._nursery.start_soon(self._keep_link, peer)
        self._assign_places()
        if not (was_complete and self._is_sent_everything()):
            self._changes.note_missed()
        self._known.set()
        self._rows_read.set()
        self._rows_read = trio.Event()
        if written is self._presence.membership and not self._announced.is_set():
            self._announced.set()
            for peer in self._peers.values():
                if peer.link is not None:
                    peer.link.announce_change()

    def _remove(self, peer: Peer) -> None:
        """Forget a member without a lease; if it is stopping, it still answers what it has been asked."""
        peer.has_left = True
        if peer.link is None:
            peer.scope.cancel()
            del self._peers[peer.member.member_id]

    async def _keep_link(self, peer: Peer) -> None:
        """Open a link to another member, again and again, as long as its lease is valid."""
        with peer.scope:
            while True:
                stream = await self._dial(peer)
                if stream is not None:
                    link = peer.link = Link(
                        stream,
                        peer.member.member_id,
                        me=self._me,
                        cluster=self._cluster,
                        codecs=self._codecs,
                        deadlines=self._deadlines,
                    )
                    try:
                        reason = await link.run(partial(self._on_up, peer))
                    except Exception:
                        # Only this connection is at fault, or what came over it.
                        log.exception("link crashed", member=peer.member.member_id)
                        reason = "it crashed"
                    self._on_down(peer, reason)
                    if peer.has_left:
                        self._remove(peer)
                peer.tried.set()
                await trio.sleep(min(REDIAL_FIRST_S * 2**peer.failures, REDIAL_S))
                peer.failures = min(peer.failures + 1, 10)

    async def _dial(self, peer: Peer) -> trio.abc.Stream | None:
        reason = f"no answer within {DIAL_TIMEOUT_S:g} s"
        with trio.move_on_after(DIAL_TIMEOUT_S):
            try:
                return await self._endpoint.dial(peer.member)
            except (OSError, trio.BrokenResourceError) as exc:
                reason = str(exc.__cause__ or exc)  # a failed handshake's reason is its cause
        since = peer.unreachable_since
        is_missed = since is not None and trio.current_time() - since >= UNREACHED_S
        if is_missed and peer.is_new(reason):
            log.warning("member not reached", member=peer.member.member_id, reason=reason)
        return None

    def _on_up(self, peer: Peer) -> None:
        log.info("link opened", member=peer.member.member_id)
        peer.tried.set()
        peer.unreachable_since = None
        peer.failures = 0
        peer.logged.clear()
        if peer.link is not None and self._announced.is_set():
            # The other may have read this member's row before its last change, and does not know of that.
            peer.link.announce_change()
        self._assign_places()

    def _on_down(self, peer: Peer, reason: str) -> None:
        peer.link = None
        peer.unreachable_since = trio.current_time()
        self._assign_places()
        # The member may have ended: then its row is read as it is now, and its singletons are claimed.
        self._presence.beat_soon()
        if self._nursery is not None and peer.is_new(reason):
            self._nursery.start_soon(self._log_closed, peer, reason)

    async def _log_closed(self, peer: Peer, reason: str) -> None:
        """Log that a link has closed, as a warning unless the member's row says that it ends in order."""
        with trio.move_on_after(READ_S):
            await self._rows_read.wait()
        ends_in_order = peer.has_left or peer.member.membership.state == "draining"
        write = log.info if ends_in_order else log.warning
        write("link closed", member=peer.member.member_id, reason=reason)

    async def _answer(self, stream: trio.abc.Stream) -> None:
        """Answer another member's asks until it closes the connection.

        At the limit the oldest connection on which no member has introduced itself makes room.
        """
        if len(self._answering) >= LINKS_MAX:
            unknown = next((each for each in self._answering if each.member_id is None), None)
            if unknown is None:
                await trio.aclose_forcefully(stream)
                return
            del self._answering[unknown]
            unknown.close()
        answering = Answering(
            stream,
            me=self._me,
            cluster=self._cluster,
            codecs=self._codecs,
            groups=self._groups,
            on_member=self._on_hello,
            on_change=self._presence.beat_soon,
            changes=self._changes,
        )
        self._answering[answering] = None
        try:
            await answering.run()
        except Exception:
            # Only this connection is at fault, or what it sent.
            log.exception("link crashed")
        finally:
            self._answering.pop(answering, None)
            self._changes.note_missed()

    def _send_changes(self, changes: Sequence[Change]) -> None:
        """Send to all other members which rows were changed."""
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.send_changes(changes)

    def _is_sent_everything(self) -> bool:
        """Whether every other member sends to this one which rows it changes."""
        return self._others <= {each.member_id for each in self._answering}

    def _on_hello(self, member_id: str) -> None:
        if member_id not in self._peers:
            self._presence.beat_soon()

    # ---------------------------------------------------------------------------------------------- placement

    def _assign_places(self) -> None:
        """Compute who owns which place."""
        links = {peer.member.member_id: peer.link for peer in self._peers.values() if peer.may_own(self._providers)}
        is_ready = self._presence.membership.state == "ready"
        self.owners = (*links, *([self._me] if is_ready else []))
        metrics.MEMBERS.set(len(self.owners))
        has_links = any(peer.link is not None for peer in self._peers.values())
        self._changes.send = self._send_changes if has_links else None
        self.is_alone = not links
        self._links = [links.get(owner) for owner in owners_of_places(self.owners)] if links else ()

    def _wanted(self, providers: frozenset[str]) -> frozenset[str]:
        """Return the singletons that belong to this process, which can call ``providers``."""
        self._providers = providers
        if self._me not in self.owners:
            return frozenset()
        names = SINGLETONS | {slots_of(provider) for provider in providers}
        return frozenset(name for name in names if owner_of_name(name, self.owners) == self._me)
