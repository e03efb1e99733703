"""Members on a fake clock: who owns what when members join, leave, die, freeze or disagree."""

from __future__ import annotations

import math
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import structlog
import trio
from tests.persistence.values import make_task
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.account.messages import RevokeApiKey, SignOut
from holdfast.actors.runtime.faults import NotAccepted, OutcomeUnknown
from holdfast.cluster import members
from holdfast.cluster.codec import Codec, LinkLost
from holdfast.cluster.frames import HELLO_S, PROTOCOL
from holdfast.cluster.link import PING_S, SILENT_S
from holdfast.cluster.members import JOIN_S, UNREACHED_S, slots_of
from holdfast.cluster.members import SINGLETONS as FIXED
from holdfast.cluster.placement import owners_of_places
from holdfast.ledger.values import place_of
from holdfast.persistence.claims.processes import BEAT_S, LEASE_S, Beat, Member, Membership
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.records.rows import AccountHead, NewTaskRow, SessionRevokedRow

from .nodes import AT, Node, Rows, running

SINGLETONS = FIXED | {slots_of("studio")}
ACCOUNTS = [f"acct_{number}" for number in range(40)]


def three(rows: Rows) -> list[Node]:
    return [Node(rows, name) for name in ("proc_a", "proc_b", "proc_c")]


async def test_every_member_sends_an_account_to_the_same_owner(autojump_clock: MockClock) -> None:
    nodes = three(Rows())
    async with running(*nodes):
        owners = {key: nodes[0].owner_of(key) for key in ACCOUNTS}
        assert {tuple(node.owner_of(key) for node in nodes) for key in ACCOUNTS} == {
            (name,) * 3 for name in owners.values()
        }
        assert set(owners.values()) == {node.name for node in nodes}
        for node in nodes:
            for key in ACCOUNTS:
                assert await node.ask(key) == owners[key]
    assert {key for node in nodes for key, _ in node.handled if node.name != owners[key]} == set()


async def test_a_member_alone_serves_everything_itself(autojump_clock: MockClock) -> None:
    node = Node(Rows(), "proc_a")
    async with running(node):
        assert node.members.is_alone
        assert await node.ask("acct_1") == "proc_a"
        assert all(node.presence.has_claimed(name) for name in SINGLETONS)


async def test_a_new_member_takes_over_its_places_only(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes[:2]) as nursery:
        before = {key: nodes[0].owner_of(key) for key in ACCOUNTS}
        await nursery.start(nodes[2].run)
        # No heartbeat is waited for: the new member's hello makes the others read the rows.
        await trio.sleep(BEAT_S / 4)
        after = {key: nodes[0].owner_of(key) for key in ACCOUNTS}
        assert {after[key] for key in ACCOUNTS if after[key] != before[key]} == {"proc_c"}
        assert [await node.ask(key) for key in ACCOUNTS for node in nodes] == [
            after[key] for key in ACCOUNTS for _ in nodes
        ]


async def test_a_member_whose_links_open_late_takes_its_places_at_once(
    autojump_clock: MockClock,
) -> None:
    rows = Rows()
    nodes = [Node(rows, "proc_a"), Node(rows, "proc_b")]
    can_dial = trio.Event()
    for node in nodes:
        node.endpoint.dial = partial(dial_after, can_dial, node.endpoint.dial)  # type: ignore[method-assign]
    async with running(nodes[0]) as nursery:
        await nursery.start(nodes[1].run)
        nodes[0].presence.beat_soon()
        await trio.sleep(JOIN_S + BEAT_S / 8)
        assert [node.members.state for node in nodes] == ["ready", "ready"]
        can_dial.set()
        await trio.sleep(BEAT_S / 8)
        owners = [{key: node.owner_of(key) for key in ACCOUNTS} for node in nodes]
        assert owners[0] == owners[1]
        assert set(owners[0].values()) == {"proc_a", "proc_b"}


async def dial_after(
    event: trio.Event, dial: Callable[[Member], Awaitable[trio.abc.Stream]], member: Member
) -> trio.abc.Stream:
    await event.wait()
    return await dial(member)


