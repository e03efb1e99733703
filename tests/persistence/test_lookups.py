"""Lookups in groups: who reads for whom, and what a caller that is cancelled or refused leaves to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import pytest
import trio
from sqlalchemy import Connection
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.lookups import CALLERS_MAX, GROUPS_MAX, HANGS_S, SLOW_S, GroupedLookups, Lookup

T = TypeVar("T")


class Groups:
    """A database that notes the keys of each group, and answers a group when the test says so."""

    def __init__(self) -> None:
        self.keys: list[list[str]] = []
        self._answers: list[trio.Event] = []
        self.fault: Exception | None = None
        self.lookups = GroupedLookups(self.read)

    async def read(self, query: Callable[[Connection], T], /) -> T:
        self.keys.append([])
        answer = trio.Event()
        self._answers.append(answer)
        found = query(cast("Connection", self))
        await answer.wait()
        if self.fault is not None:
            raise self.fault
        return found

    def answer(self) -> None:
        """Answer the oldest group."""
        self._answers.pop(0).set()

    async def look_up(self, *keys: str) -> list[str | None]:
        """Look keys up."""
        lookups = [Lookup(find, key) for key in keys]
        await self.lookups.run(*lookups)
        return [lookup.found for lookup in lookups]


def find(rows: Connection, keys: Sequence[str]) -> dict[str, str]:
    """Find every key but those that begin with "no"."""
    cast("Any", rows).keys[-1] += keys
    return {key: key.upper() for key in keys if not key.startswith("no")}


class Callers:
    """Callers that look up one key each, and what they were answered."""

    def __init__(self, groups: Groups, nursery: trio.Nursery) -> None:
        self.answers: dict[str, object] = {}
        self._groups = groups
        self._nursery = nursery

    async def ask(self, key: str) -> trio.CancelScope:
        """Start a caller, and return its scope when it waits."""
        scope = trio.CancelScope()
        self._nursery.start_soon(self._ask, key, scope)
        await wait_all_tasks_blocked()
        return scope

    async def _ask(self, key: str, scope: trio.CancelScope) -> None:
        with scope:
            try:
                self.answers[key] = (await self._groups.look_up(key))[0]
            except DatabaseAway as fault:
                self.answers[key] = str(fault)


async def answer_all(groups: Groups) -> None:
    while groups._answers:
        groups.answer()
        await wait_all_tasks_blocked()


async def test_what_is_asked_for_while_a_group_is_read_is_the_next_group(autojump_clock: MockClock) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        for key in ("a", "b", "none", "c"):
            await callers.ask(key)
        assert groups.keys == [["a"]]
        groups.answer()
        await wait_all_tasks_blocked()
        assert callers.answers == {"a": "A"}
        assert groups.keys == [["a"], ["b", "none", "c"]]
        await callers.ask("d")
        await answer_all(groups)
    assert callers.answers == {"a": "A", "b": "B", "none": None, "c": "C", "d": "D"}
    assert groups.keys[2:] == [["d"]]


async def test_a_key_that_several_callers_ask_for_is_looked_up_once(autojump_clock: MockClock) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        await callers.ask("a")
        for _ in range(3):
            await callers.ask("same")
        await answer_all(groups)
    assert groups.keys == [["a"], ["same"]]


async def test_the_lookups_of_one_caller_are_in_one_group(autojump_clock: MockClock) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await groups.look_up("key", "none", "task") == ["KEY", None, "TASK"]

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await answer_all(groups)
    assert groups.keys == [["key", "none", "task"]]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
async def test_a_caller_that_is_cancelled_leaves_the_others_their_answers(
    autojump_clock: MockClock, gone: str
) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        scopes = {key: await callers.ask(key) for key in ("a", "b", "c")}
        # The first reads its group for others, too; the second is to read the next group, the third is in it.
        scopes[gone].cancel()
        await wait_all_tasks_blocked()
        await answer_all(groups)
        await callers.ask("later")
        await answer_all(groups)
    assert callers.answers == {key: key.upper() for key in ("a", "b", "c", "later") if key != gone or gone == "a"}


@pytest.mark.parametrize("gone", ["b", "c"])
async def test_a_caller_that_is_cancelled_while_its_group_is_read_is_not_missed(
    autojump_clock: MockClock, gone: str
) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        scopes = {key: await callers.ask(key) for key in ("a", "b", "c")}
        groups.answer()
        await wait_all_tasks_blocked()
        assert groups.keys == [["a"], ["b", "c"]]
        scopes[gone].cancel()
        await wait_all_tasks_blocked()
        await callers.ask("later")
        await answer_all(groups)
    # The one that reads is cancelled after that only, so it has its answer.
    assert callers.answers == {key: key.upper() for key in ("a", "b", "c", "later") if key != gone or gone == "b"}


async def test_each_caller_of_a_group_gets_its_fault_and_the_next_group_is_read(autojump_clock: MockClock) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        for key in ("a", "b", "c"):
            await callers.ask(key)
        groups.answer()
        await wait_all_tasks_blocked()
        groups.fault = DatabaseAway("gone")
        await callers.ask("d")
        groups.answer()
        await wait_all_tasks_blocked()
        groups.fault = None
        await answer_all(groups)
    assert callers.answers == {"a": "A", "b": "gone", "c": "gone", "d": "D"}


async def test_a_slow_group_does_not_keep_others_waiting(autojump_clock: MockClock) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        for key in ("slow", "a", "b"):
            await callers.ask(key)
        assert groups.keys == [["slow"]]
        await trio.sleep(2 * HANGS_S)
        # The first of those that wait reads for all, without another that comes; there is no third group.
        assert groups.keys == [["slow"], ["a", "b"]]
        await callers.ask("c")
        await trio.sleep(2 * HANGS_S)
        assert len(groups.keys) == GROUPS_MAX
        await answer_all(groups)
        await callers.ask("d")
        await callers.ask("e")
        assert groups.keys[2:] == [["c"], ["d"]]
        await answer_all(groups)
    assert callers.answers == {"slow": "SLOW", **{key: key.upper() for key in "abcde"}}
    assert groups.lookups._groups == 0


async def test_one_that_comes_while_a_group_is_slow_reads_for_those_that_wait(
    autojump_clock: MockClock,
) -> None:
    groups = Groups()
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        await callers.ask("slow")
        await callers.ask("a")
        assert groups.keys == [["slow"]]
        await trio.sleep(2 * SLOW_S)
        await callers.ask("b")
        assert groups.keys == [["slow"], ["b", "a"]]
        await answer_all(groups)
    assert callers.answers == {"slow": "SLOW", "a": "A", "b": "B"}


async def test_a_caller_cancelled_as_the_next_reader_leaves_that_to_another(
    autojump_clock: MockClock,
) -> None:
    begun, next_caller = trio.Event(), trio.CancelScope()
    answers = list[str | None]()

    async def read(query: Callable[[Connection], T], /) -> T:
        rows = Groups()
        rows.keys.append([])
        found = query(cast("Connection", rows))
        if not begun.is_set():
            await begun.wait()
            # Its client is gone in the moment in which this group ends, before it could run once more.
            next_caller.cancel()
        return found

    lookups = GroupedLookups(read)

    async def ask(key: str, scope: trio.CancelScope) -> None:
        with scope:
            lookup = Lookup(find, key)
            await lookups.run(lookup)
            answers.append(lookup.found)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for key, scope in (("a", trio.CancelScope()), ("b", next_caller), ("c", trio.CancelScope())):
                nursery.start_soon(ask, key, scope)
                await wait_all_tasks_blocked()
            begun.set()
            await wait_all_tasks_blocked()
            # A caller left waiting would wait for ever; none came in the meantime.
            for key in ("d", "e"):
                await ask(key, trio.CancelScope())
    assert next_caller.cancelled_caught
    assert sorted(map(str, answers)) == ["A", "C", "D", "E"]
    assert lookups._groups == 0


async def test_a_burst_is_read_in_groups_of_a_limited_size_in_order(
    autojump_clock: MockClock,
) -> None:
    groups = Groups()
    names = [f"k{number}" for number in range(3 * CALLERS_MAX)]
    async with trio.open_nursery() as nursery:
        callers = Callers(groups, nursery)
        for key in ("first", *names):
            await callers.ask(key)
        await answer_all(groups)
    # A row may have megabytes: no number of callers brings more than so many of them into memory at once.
    assert groups.keys == [
        ["first"],
        *(names[start : start + CALLERS_MAX] for start in range(0, len(names), CALLERS_MAX)),
    ]
    assert callers.answers == {key: key.upper() for key in ("first", *names)}
    assert groups.lookups._groups == 0
