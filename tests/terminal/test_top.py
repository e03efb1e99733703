"""``holdfast top``: the whole service in one look, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from rich.console import Console
from tests.journeys.service_process import Service, new_folder, running_service

from holdfast.http.endpoints.operators.money.ledger import LedgerHealth
from holdfast.http.endpoints.operators.records.samples import ProcessSamples
from holdfast.http.endpoints.operators.supervision.processes import ProcessBody, Tree
from holdfast.metrics.samples import Sample
from holdfast.supervision.control.messages import GroupDescription, ProcessDescription, SampleList
from holdfast.supervision.status import ChildState, ChildStatus, Work
from holdfast.terminal.service_client import ServiceClient, ServiceFault
from holdfast.terminal.top import look, look_again, render

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW = "2026-11-20T12:00:00.000Z"


def child(name: str, *children: ChildStatus, state: ChildState = "running", **fields: Any) -> ChildStatus:
    return ChildStatus(
        child_id=name,
        state=state,
        restart="permanent",
        incarnation=1,
        restarts_in_window=fields.pop("restarts", 0),
        since=NOW,
        children=children,
        **fields,
    )


def group(name: str, **fields: Any) -> GroupDescription:
    given: dict[str, Any] = {
        "paused_by": None,
        "pause_reason": None,
        "states": {},
        "messages": 0,
        "oldest_message_age_s": None,
    }
    return GroupDescription(name=name, **{**given, **fields})


def member(number: int, outbox: ChildStatus, *groups: GroupDescription) -> ProcessBody:
    process = ProcessDescription(
        member_id=f"proc_{number}",
        host="saturn",
        pid=4000 + number,
        worker=number,
        version="1",
        started_at=NOW,
        uptime_s=7200.0,
        state="ready",
        database_open=True,
        tree=child("holdfast", child("workers", outbox)),
        groups=list(groups),
        dead_letters={},
        providers={},
    )
    return ProcessBody(
        member_id=f"proc_{number}", is_this=number == 0, state="ready", unreachable_for_s=None, process=process
    )


SAMPLE = Sample(
    at=AT,
    interval_s=5.0,
    responses_2xx_per_s=1234.5,
    responses_3xx_per_s=0.0,
    responses_4xx_per_s=0.0,
    responses_5xx_per_s=2.5,
    creates_per_s=99.9,
    settled_per_s=0.0,
    commits_per_s=200.0,
    units_per_commit=4.0,
    commit_p50_s=0.001,
    commit_p99_s=0.0125,
    mailbox_wait_p50_s=None,
    mailbox_wait_p99_s=None,
    loop_lag_max_s=0.003,
    journal_queue_units=7,
    mailbox_messages=3,
    oldest_message_s=0.02,
    connections_open=5,
    actors_active=42,
    cpu_s=2.5,
    memory_bytes=100 * 2**20,
)
HEALTH = LedgerHealth(
    verified_up_to=NOW,
    age_s=12.0,
    passes=3,
    newest_operation_id=None,
    newest_operation_at=None,
    written_at=NOW,
    current_pass=None,
    differences=1,
    newest_differences=[],
)


class FakeService:
    """Answers by path; an answer that is a fault is raised."""

    url = "http://saturn:8000"

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def get(self, path: str, reply: type) -> object:
        found = self.answers[path.removeprefix("/ops/api/").partition("?")[0]]
        if isinstance(found, ServiceFault):
            raise found
        assert isinstance(found, reply)
        return found


def service(*members: ProcessBody, ledger: object = HEALTH) -> ServiceClient:
    samples = ProcessSamples([SampleList("proc_0", [SAMPLE])], [])
    return cast(ServiceClient, FakeService(tree=Tree(list(members)), samples=samples, ledger=ledger))


def shown(found: Any, width: int = 220) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(found)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_rates_and_the_tree_of_all_processes_are_shown() -> None:
    failing = child(
        "outbox", state="restarting", restarts=2, last_fault="ValueError: no", work=Work(mailbox_depth=5)
    )
    one = member(0, child("outbox", work=Work(mailbox_depth=1)), group("accounts", states={"active": 2}))
    other = member(1, failing, group("accounts", states={"active": 1, "quarantined": 1}, messages=4))
    lines = shown(render(look(service(one, other), now=lambda: AT)))
    assert lines[0] == ("http://saturn:8000  12:00:00 UTC  processes: 2  ledger: verified 12 s ago, 1 difference")
    [first] = [line for line in lines if line.startswith("saturn 4000 worker 0")]
    assert first.split()[4:] == [
        "ready", "2", "h", "1,234", "0", "2.5", "99.9", "0", "50.0", "100", "200", "4.0", "12.5", "7", "3.0", "42",
        "3", "20", "ms",
    ]  # fmt: skip
    [outbox] = [line for line in lines if line.strip().startswith("outbox")]
    assert outbox.split() == ["outbox", "1", "running,", "1", "restarting", "2", "6", "ValueError:", "no"]
    [accounts] = [line for line in lines if line.startswith("accounts")]
    assert accounts.split() == ["accounts", "3", "active,", "1", "quarantined", "4"]


def test_a_narrow_terminal_has_every_column_whole() -> None:
    found = look(service(member(0, child("outbox"), group("accounts"))), now=lambda: AT)
    lines = shown(render(found), width=80)
    assert not any("…" in line for line in lines)
    titles = {word for line in lines if line.startswith("process ") for word in line.split()}
    assert {"state", "2xx/s", "creates/s", "MB", "commits/s", "queue", "messages", "oldest"} <= titles
    assert sum(line.startswith("saturn 4000 worker 0") for line in lines) == 2


def test_a_low_terminal_shows_only_children_with_trouble() -> None:
    failing = child("outbox", state="restarting", restarts=2, last_fault="ValueError: no")
    found = look(service(member(0, child("outbox")), member(1, failing)), now=lambda: AT)
    lines = shown(render(found, lines_max=12), width=200)
    [at] = [number for number, line in enumerate(lines) if line.startswith("child ")]
    assert [line.split()[0] for line in lines[at + 1 :]] == ["(2", "outbox"]
    assert len(shown(render(found, lines_max=40), width=200)) == len(lines) + 1


def test_a_process_that_does_not_answer_is_shown_as_unreachable() -> None:
    away = ProcessBody(member_id="proc_9", is_this=False, state="ready", unreachable_for_s=30.0, process=None)
    lines = shown(render(look(service(member(0, child("outbox")), away), now=lambda: AT)))
    assert any(line.startswith("proc_9") and "unreachable 30 s" in line for line in lines)


def test_without_the_database_the_tree_is_shown_all_the_same() -> None:
    away = ServiceFault("The database is away.", "database_unavailable")
    lines = shown(render(look(service(member(0, child("outbox")), ledger=away), now=lambda: AT)))
    assert lines[0].endswith("ledger: unknown, the database is away")
    assert any(line.strip().startswith("outbox") for line in lines)


def test_a_service_that_cannot_be_reached_is_tried_again() -> None:
    gone = cast(ServiceClient, FakeService(tree=ServiceFault("The service cannot be reached.")))
    assert shown(look_again(gone, lines_max=50)) == ["The service cannot be reached.", "Trying again; q quits."]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with running_service(new_folder()) as found:
        yield found


def test_a_pipe_gets_one_look(running: Service) -> None:
    command = [sys.executable, "-m", "holdfast", "top"]
    done = subprocess.run(command, env=running.environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "checker" in done.stdout
    assert "processes: 1" in done.stdout


def test_a_terminal_is_drawn_until_q_is_pressed(running: Service) -> None:
    ours, theirs = pty.openpty()
    environment = {**running.environment, "TERM": "xterm", "COLUMNS": "200", "LINES": "60"}
    command = [sys.executable, "-m", "holdfast", "top", "--every", "0.5"]
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        seen = b""
        # Until the second look.
        while seen.count(b"processes: 1") < 2:
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, seen
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        while select.select([ours], [], [], 0.2)[0]:
            try:
                if not os.read(ours, 65536):
                    break
            except OSError:
                break
        assert top.wait(30) == 0
    os.close(ours)


def test_a_service_that_is_not_there_is_one_line(running: Service) -> None:
    command = [sys.executable, "-m", "holdfast", "top", "--once", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, env=running.environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The service at http://127.0.0.1:9 cannot be reached: ")