async def test_the_places_of_a_killed_member_move_at_once(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes):
        killed_at = trio.current_time()
        nodes[2].kill()
        await wait_all_tasks_blocked()
        owners = {key: nodes[0].owner_of(key) for key in ACCOUNTS}
        assert set(owners.values()) == {"proc_a", "proc_b"}
        assert [await node.ask(key) for node in nodes[:2] for key in ACCOUNTS] == [*owners.values()] * 2
        assert trio.current_time() - killed_at < 0.1
        assert "proc_c" in rows.leases
        # Its singletons wait for its lease here: no other machine can see that it has ended.
        await trio.sleep(LEASE_S + BEAT_S)
        holders = Counter(rows.holders.values())
        assert holders.keys() <= {"proc_a", "proc_b"}
        assert holders.total() == len(SINGLETONS)


async def test_a_killed_member_is_named_to_operators_until_its_lease_ends(autojump_clock: MockClock) -> None:
    def silent(node: Node) -> list[str]:
        return [each.member.member_id for each in node.members.peers() if each.unreachable_since is not None]

    rows = Rows()
    nodes = three(rows)
    async with running(*nodes) as nursery:
        nodes[2].kill()
        await wait_all_tasks_blocked()
        assert [silent(node) for node in nodes[:2]] == [["proc_c"]] * 2
        nodes.append(Node(rows, "proc_d"))
        await nursery.start(nodes[3].run)
        await trio.sleep(LEASE_S + BEAT_S)
        known = [sorted(each.member.member_id for each in node.members.peers()) for node in nodes[:2]]
        assert known == [["proc_b", "proc_d"], ["proc_a", "proc_d"]]
        assert [silent(node) for node in nodes[:2]] == [[], []]


async def test_a_member_that_is_not_reached_is_logged_once_with_the_reason(autojump_clock: MockClock) -> None:
    async def fail_handshake(member: Member) -> trio.abc.Stream:
        raise trio.BrokenResourceError from ssl.SSLError(1, "certificate has expired")

    nodes = three(Rows())
    async with running(*nodes):
        with structlog.testing.capture_logs() as logs:
            nodes[0].endpoint.dial = fail_handshake  # type: ignore[method-assign]
            nodes[2].kill()
            await trio.sleep(UNREACHED_S - 1)
            assert "member not reached" not in [line["event"] for line in logs]
            await trio.sleep(LEASE_S)
    missed = [(line["member"], line["reason"]) for line in logs if line["event"] == "member not reached"]
    # By each of the two others; the memory's own refusal has the member's name as its reason.
    assert sorted(missed) == [("proc_c", "certificate has expired"), ("proc_c", "proc_c")]


async def asks_lost_with_their_owner(node: Node, owner: Node, key: str, command: SignOut) -> object:
    """Ask; kill the owner when it has accepted the ask."""
    reply: list[object] = []

    async def one() -> None:
        try:
            reply.append(await node.accounts.ref(key).ask(command))
        except OutcomeUnknown as unknown:
            reply.append(unknown)

    owner.may_answer = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await wait_all_tasks_blocked()
        assert owner.handled == [(key, command.session_id)]
        owner.kill()
    return reply[0]


async def test_an_ask_lost_with_its_owner_is_repeated_if_it_is_idempotent(autojump_clock: MockClock) -> None:
    nodes = three(Rows())
    async with running(*nodes):
        key = next(key for key in ACCOUNTS if nodes[0].owner_of(key) == "proc_c")
        reply = await asks_lost_with_their_owner(nodes[0], nodes[2], key, SignOut("ses_1"))
        assert isinstance(reply, SessionRevokedRow)
        assert reply.account_id in {"proc_a", "proc_b"}
        assert sum(len(node.handled) for node in nodes) == 2


