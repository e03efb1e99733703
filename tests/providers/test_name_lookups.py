"""Looking up names under a resolver that hangs. Threads are replaced: no name is ever looked up here."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import outcome
import pytest
import trio
import trio.testing

from holdfast.providers.outbound.connection_pool import TransportFault
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import (
    DEAD_FIRST_S,
    LATE_ANSWER_S,
    PER_REQUESTER_MAX_COUNT,
    REMEMBERED_MAX_COUNT,
    TIMEOUT_S,
    NameLookups,
)

ADDRESS = "93.184.216.34"
FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ADDRESS, 443))]


@dataclass
class Threads:
    """Threads that hang until a test ends them; names without "dead" in them are answered at once."""

    hanging: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    answer: Any = field(default_factory=lambda: list(FOUND))

    def start(self, work: Callable[[], Any], deliver: Callable[[Any], object]) -> None:
        assert isinstance(work, partial)
        host = work.args[0].host.decode()
        self.started.append(host)
        if "dead" in host:
            assert host not in self.hanging, "one name is looked up twice at once"
            self.hanging[host] = deliver
        else:
            deliver(outcome.Value(self.answer))

    def end(self, host: str, found: Any) -> None:
        """The resolver comes back at last."""
        self.hanging.pop(host)(outcome.Value(found))


@pytest.fixture
def threads() -> Threads:
    return Threads()


def names_of(threads: Threads, **options: Any) -> NameLookups:
    return NameLookups("test", start_thread=threads.start, **options)


async def fails(names: NameLookups, host: str, match: str, requester: str = "acct_1") -> float:
    """A look-up that fails; how long it took, in seconds."""
    begun = trio.current_time()
    with pytest.raises(socket.gaierror, match=match):
        await names.addresses(host, 443, requester=requester)
    return trio.current_time() - begun


async def test_a_name_that_hangs_is_refused_at_once_for_a_growing_time(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads, dead_max_s=4 * DEAD_FIRST_S)
    for pause_s in (DEAD_FIRST_S, 2 * DEAD_FIRST_S, 4 * DEAD_FIRST_S, 4 * DEAD_FIRST_S):
        assert await fails(names, "dead.test", "in time") == pytest.approx(TIMEOUT_S)
        assert await fails(names, "dead.test", "failed to resolve recently") == 0
        await trio.sleep(pause_s - 0.1)
        assert await fails(names, "dead.test", "failed to resolve recently") == 0
        await trio.sleep(0.2)
    # All of these waited for one thread, the first, which still hangs.
    assert threads.started == ["dead.test"]


async def test_a_late_answer_serves_the_next_attempt_and_clears_the_name(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    await fails(names, "dead.test", "in time")
    threads.end("dead.test", FOUND)
    await trio.sleep(1)
    assert await names.addresses("dead.test", 443) == [ADDRESS]
    assert threads.started == ["dead.test"]
    await trio.sleep(LATE_ANSWER_S)
    assert await fails(names, "dead.test", "in time") == pytest.approx(TIMEOUT_S)
    assert await fails(names, "dead.test", "failed to resolve recently") == 0
    await trio.sleep(DEAD_FIRST_S)
    assert await fails(names, "dead.test", "in time") == pytest.approx(TIMEOUT_S)


async def test_200_dead_names_of_one_account_leave_threads_to_every_other(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)

    async def attack(number: int) -> None:
        with pytest.raises(socket.gaierror):
            await names.addresses(f"{number}.dead.test", 443, requester="acct_attacker")

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(attack, number)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        assert await names.addresses("good.test", 443, requester="acct_other") == [ADDRESS]
        assert trio.current_time() == begun
    assert len(threads.hanging) == PER_REQUESTER_MAX_COUNT
    assert names.limiter.borrowed_tokens == PER_REQUESTER_MAX_COUNT
    # Waiting for a thread says nothing against a name.
    assert await fails(names, "200.dead.test", "too many", "acct_attacker") == pytest.approx(TIMEOUT_S)
    for host in list(threads.hanging):
        threads.end(host, socket.gaierror(socket.EAI_NONAME, "no such name"))
    await trio.testing.wait_all_tasks_blocked()
    assert names.limiter.borrowed_tokens == 0
    assert await fails(names, "200.dead.test", "in time", "acct_attacker") == pytest.approx(TIMEOUT_S)


async def test_threads_are_limited_in_all_and_dealt_in_turn(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads, threads_max_count=3, per_requester_max_count=2)
    found: list[str] = []

    async def look_up(host: str, requester: str) -> None:
        try:
            await names.addresses(host, 443, requester=requester)
        except socket.gaierror as fault:
            found.append(f"{host}: {fault.strerror}")
        else:
            found.append(f"{host}: answered")

    async with trio.open_nursery() as nursery:
        for host, requester in (("1.dead", "a"), ("2.dead", "a"), ("3.dead", "a"), ("1.dead.b", "b")):
            nursery.start_soon(look_up, host, requester)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look_up, "good", "c")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(threads.started) == ["1.dead", "1.dead.b", "2.dead"]
        threads.end("1.dead", FOUND)
    # The thread that came free went to the account that waited for one, not to the third name of the first account.
    assert "good: answered" in found
    assert "1.dead: answered" in found
    assert len(threads.hanging) <= 3


async def test_callers_of_one_name_share_a_look_up_even_when_the_first_has_gone(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    answers: list[Any] = []

    async def look_up() -> None:
        answers.append(await names.addresses("dead.test", 443))

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await names.addresses("dead.test", 443)
        for _ in range(20):
            nursery.start_soon(look_up)
        await trio.testing.wait_all_tasks_blocked()
        threads.end("dead.test", FOUND)
    assert answers == [[ADDRESS]] * 20
    assert threads.started == ["dead.test"]


async def test_a_fault_of_this_machine_is_not_remembered_against_the_name(
    threads: Threads, mock_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    for error, match in (
        (socket.gaierror(socket.EAI_SYSTEM, "no files"), "no files"),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), "no such name"),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), "failed to resolve recently"),
    ):
        threads.answer = error
        await fails(names, "good.test", match)
    assert len(threads.started) == 2


async def test_what_is_remembered_is_bounded_and_addresses_need_no_thread(
    threads: Threads, mock_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    threads.answer = socket.gaierror(socket.EAI_NONAME, "no such name")
    for number in range(REMEMBERED_MAX_COUNT + 1):
        await fails(names, f"{number}.test", "no such name")
    await fails(names, "1.test", "failed to resolve recently")
    await fails(names, "0.test", "no such name")
    threads.started.clear()
    assert await names.addresses("127.0.0.1", 443) == ["127.0.0.1"]
    assert await names.addresses("::1", 443) == ["::1"]
    assert threads.started == []


async def test_a_guarded_request_waits_for_its_requesters_share_alone(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    dialed: list[str] = []

    async def dial(address: str, _port: int) -> trio.SocketStream:
        dialed.append(address)
        raise OSError

    client = GuardedClient(resolve=names.addresses, dial=dial)

    async def post(host: str, requester: str) -> None:
        with pytest.raises(TransportFault):
            await client.open("POST", f"https://{host}/", requester=requester)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(post, f"{number}.dead.test", "acct_attacker")
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await post("good.test", "acct_other")
        assert (dialed, trio.current_time()) == ([ADDRESS], begun)
    assert len(threads.hanging) == PER_REQUESTER_MAX_COUNT
    client.close()


async def test_trio_itself_looks_up_names_through_it_once_it_is_set(
    threads: Threads, autojump_clock: trio.testing.MockClock
) -> None:
    names = names_of(threads)
    trio.socket.set_custom_hostname_resolver(names)
    assert await trio.socket.getaddrinfo("good.test", 443) == FOUND
    with pytest.raises(socket.gaierror, match="in time"):
        await trio.open_tcp_stream("dead.test", 443)
    default = trio.to_thread.current_default_thread_limiter()
    assert default.borrowed_tokens == 0
    assert threads.started == ["good.test", "dead.test"]
