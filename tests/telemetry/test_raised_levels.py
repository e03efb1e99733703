"""Levels raised for a time: which lines they take, how many, and that they end."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from holdfast.telemetry.logs import configure_logging, levels, log_event, log_raised, raise_level
from holdfast.telemetry.logs.raised import SUBJECTS_MAX, about

LONG_S = 600.0


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Where the log goes; all that configuring touches is put back afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level
    stream = io.StringIO()
    configure_logging("json", stream=stream)
    yield stream
    levels.clear()
    logging.getLogger("holdfast").setLevel(logging.NOTSET)
    root.handlers, level = before
    root.setLevel(level)
    about.set(())
    structlog.reset_defaults()


def events(out: io.StringIO) -> list[str]:
    return [line["event"] for line in lines(out)]


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    out.seek(0)
    out.truncate()
    return found


def raise_one(subject: str, *, for_s: float = LONG_S, lines_per_s: int = 100) -> None:
    raise_level(subject, "ticket 7", for_s=for_s, lines_per_s=lines_per_s)


def say_all() -> None:
    for name, fields in (
        ("holdfast.a", {}),
        ("holdfast.a.b", {}),
        ("holdfast.ab", {}),
        ("other", {"account_id": "acct_1"}),
        ("other", {"account_id": "acct_12"}),
    ):
        structlog.get_logger(name).debug("a detail", logger=name, **fields)


@pytest.mark.parametrize(
    ("subject", "taken"),
    [
        ("holdfast.a", ["holdfast.a", "holdfast.a.b"]),
        ("holdfast", ["holdfast.a", "holdfast.a.b", "holdfast.ab"]),
        ("acct_1", ["other"]),
        ("tasks", []),
    ],
)
async def test_only_the_lines_of_the_subject_are_written(
    out: io.StringIO, autojump_clock: MockClock, subject: str, taken: list[str]
) -> None:
    logging.getLogger("other").setLevel(logging.DEBUG)
    say_all()
    raise_one(subject)
    say_all()
    structlog.get_logger("holdfast.z").info("an event")
    begun, *details, event = lines(out)
    assert (begun["event"], begun["subject"], begun["for_s"]) == ("level raised", subject, LONG_S)
    assert [line["logger"] for line in details] == taken
    assert {line["raised"] for line in details} == ({subject} if taken else set())
    assert event == {"time": event["time"], "level": "info", "event": "an event"}
    logging.getLogger("other").setLevel(logging.NOTSET)


async def test_what_current_work_is_about_counts_for_all_its_lines(
    out: io.StringIO, autojump_clock: MockClock
) -> None:
    raise_one("/v2/task")
    lines(out)
    for path, taken in (("/v2/task/create", 1), ("/v2/task", 1), ("/v2/tasks", 0)):
        about.set((path,))
        structlog.get_logger("holdfast.x").debug("a detail")
        log_raised("request", (path,), {"status": 200})
        assert events(out) == ["a detail", "request"] * taken, path


async def test_repeated_lines_are_not_folded(out: io.StringIO, autojump_clock: MockClock) -> None:
    raise_one("holdfast.x")
    lines(out)
    for _ in range(20):
        structlog.get_logger("holdfast.x").debug("again")
    assert events(out) == ["again"] * 20


async def test_lines_beyond_the_bound_of_a_second_are_counted(
    out: io.StringIO, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_one("holdfast.x", lines_per_s=3)
    for second in (0.0, 1.0):
        monkeypatch.setattr("holdfast.telemetry.logs.raised.monotonic", partial(float, second))
        for number in range(5):
            structlog.get_logger("holdfast.x").debug("a detail", number=number)
    [shown] = levels.list()
    assert (shown.logged, shown.dropped, shown.lines_per_s) == (6, 4, 3)
    levels.end("holdfast.x")
    *details, ended = lines(out)[1:]
    assert [line["number"] for line in details] == [0, 1, 2] * 2
    assert (ended["event"], ended["logged"], ended["dropped"]) == ("level no longer raised", 6, 4)


async def test_a_raised_level_is_gone_after_its_time(out: io.StringIO, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(levels.end_in_time)
        raise_one("holdfast.x", for_s=60)
        raise_one("holdfast.y", for_s=10)
        await trio.sleep(11)
        assert [each.subject for each in levels.list()] == ["holdfast.x"]
        await trio.sleep(50)
        assert levels.list() == []
        assert not levels.any
        nursery.cancel_scope.cancel()
    assert events(out)[2:] == ["level no longer raised"] * 2
    structlog.get_logger("holdfast.x").debug("a detail")
    assert out.getvalue() == ""


async def test_a_call_below_the_level_is_filtered_as_before_once_none_is_raised(
    out: io.StringIO, autojump_clock: MockClock
) -> None:
    def debug() -> object:
        method: Any = structlog.get_logger("holdfast.x").bind().debug
        return method.__func__

    before, processors = debug(), structlog.get_config()["processors"]
    raise_one("holdfast.x")
    assert debug() is not before
    levels.end("holdfast.x")
    assert debug() is before
    assert structlog.get_config()["processors"] == processors


async def test_a_new_one_replaces_the_first_of_its_subject(out: io.StringIO, autojump_clock: MockClock) -> None:
    for number in range(SUBJECTS_MAX):
        raise_one(f"acct_{number}")
    raise_one("acct_1", lines_per_s=5)
    raise_one("acct_x")
    found = {each.subject: each.lines_per_s for each in levels.list()}
    assert len(found) == SUBJECTS_MAX
    assert "acct_0" not in found
    assert found["acct_1"] == 5


async def test_events_of_a_raised_account_are_written_at_any_level(
    out: io.StringIO, autojump_clock: MockClock
) -> None:
    configure_logging("json", stream=out, level="warning")
    raise_one("acct_1")
    for account_id in ("acct_1", "acct_2"):
        log_event("task created", {"task_id": "task_1", "account_id": account_id})
    [line] = lines(out)
    assert (line["event"], line["account_id"]) == ("task created", "acct_1")
