"""Members on a real database, joined by real sockets: one owner an account, and the fence for everything else."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from tests.actors.actor_system import ActorSystem, create_task, make_system
from tests.certificates import Authority
from torture.service import reserve_port

from holdfast.actors.account.messages import (
    BeginAttempt,
    CreateTask,
    CreditChanged,
    Recharge,
    RequestAttempt,
    TaskAccepted,
)
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.actors.runtime.refs import TellRef
from holdfast.actors.workers.heartbeat import Heartbeat, Presence
from holdfast.cluster.codec import ACCOUNTS, codecs
from holdfast.cluster.endpoints import MemberEndpoint, MutualTls, UnusableFile, mutual_tls, socket_path
from holdfast.cluster.members import SINGLETONS, Members
from holdfast.cluster.placed import PlacedDirectory
from holdfast.ledger.values import new_id, place_of, utc_now
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.queries.replies import replies_of_route
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry import metrics

ROUTE = "POST /v2/task/create"
CREDIT = 100_000_000
STALE_MAX = 2
"""Units that two members may decide while they find each other."""


class Node:
    """A process's worth of accounts, as a member. Each has a machine of its own if it has an address."""

    def __init__(self, url: str, folder: Path, name: str, tls: MutualTls | None = None) -> None:
        self.database = Database(url, pool_size=2)
        self.system: ActorSystem = make_system(self.database)
        machine = "one machine" if tls is None else name
        process = replace(this_process(), member_id=new_id("proc"), machine=machine)
        self.presence = Presence(process, ServiceClock(process.member_id))
        endpoint = MemberEndpoint(folder, machine, None if tls is None else ("127.0.0.1", 30_000), tls)
        self.members = Members(self.presence, endpoint, cluster="c", codecs=codecs(), changes=Changes())
        self.members.serve(ACCOUNTS, self.system.accounts)
        self.accounts = PlacedDirectory(ACCOUNTS, self.system.accounts, self.members, place_of)
        self.scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        heartbeat = Heartbeat(database=self.database, presence=self.presence, providers=tuple)
        await self.database.open()
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    for part in (
                        self.system.journal.run,
                        self.members.run,
                        self.system.accounts.run,
                        heartbeat.run,
                    ):
                        await nursery.start(part)
                    task_status.started()
        finally:
            self.database.close()


@asynccontextmanager
async def running(nodes: list[Node]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        await until_members(nodes)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it is true."""
    with trio.fail_after(60):
        while True:
            if condition():
                return
            await trio.sleep(0.01)


async def until_members(nodes: list[Node]) -> None:
    """Wait until every member sees them all."""
    await until(lambda: all(len(node.members.owners) == len(nodes) for node in nodes))


def stale_units() -> float:
    [found] = metrics.FENCE_STALE.collect()
    return sum(sample.value for sample in found.samples if sample.name.endswith("_total"))


async def create_mixed(nodes: list[Node], opened: list[tuple[str, str]], batch: str) -> None:
    """Create tasks in all accounts, each ask through the next member, and the same ask again through another."""
    replies: dict[str, set[str]] = {}

    async def one(number: int) -> None:
        account_id, key_id = opened[number % len(opened)]
        key = f"{batch} {number}"
        command = create_task(key_id, key=key)
        for asker in (nodes[number % len(nodes)], nodes[(number + 1) % len(nodes)]):
            reply = await asker.accounts.ref(account_id).ask(command)
            accepted = reply.reply if isinstance(reply, Replayed) else reply
            assert isinstance(accepted, TaskAccepted)
            replies.setdefault(key, set()).add(accepted.request_id)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(one, number)
    assert all(len(request_ids) == 1 for request_ids in replies.values())
    assert len(set.union(*replies.values())) == 60


async def open_accounts(node: Node) -> list[tuple[str, str]]:
    opened = [await node.system.open_account() for _ in range(10)]
    for account_id, _ in opened:
        recharged = await node.accounts.ref(account_id).ask(Recharge(CREDIT, IdempotencyKey("r", "k", b"f")))
        assert isinstance(recharged, CreditChanged)
    return opened


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
async def test_mixed_accounts_are_decided_by_one_member(database_url: str, tmp_path: Path, count: int) -> None:
    nodes = [Node(database_url, tmp_path, f"machine {number}") for number in range(count)]
    async with running(nodes):
        opened = await open_accounts(nodes[0])
        stale_before = stale_units()
        await create_mixed(nodes, opened, "all")
        assert stale_units() - stale_before <= STALE_MAX
        for node in nodes:
            owned = [opened_id for opened_id, _ in opened if node.members.link_to(place_of(opened_id)) is None]
            assert node.system.accounts.active_count == len(owned)
        await until(
            lambda: sum(node.presence.has_claimed(name) for node in nodes for name in SINGLETONS) == len(SINGLETONS)
        )
        # One ends without a word; the others answer for its accounts at once, from the rows.
        nodes[-1].scope.cancel()
        await until_members(nodes[:-1])
        await create_mixed(nodes[:-1], opened, "without the last")
    with connected(database_url) as connection:
        assert run_audit(connection) == {}


class Frozen:
    """The accounts of a member that is frozen: what others have sent is taken when the test says so."""

    is_ready = True

    def __init__(self, accounts: KeyedDirectory) -> None:
        self._accounts = accounts
        self.sent: list[tuple[str, Envelope]] = []

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> None:
        self.sent.append((key, envelope))

    def ref(self, key: str) -> TellRef:
        return self._accounts.ref(key)

    def take(self, number: int) -> None:
        """Take what was sent as the first, the second and so on."""
        self._accounts.accept(*self.sent[number])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_create_on_one_link_and_a_later_attempt_on_another_are_one_task(
    database_url: str, tmp_path: Path, order: tuple[int, int]
) -> None:
    """The account's owner is frozen, shorter than its links last, and reads either link first."""
    nodes = [Node(database_url, tmp_path, f"machine {number}") for number in range(3)]
    async with running(nodes):
        account_id, key_id = (await open_accounts(nodes[0]))[0]
        place = place_of(account_id)
        asked_first, asked_next, owner = sorted(nodes, key=lambda node: node.members.link_to(place) is None)
        frozen = Frozen(owner.system.accounts)
        owner.members.serve(ACCOUNTS, frozen)

        def create(attempt_id: str) -> CreateTask:
            return replace(create_task(key_id, key=attempt_id), after=RequestAttempt("equal", attempt_id))

        async with trio.open_nursery() as client:
            client.start_soon(asked_first.accounts.ref(account_id).ask, create(""))
            await until(lambda: len(frozen.sent) == 1)
            client.cancel_scope.cancel()
        begin = BeginAttempt(RequestAttempt("equal", "attempt_1"), key_id, "tasks:write")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked_next.accounts.ref(account_id).ask, begin)
            await until(lambda: len(frozen.sent) == 2)
            for number in order:
                frozen.take(number)
        stored = await asked_next.database.read(
            lambda rows: replies_of_route(rows, account_id, route=ROUTE, oldest=utc_now() - timedelta(minutes=1))
        )
        assert bool(stored) == (order == (0, 1))
        owner.members.serve(ACCOUNTS, owner.system.accounts)
        if not stored:
            reply = await asked_next.accounts.ref(account_id).ask(create("attempt_1"))
            assert isinstance(reply, TaskAccepted)
    with connected(database_url) as connection:
        assert connection.exec_driver_sql("select count(*) from tasks").scalar() == 1
        connection.rollback()
        assert run_audit(connection) == {}


