"""The newest lines in memory: none folded, bounded by bytes and age, found by an id, with the time of the cut."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import trio

from holdfast.telemetry import logs
from holdfast.telemetry.logs import configure_logging, find_lines, log_event
from holdfast.telemetry.logs.ring import AT_ONCE, SLOT_BYTES, LineRing, newest_of
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

ALWAYS = {"since": "", "until": "9"}


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield io.StringIO()
    logs._lines.keep(0, 0)
    root.handlers, level = before
    root.setLevel(level)
    structlog.reset_defaults()


def line(number: int, text: str = "") -> str:
    return f'{{"time":"2099-11-22T03:00:{number // 1000:02}.{number % 1000:03}Z","event":"{text}-{number}"}}'


async def found(about: str, limit: int = 100) -> list[dict[str, Any]]:
    return [json.loads(each) for each in (await find_lines([about], **ALWAYS, limit=limit)).lines]


async def test_lines_are_kept_as_they_were_before_they_were_folded(out: io.StringIO) -> None:
    configure_logging("console", stream=out, memory_bytes=1_000_000)
    for number in range(20):
        structlog.get_logger("x").info("again", account_id="acct_1", count=number)
    for number in range(logs.EVENTS_MAX + 5):
        log_event("task submitted", {"task_id": f"task_{number}", "account_id": "acct_2"})
    kept = await found("acct_1")
    assert [each["count"] for each in kept] == [*reversed(range(20))]
    assert len(out.getvalue().splitlines()) < 20 + logs.EVENTS_MAX + 5
    assert len(await found("acct_2", limit=5_000)) == logs.EVENTS_MAX + 5
    assert [each["event"] for each in await found(f"task_{logs.EVENTS_MAX + 4}")] == ["task submitted"]


async def test_every_refusal_is_kept_with_who_sent_it_and_none_displaces_a_line(out: io.StringIO) -> None:
    configure_logging("json", stream=out, memory_bytes=100_000)
    structlog.get_logger("x").info("it happened", account_id="acct_1")
    refused = RefusedRequests(Conditions(Reporter(), lambda: 0.0))
    for number in range(1_000):
        refused.count(
            status=402,
            code="insufficient_credit",
            request_id=f"req_{number:032x}",
            origin="192.0.2.1",
            route="POST /v2/task/create",
            key_prefix="hk_test_abcd",
            caller="acct_9",
        )
    assert len(out.getvalue().splitlines()) == 2
    [newest] = await found(f"req_{999:032x}")
    assert {name: newest[name] for name in ("code", "caller", "key_prefix", "origin")} == {
        "code": "insufficient_credit",
        "caller": "acct_9",
        "key_prefix": "hk_test_abcd",
        "origin": "192.0.2.1",
    }
    assert [each["event"] for each in await found("acct_1")] == ["it happened"]
    assert (await find_lines(["acct_9"], **ALWAYS, limit=5)).is_cut


async def test_no_secret_is_kept(out: io.StringIO) -> None:
    configure_logging("json", stream=out, memory_bytes=100_000)
    structlog.get_logger("x").info("it happened", password="hunter2", text="Bearer abcdefghijkl")
    [kept] = (await find_lines([""], **ALWAYS, limit=5)).lines
    assert "hunter2" not in kept
    assert "abcdefghijkl" not in kept


async def test_bytes_are_bounded_and_the_cut_is_known() -> None:
    one = sys.getsizeof(line(0)) + SLOT_BYTES
    ring = LineRing(10 * one, 600)
    for number in range(9):
        ring.append(line(number))
    whole = await ring.find([""], **ALWAYS, limit=100)
    assert (len(whole.lines), whole.is_cut) == (9, False)
    for number in range(9, 100):
        ring.append(line(number))
        assert ring.bytes <= 10 * one
    cut = await ring.find([""], **ALWAYS, limit=100)
    assert cut.lines == [line(number) for number in reversed(range(91, 100))]
    assert (cut.is_cut, cut.complete_from) == (True, "2099-11-22T03:00:00.090Z")


async def test_old_lines_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = LineRing(1_000_000, 600)
    ring.append('{"time":"2026-11-22T03:00:00.000Z","event":"old"}')
    ring.append('{"time":"2099-11-22T03:00:00.000Z","event":"new"}')
    left = await ring.find([""], **ALWAYS, limit=100)
    assert [json.loads(each)["event"] for each in left.lines] == ["new"]
    assert left.is_cut


async def test_lines_of_a_time_and_the_newest_of_too_many() -> None:
    ring = LineRing(10_000_000, 600)
    for number in range(6 * AT_ONCE):
        ring.append(line(number, "odd" if number % 2 else "even"))
    few = await ring.find(["odd"], **ALWAYS, limit=3)
    assert [json.loads(each)["event"] for each in few.lines] == ["odd-2999", "odd-2997", "odd-2995"]
    assert (few.is_cut, few.complete_from) == (True, "2099-11-22T03:00:02.995Z")
    part = await ring.find(
        ["odd", "even"], since="2099-11-22T03:00:00.010Z", until="2099-11-22T03:00:00.020Z", limit=100
    )
    assert (len(part.lines), part.is_cut) == (10, False)
    both = newest_of(few, part, 5)
    assert (len(both.lines), both.is_cut) == (5, True)


async def test_a_repeated_search_finds_what_a_first_one_would() -> None:
    one = sys.getsizeof(line(0, "even")) + SLOT_BYTES
    ring = LineRing(300 * one, 600)
    ours = ["even-1", "odd-2"]
    for number in range(1_000):
        ring.append(line(number, "odd" if number % 2 else "even"))
        if number % 7 == 0:
            for since, limit in (("", 1_000), ("2099-11-22T03:00:00.300Z", 1_000), ("", 20)):
                known = await ring.find(ours, since=since, until="9", limit=limit)
                ring._searches.clear()
                assert known == await ring.find(ours, since=since, until="9", limit=limit)


async def test_a_repeated_search_looks_only_at_new_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = LineRing(10_000_000, 600)
    for number in range(20 * AT_ONCE):
        ring.append(line(number))
    steps = []
    checkpoint = trio.lowlevel.checkpoint

    async def step() -> None:
        steps.append(1)
        await checkpoint()

    monkeypatch.setattr(trio.lowlevel, "checkpoint", step)
    await ring.find(["-7777"], **ALWAYS, limit=100)
    assert len(steps) == 20
    for number in range(20 * AT_ONCE, 22 * AT_ONCE):
        ring.append(line(number))
    await ring.find(["-7777"], **ALWAYS, limit=100)
    assert len(steps) == 22
