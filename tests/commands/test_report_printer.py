"""``holdfast reports``: what it prints, how it follows, and how it ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner, Result

from holdfast.commands.cli import app
from holdfast.commands.reports import ReportPrinter, line_of, read_since
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.reports import write_last_reports
from holdfast.telemetry.reports.report import EVERY_REPORT, Report, ReportFilter

NOW = utc_now()
PARKED = "not restarted; start it on the page of its process"


def store(url: str, *keys: str, **fields: Any) -> None:
    found = [
        Report(
            **{
                "kind": "crash",
                "level": "error",
                "at": NOW,
                "path": "holdfast/accounts",
                "key": key,
                "report_id": f"rep_{key}",
                "number": 1,
                "member_id": "proc_1",
                "host": "db7",
                "worker": 1,
                "reason": "no",
                **fields,
            }
        )
        for key in keys
    ]
    assert write_last_reports(url, found)


def printer(url: str, sleep: Callable[[float], None] = lambda _s: None, **parts: Any) -> ReportPrinter:
    given = {"wanted": EVERY_REPORT, "warn": lambda line: parts["out"].write(f"! {line}\n"), **parts}
    return ReportPrinter(url, sleep=sleep, **given)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["reports", *words], catch_exceptions=False)


@pytest.fixture
def configured_url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    return database_url


def test_the_newest_are_printed_last(configured_url: str) -> None:
    store(configured_url, "acct_1", "acct_2", "acct_3")
    result = run("--limit", "2")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    time = NOW.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert first == f"{time} error    crash       db7/1 holdfast/accounts acct_2: crashed: no; {PARKED}"
    assert "acct_3" in second


def test_what_is_for_debugging_is_printed_only_if_asked_for(configured_url: str) -> None:
    store(configured_url, "acct_1", kind="start", level="debug")
    store(configured_url, "acct_2", kind="restart", level="info")
    assert [line.split()[4] for line in run().output.splitlines()] == ["holdfast/accounts"]
    assert "acct_1" not in run().output
    assert "acct_1" in run("--level", "debug").output


def test_a_report_on_a_provider_names_it(configured_url: str) -> None:
    store(configured_url, "", path="holdfast/workers/provider-watch", provider="quiet")
    assert "db7/1 holdfast/workers/provider-watch provider quiet: crashed" in run().output


def test_json_lines_have_every_field_that_is_set(configured_url: str) -> None:
    store(configured_url, "acct_1")
    found = msgspec.json.decode(run("--format", "json").output)
    assert found["text"] == f"crashed: no; {PARKED}"
    assert (found["key"], found["member_id"], found["number"]) == ("acct_1", "proc_1", 1)


def test_options_choose_reports(configured_url: str) -> None:
    store(configured_url, "acct_1", at=NOW - timedelta(hours=3))
    store(configured_url, "acct_2", kind="restart", level="info", member_id="proc_2", trace_id="2" * 32)
    store(configured_url, "task_3", path="holdfast/tasks", account_id="acct_2", task_id="task_3", provider="studio")

    def keys(*words: str) -> list[str]:
        return [msgspec.json.decode(line)["key"] for line in run("--format", "json", *words).output.splitlines()]

    assert keys() == ["acct_1", "acct_2", "task_3"]
    assert keys("--since", "1h") == ["acct_2", "task_3"]
    assert keys("--kind", "crash") == ["acct_1", "task_3"]
    assert keys("--level", "error", "--path", "holdfast/accounts") == ["acct_1"]
    assert keys("--key", "task_3") == ["task_3"]
    assert keys("--account", "acct_2") == keys("--task", "task_3") == keys("--provider", "studio") == ["task_3"]
    assert keys("--account", "acct_9") == keys("--provider", "other") == []
    assert keys("--member", "proc_2") == keys("--trace", "req_" + "2" * 32) == ["acct_2"]


@pytest.mark.parametrize("words", [("--since", "yesterday"), ("--since", "2026-01-01"), ("--kind", "novel")])
def test_an_invalid_option_is_bad_configuration(configured_url: str, words: tuple[str, str]) -> None:
    assert run(*words).exit_code == 2


def test_a_database_that_cannot_be_reached_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    result = run()
    assert result.exit_code == 1
    assert "cannot be reached" in result.output


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800)])
def test_since_is_a_time_ago_or_a_time(text: str, ago: int) -> None:
    at = read_since(text)
    assert at is not None
    assert abs((utc_now() - at).total_seconds() - ago) < 60
    assert read_since("2026-11-20T18:40:00+00:00") is not None


def test_following_prints_what_is_new_and_wanted(database_url: str) -> None:
    store(database_url, "acct_1")
    out = io.StringIO()
    steps = [
        lambda: store(database_url, "acct_2", "other"),
        lambda: store(database_url, "acct_3", kind="restart"),
        lambda: store(database_url, "acct_4"),
    ]

    def sleep(_s: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    follower = printer(database_url, sleep, out=out, wanted=ReportFilter(kind="crash"))
    position = follower.print_newest(limit=10)
    with pytest.raises(KeyboardInterrupt):
        follower.follow(position)
    assert [line.partition(": ")[0].split()[-1] for line in out.getvalue().splitlines()] == [
        "acct_1",
        "acct_2",
        "other",
        "acct_4",
    ]


def test_following_survives_the_loss_of_its_connection(database_url: str) -> None:
    out = io.StringIO()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            store(database_url, "acct_1")
            with psycopg.connect(database_url, autocommit=True) as other:
                other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid()"
                )
        elif len(slept) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        printer(database_url, sleep, out=out).follow(0)
    begun, ended, report = out.getvalue().splitlines()
    assert begun.startswith("! The database cannot be reached")
    assert ended == "! The database answers again."
    assert "acct_1" in report


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_text_of_a_report_moves_the_cursor_or_reorders_its_line(form: Any) -> None:
    hostile = "a\x1b[2J\x9b31m\u202eb\nc\x7f"
    line = line_of(Report(kind="outage", path="holdfast/x", key=hostile, reason=hostile), form)
    assert line.isprintable()
    if form == "json":
        assert msgspec.json.decode(line)["reason"] == hostile


def test_an_outage_is_a_line_where_it_begins() -> None:
    out = io.StringIO()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        printer("postgresql://127.0.0.1:1/nowhere", sleep, out=out).follow(0)
    [line] = out.getvalue().splitlines()
    assert line.endswith("waiting until it answers.")


def test_nothing_is_followed_without_a_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(tmp_path))
    result = run("--follow")
    assert (result.exit_code, "nothing to follow" in result.output) == (1, True)


def test_a_reader_that_closes_the_pipe_or_interrupts_ends_it_quietly(database_url: str) -> None:
    store(database_url, *(f"acct_{number}" for number in range(50)))
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "holdfast", "reports", "--follow", "--limit", "60"]
    for is_interrupted in (False, True):
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "acct_0" in process.stdout.readline()
            if is_interrupted:
                process.send_signal(signal.SIGINT)
            else:
                process.stdout.close()
                store(database_url, "acct_after")
            try:
                assert process.wait(60) == 0
            finally:
                process.kill()
            assert process.stderr.read() == ""