async def test_members_of_different_machines_are_linked_by_tls(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("127.0.0.1")
    tls = mutual_tls(certificate=issued, key=issued, authority=authority.path)
    nodes = [Node(database_url, tmp_path, f"machine {n}", tls) for n in range(2)]
    async with running(nodes):
        assert all(node.presence.membership.addresses[-1].startswith("tcp:127.0.0.1:") for node in nodes)
        await create_mixed(nodes, await open_accounts(nodes[0]), "tls")
        # A certificate of another authority opens no link.
        address = nodes[0].presence.membership.addresses[-1].removeprefix("tcp:")
        unsigned = Authority(tmp_path, "other").issue("127.0.0.1")
        stranger = mutual_tls(certificate=unsigned, key=unsigned, authority=authority.path).dial
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        async with trio.SSLStream(stream, stranger, server_hostname="127.0.0.1") as secured:
            received: bytes | bytearray = b""
            # Whether the client sees the alert or the end of the connection differs between releases of Python.
            with suppress(trio.BrokenResourceError):
                received = await secured.receive_some()
            assert received == b""
    assert tls.accept.verify_mode is ssl.CERT_REQUIRED


def test_files_that_are_not_for_tls_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued, other = authority.issue("127.0.0.1"), tmp_path / "other.pem"
    other.write_text("not a certificate")
    for certificate, key, ca, named in (
        (issued, issued, other, "other.pem is not the certificate of an authority"),
        (other, issued, authority.path, "other.pem and .* are not a certificate and its key"),
        (issued, other, authority.path, "other.pem are not a certificate and its key"),
    ):
        with pytest.raises(UnusableFile, match=named):
            mutual_tls(certificate=certificate, key=key, authority=ca)


async def test_a_member_keeps_its_port_when_it_starts_again(tmp_path: Path) -> None:
    def listen(first: int) -> tuple[trio.abc.Listener[trio.abc.Stream], int]:
        [listener], [address] = MemberEndpoint(tmp_path, None, ("127.0.0.1", first)).listen("mine")
        return listener, int(address.rpartition(":")[2])

    port = reserve_port(listen)
    listener, _ = listen(port)
    # The side that closes first keeps the connection in TIME_WAIT, as a killed member's system does.
    dialed = await trio.open_tcp_stream("127.0.0.1", port)
    await (await listener.accept()).aclose()
    await dialed.aclose()
    await listener.aclose()
    again, same = listen(port)
    other, next_one = listen(port)
    assert same == port
    assert next_one > port
    await again.aclose()
    await other.aclose()


def test_a_socket_has_a_short_path_even_in_a_deep_folder(tmp_path: Path) -> None:
    assert socket_path(Path("/run/holdfast"), "0123456789ab") == Path("/run/holdfast/0123456789ab.sock")
    deep = tmp_path / ("d" * 100)
    path = socket_path(deep, "0123456789ab")
    assert len(str(path)) <= 107
    assert path.parent != deep
    assert path == socket_path(deep, "0123456789ab")


def test_sockets_of_killed_processes_are_removed(tmp_path: Path) -> None:
    endpoint = MemberEndpoint(tmp_path / "members", "one machine")
    for name, age_s in (("old", 3600), ("new", 0)):
        path = tmp_path / "members" / f"{name}.sock"
        path.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
        os.utime(path, (time.time() - age_s,) * 2)
    [listener], [address] = endpoint.listen("mine")
    assert address == f"unix:{tmp_path}/members/mine.sock"
    assert sorted(path.name for path in (tmp_path / "members").iterdir()) == ["mine.sock", "new.sock"]
    endpoint.forget([address])
    trio.run(listener.aclose)
    assert sorted(path.name for path in (tmp_path / "members").iterdir()) == ["new.sock"]
