"""Members in one process: streams in memory, rows in a dictionary, heartbeats on a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from holdfast.actors.account.messages import SignOut
from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.workers.heartbeat import Presence
from holdfast.cluster.codec import ACCOUNTS, codecs
from holdfast.cluster.endpoints import Listener
from holdfast.cluster.members import Members
from holdfast.cluster.placed import PlacedDirectory
from holdfast.ledger.values import place_of
from holdfast.persistence.claims.processes import BEAT_S, LEASE_S, Beat, Member, Membership, Process
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.persistence.server.database_gate import DatabaseGate
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry.reports.reporter import Reporter

AT = datetime(2026, 11, 22, tzinfo=UTC)
SILENT = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))
Pair = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


@dataclass
class Rows:
    """The rows that members share."""

    leases: dict[str, tuple[Member, float]] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    is_away: bool = False

    def beat(self, node: Node, membership: Membership, wanted: frozenset[str]) -> Beat:
        now = trio.current_time()
        self.leases[node.name] = Member(node.name, None, membership, node.providers), now + LEASE_S
        alive = {name: member for name, (member, until) in self.leases.items() if until > now}
        self.holders = {
            name: holder
            for name, holder in self.holders.items()
            if holder in alive and (holder != node.name or name in wanted)
        }
        for name in wanted:
            self.holders.setdefault(name, node.name)
        held = frozenset(name for name, holder in self.holders.items() if holder == node.name)
        return Beat([member for name, member in alive.items() if name != node.name], held)


class Accepting(Listener):
    """A listener for streams in memory."""

    def __init__(self) -> None:
        self.dialed, self._accepted = trio.open_memory_channel[trio.abc.Stream](100)

    async def accept(self) -> trio.abc.Stream:
        return await self._accepted.receive()

    async def aclose(self) -> None:
        self._accepted.close()


class Freezable(trio.abc.Stream):
    """A stream that passes nothing while its member is frozen."""

    def __init__(self, inner: Pair, node: Node) -> None:
        self._inner = inner
        self._node = node

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._node.running.wait()
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = await self._inner.receive_some(max_bytes)
        await self._node.running.wait()
        return bytes(received)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Memory:
    """An endpoint in memory."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._accepting = Accepting()

    def listen(self, name: str) -> tuple[Sequence[Listener], tuple[str, ...]]:
        self._accepting = Accepting()
        return [self._accepting], (f"memory:{name}",)

    def forget(self, addresses: Sequence[str]) -> None: ...

    async def dial(self, member: Member) -> trio.abc.Stream:
        other = self._node.rows.nodes[member.member_id]
        near, far = memory_stream_pair()
        try:
            await other.endpoint._accepting.dialed.send(Freezable(far, other))
        except trio.BrokenResourceError:
            raise ConnectionRefusedError(member.member_id) from None
        return Freezable(near, self._node)


class Account(JournaledActor):
    """Answers with the name of the member it lives in."""

    def __init__(self, mailbox: Mailbox, node: Node, key: str) -> None:
        super().__init__(mailbox, None)  # type: ignore[arg-type]  # it writes nothing
        self._node = node
        self._key = key

    async def on_receive(self, message: SignOut) -> SessionRevokedRow:
        self._node.handled.append((self._key, message.session_id))
        await self._node.may_answer.wait()
        return SessionRevokedRow(self._node.name, message.session_id, AT)


class Node:
    """One member with a directory of accounts."""

    def __init__(self, rows: Rows, name: str, *, cluster: str = "c") -> None:
        self.rows = rows
        self.name = name
        self.providers = frozenset({"studio"})
        self.handled: list[tuple[str, str]] = []
        self.running, self.may_answer = trio.Event(), trio.Event()
        self.running.set()
        self.may_answer.set()
        self.endpoint = Memory(self)
        process = Process(name, None, 1, None)
        self.presence = Presence(process, ServiceClock(name))
        self.changes = Changes()
        self.members = Members(self.presence, self.endpoint, cluster=cluster, codecs=codecs(), changes=self.changes)  # type: ignore[arg-type]
        gate = DatabaseGate()
        gate.open()
        self.local = KeyedDirectory(
            "accounts",
            lambda key, mailbox: Account(mailbox, self, key),
            gate=gate,
            probe=self._probe,
            reporter=Reporter(logger=SILENT),
            dead_letters=DeadLetters(),
        )
        self.members.serve(ACCOUNTS, self.local)
        self.accounts = PlacedDirectory(ACCOUNTS, self.local, self.members, place_of)
        self._scope = trio.CancelScope()
        self._drained = trio.Event()
        rows.nodes[name] = self

    @staticmethod
    async def _probe() -> bool:
        return True

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run until killed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.members.run)
                await nursery.start(self._run_local)
                nursery.start_soon(self._heartbeat)
                task_status.started()

    async def _run_local(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.local.run(task_status=task_status)
        self._drained.set()

    def kill(self) -> None:
        """End at once, as by a signal: the row stays."""
        self._scope.cancel()

    async def leave(self) -> None:
        """End in order."""
        await self.members.drain()
        del self.rows.leases[self.name]
        await self.local.stop()
        await self._drained.wait()
        await self.members.stop()
        self._scope.cancel()

    def freeze(self) -> None:
        """Stop, as by SIGSTOP."""
        self.running = trio.Event()

    async def _heartbeat(self) -> None:
        while True:
            if not self.rows.is_away:
                written = self.presence.membership
                wanted = self.presence.begin_beat(self.providers)
                self.presence.end_beat(self.rows.beat(self, written, wanted), written)
            await self.presence.wait_due()
            await self.running.wait()

    def owner_of(self, key: str) -> str:
        """The owner of a key, as this member sees it."""
        link = self.members.link_to(place_of(key))
        return self.name if link is None else link.member_id

    async def ask(self, key: str, session_id: str = "ses_1", *, deadline_s: float = 10.0) -> str:
        """Ask an account through this member, and return the name of the member that answered."""
        reply = await self.accounts.ref(key).ask(SignOut(session_id), deadline_s=deadline_s)
        assert isinstance(reply, SessionRevokedRow)
        return reply.account_id


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[trio.Nursery]:
    """Run members, all of them ready and linked."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        await trio.sleep(3 * BEAT_S)
        yield nursery
        nursery.cancel_scope.cancel()