async def test_an_ask_lost_with_its_owner_has_an_unknown_outcome_otherwise(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = three(Rows())
    async with running(*nodes):
        key = next(key for key in ACCOUNTS if nodes[0].owner_of(key) == "proc_c")
        monkeypatch.setattr(SignOut, "is_idempotent", False)
        reply = await asks_lost_with_their_owner(nodes[0], nodes[2], key, SignOut("ses_1"))
        assert isinstance(reply, OutcomeUnknown)
        assert sum(len(node.handled) for node in nodes) == 1
    assert not RevokeApiKey("key_1").is_repeatable


async def test_a_frozen_member_loses_its_places_and_may_return(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes):
        owned = [key for key in ACCOUNTS if nodes[0].owner_of(key) == "proc_c"]
        held = [name for name in SINGLETONS if nodes[2].presence.has_claimed(name)]
        nodes[2].freeze()
        asked_at = trio.current_time()
        # The first ask waits until the link counts as lost, and is repeated at another member.
        assert await nodes[0].ask(owned[0]) in {"proc_a", "proc_b"}
        assert SILENT_S - PING_S <= trio.current_time() - asked_at <= SILENT_S + 2 * PING_S
        for key in owned:
            assert await nodes[0].ask(key) in {"proc_a", "proc_b"}
        await trio.sleep(60)
        assert not any(nodes[2].presence.has_claimed(name) for name in held)
        assert set(rows.holders.values()) <= {"proc_a", "proc_b"}
        nodes[2].running.set()
        await trio.sleep(LEASE_S)
        assert {node.owner_of(key) for node in nodes for key in owned} == {"proc_c"}
        assert [name for name in SINGLETONS if nodes[2].presence.has_claimed(name)] == held
        assert len(rows.holders) == len(SINGLETONS)


async def test_nothing_is_lost_when_a_member_leaves(autojump_clock: MockClock) -> None:
    nodes = three(Rows())
    async with running(*nodes) as nursery:
        owned = [key for key in ACCOUNTS if nodes[0].owner_of(key) == "proc_c"]
        nodes[2].may_answer = trio.Event()
        answers: list[str] = []

        async def one(key: str) -> None:
            answers.append(await nodes[0].ask(key))

        async with trio.open_nursery() as asks:
            for key in owned[:3]:
                asks.start_soon(one, key)
            await wait_all_tasks_blocked()
            nursery.start_soon(nodes[2].leave)
            await wait_all_tasks_blocked()
            # While it drains it is asked nothing more, and passes on what it receives itself.
            assert await nodes[0].ask(owned[3]) != "proc_c"
            assert await nodes[2].ask(owned[4]) != "proc_c"
            nodes[2].may_answer.set()
        assert answers == ["proc_c"] * 3
        await trio.sleep(BEAT_S)
        assert {nodes[0].owner_of(key) for key in owned} == {"proc_a", "proc_b"}


async def test_the_link_of_a_member_that_leaves_is_no_warning(autojump_clock: MockClock) -> None:
    nodes = three(Rows())
    async with running(*nodes):
        with structlog.testing.capture_logs() as logs:
            await nodes[2].leave()
            await trio.sleep(BEAT_S)
            left = [line["log_level"] for line in logs if line["event"] == "link closed"]
            logs.clear()
            nodes[1].kill()
            await trio.sleep(BEAT_S)
            killed = [line["log_level"] for line in logs if line["event"] == "link closed"]
    assert (left, killed) == (["info", "info"], ["warning"])


async def test_an_owner_whose_actors_do_not_run_leaves_the_ask_to_the_asker(autojump_clock: MockClock) -> None:
    nodes = three(Rows())
    async with running(*nodes):
        key = next(key for key in ACCOUNTS if nodes[0].owner_of(key) == "proc_c")
        await nodes[2].local.stop()
        assert await nodes[0].ask(key) == "proc_a"


async def test_an_ask_that_is_given_back_goes_to_the_new_owner(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = three(Rows())
    owners = owners_of_places([node.name for node in nodes])
    async with running(*nodes[:2]) as nursery:
        key = next(
            key for key in ACCOUNTS if owners[place_of(key)] == "proc_c" and nodes[0].owner_of(key) == "proc_a"
        )

        async def give_back(*_: object) -> None:
            """Give an ask back once another member has joined, whose writes come first."""
            await nursery.start(nodes[2].run)
            await trio.sleep(BEAT_S)
            raise NotAccepted("served by another process")

        monkeypatch.setattr(nodes[0].local, "ask", give_back)
        assert nodes[0].local.is_elsewhere(key) is False
        assert await nodes[0].ask(key) == "proc_c"
        assert nodes[0].local.is_elsewhere(key) is True


async def test_members_with_other_secrets_serve_alone(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = [Node(rows, "proc_a"), Node(rows, "proc_b", cluster="another")]
    async with running(*nodes):
        await trio.sleep(LEASE_S)
        assert [node.members.is_alone for node in nodes] == [True, True]
        assert [await node.ask("acct_1") for node in nodes] == ["proc_a", "proc_b"]
        # Both would do the work of all: the rows let one of them.
        assert Counter(rows.holders.values()).total() == len(SINGLETONS)
        holding = [name for node in nodes for name in SINGLETONS if node.presence.has_claimed(name)]
        assert sorted(holding) == sorted(SINGLETONS)


async def test_each_singleton_has_one_holder_and_moves_with_the_members(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(nodes[0]) as nursery:
        assert all(nodes[0].presence.has_claimed(name) for name in SINGLETONS)
        for node in nodes[1:]:
            await nursery.start(node.run)
        await trio.sleep(3 * BEAT_S)
        holding = [name for node in nodes for name in SINGLETONS if node.presence.has_claimed(name)]
        assert sorted(holding) == sorted(SINGLETONS)
        for name in SINGLETONS:
            [holder] = [node for node in nodes if node.presence.has_claimed(name)]
            assert [node.members.link_for_name(name) is None for node in nodes] == [
                node is holder for node in nodes
            ]


async def test_a_process_without_a_lease_does_nothing_for_all(autojump_clock: MockClock) -> None:
    rows = Rows()
    node = Node(rows, "proc_a")
    async with running(node):
        assert node.presence.has_claimed(slots_of("studio"))
        rows.is_away = True
        await trio.sleep(LEASE_S + 1)
        assert not node.presence.has_claimed(slots_of("studio"))
        rows.is_away = False
        await trio.sleep(BEAT_S)
        assert node.presence.has_claimed(slots_of("studio"))


async def test_members_with_other_providers_serve_alone_until_they_agree(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = [Node(rows, "proc_a"), Node(rows, "proc_b")]
    async with running(*nodes):
        assert not nodes[0].members.is_alone
        nodes[1].providers |= {"new"}
        await trio.sleep(3 * BEAT_S)
        assert [node.members.is_alone for node in nodes] == [True, True]
        assert nodes[1].presence.has_claimed(slots_of("new"))
        nodes[0].providers = nodes[1].providers
        await trio.sleep(3 * BEAT_S)
        assert {node.owner_of("acct_1") for node in nodes} == {nodes[0].owner_of("acct_1")}
        assert [node.members.is_alone for node in nodes] == [False, False]


@pytest.mark.parametrize("frozen_s", [0.0, LEASE_S])
async def test_a_lease_counts_from_the_beginning_of_its_beat(autojump_clock: MockClock, frozen_s: float) -> None:
    presence = Node(Rows(), "proc_a").presence
    presence.begin_beat(())
    # The process is frozen here: the row's lease was renewed before that.
    await trio.sleep(frozen_s)
    presence.end_beat(Beat((), frozenset({"reconciler"})), presence.membership)
    assert presence.has_claimed("reconciler") == (frozen_s == 0)


async def test_a_lost_lease_is_a_warning_at_the_time_and_not_afterwards(
    autojump_clock: MockClock,
) -> None:
    presence = Node(Rows(), "proc_a").presence
    found = Beat((), frozenset())

    def beat() -> None:
        presence.begin_beat(())
        presence.end_beat(found, presence.membership)

    beat()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await trio.sleep(LEASE_S / 2)
            presence.miss_beat()
        beat()
        # A process that was frozen could not log it before.
        await trio.sleep(LEASE_S + 1)
        beat()
    assert [(line["log_level"], line["event"].partition(":")[0], line.get("for_s")) for line in logs] == [
        ("warning", "lease is lost", None),
        ("info", "lease was lost", LEASE_S / 2),
        ("warning", "lease was lost", 1.0),
    ]


async def test_a_reply_that_cannot_be_decoded_ends_only_its_link(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_reply(*_: object) -> object:
        raise RecursionError("nested too deeply")

    nodes = three(Rows())
    async with running(*nodes):
        key = next(key for key in ACCOUNTS if nodes[0].owner_of(key) == nodes[1].name)
        with monkeypatch.context() as patched:
            patched.setattr(Codec, "decode_reply", decode_reply)
            link = nodes[0].members.link_to(place_of(key))
            assert link is not None
            with pytest.raises(LinkLost):
                await link.ask("accounts", key, SignOut("ses_1"), 10.0)
        await trio.sleep(BEAT_S)
        assert nodes[0].owner_of(key) == nodes[1].name
        assert await nodes[0].ask(key) == nodes[1].name


async def test_connections_on_which_no_member_introduces_itself_make_room(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LINKS_MAX", 4)
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes):
        begun = trio.current_time()
        strangers = [await nodes[0].endpoint.dial(rows.leases["proc_b"][0]) for _ in range(3)]

        async def closed(stream: trio.abc.Stream) -> float:
            while await stream.receive_some():
                pass
            return trio.current_time() - begun

        # Beside two members there is room for two strangers.
        assert await closed(strangers[0]) == 0
        assert [await closed(stream) for stream in strangers[1:]] == [HELLO_S, HELLO_S]
        assert {nodes[1].owner_of(key) for key in ACCOUNTS} == {node.name for node in nodes}


async def test_what_one_member_commits_wakes_those_who_wait_at_the_others(autojump_clock: MockClock) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes):
        with nodes[1].changes.watch("task_1") as watch:
            nodes[0].changes.commit([unit_of("acct_1")])
            await wait_all_tasks_blocked()
            assert watch.take() == ({}, False)
            nodes[0].changes.commit([Unit(rows=(NewTaskRow(make_task("acct_1", "task_1", AT)),))])
            await watch.wait(math.inf)
            assert watch.take() == ({"task_1": None}, False)
            # A member that ended may have committed something that it could not send any more.
            nodes[2].kill()
            await watch.wait(math.inf)
            assert watch.take() == ({}, True)
            assert not nodes[1].changes.is_complete()
            await trio.sleep(LEASE_S + BEAT_S + 1)
            assert nodes[1].changes.is_complete()
            watch.take()
            late = Node(rows, "proc_d")
            async with running(late):
                await trio.sleep(JOIN_S)
                assert nodes[1].changes.is_complete()
                watch.take()
                late.changes.commit([Unit(rows=(NewTaskRow(make_task("acct_1", "task_1", AT)),))])
                await watch.wait(math.inf)
                assert watch.take() == ({"task_1": None}, False)


async def test_commits_of_a_member_without_a_link_are_found_when_it_leaves(
    autojump_clock: MockClock,
) -> None:
    rows = Rows()
    nodes = three(rows)
    async with running(*nodes):
        older = Member("proc_old", None, Membership("ready", (), PROTOCOL - 1))
        rows.leases["proc_old"] = older, math.inf
        await trio.sleep(BEAT_S)
        changes = nodes[0].changes
        with changes.watch("acct_1") as watch:
            assert not changes.is_complete()
            del rows.leases["proc_old"]
            nodes[0].presence.beat_soon()
            await wait_all_tasks_blocked()
            assert changes.is_complete()
            assert watch.take() == ({}, True)


def unit_of(account_id: str) -> Unit:
    return Unit(rows=(AccountHead(account_id),))
