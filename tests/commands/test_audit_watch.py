"""``holdfast audit --watch``: its lines, its passes, and its exit code."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.persistence.tampered_rows import BALANCES, tamper

from holdfast.commands import audit_watch
from holdfast.commands.audit_watch import LINES_S, AuditWatch, ProgressLine
from holdfast.commands.common import until_interrupted
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway


class Terminal(io.StringIO):
    """Output that is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that advances by ``step_s`` with every look at it."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now

    def sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)


def test_each_pass_ends_in_a_line(books_url: str) -> None:
    out, clock = io.StringIO(), Clock(0.001)
    watch = AuditWatch(books_url, ProgressLine(out, clock=clock), clock=clock, sleep=clock.sleep)
    watch.run(passes_max=2)
    lines = out.getvalue().splitlines()
    assert [line.rpartition(", ")[0] for line in lines] == [
        f"pass {number}: 7 accounts, 32 operations, no differences" for number in (1, 2)
    ]
    assert clock.slept == [audit_watch.PAUSE_S]
    assert not watch.has_found


def test_progress_is_shown_in_place_on_a_terminal(books_url: str) -> None:
    out, clock = Terminal(), Clock()
    AuditWatch(books_url, ProgressLine(out, clock=clock), clock=clock).run(passes_max=1)
    drawn = out.getvalue().split("\r\x1b[K")
    assert drawn[1].startswith("pass 1: 0 of 7 accounts, 32 operations, ")
    assert drawn[-2].startswith("pass 1: 7 of 7 accounts, 32 operations, ")
    assert drawn[-2].endswith("/s, 0 s left")
    assert drawn[-1].startswith("pass 1: 7 accounts, 32 operations, no differences, ")


def test_progress_is_lines_now_and_then_elsewhere(books_url: str) -> None:
    out, clock = io.StringIO(), Clock()
    AuditWatch(books_url, ProgressLine(out, clock=clock), clock=clock).run(passes_max=1)
    lines = [line for line in out.getvalue().splitlines() if " of 7 accounts" in line]
    assert 2 <= len(lines) <= clock.now / LINES_S
    assert "\r" not in out.getvalue()


def test_a_difference_is_shown_once_and_when_it_is_gone(books_url: str) -> None:
    out, clock = io.StringIO(), Clock(0.001)
    watch = AuditWatch(books_url, ProgressLine(out, clock=clock), clock=clock, sleep=clock.sleep)
    tamper(books_url, "update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'")
    watch.run(passes_max=2)
    tamper(books_url, "update accounts set balance_micro = balance_micro - 1 where id = 'acct_bob'")
    watch.run(passes_max=3)
    lines = out.getvalue().splitlines()
    [failed] = [line for line in lines if line.startswith("FAILED") and BALANCES in line]
    assert failed.startswith(
        "FAILED account acct_bob: its balance is 5.000001 with 0.00 held, its postings sum to 5.00"
    )
    [gone] = [line for line in lines if line.startswith("ok") and BALANCES in line]
    assert gone == f"ok     account acct_bob differs no longer ({BALANCES})"
    assert lines[-1].startswith("pass 3: 7 accounts, 32 operations, no differences")
    assert watch.has_found


def test_an_outage_of_the_database_is_waited_out(books_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, clock = io.StringIO(), Clock(0.001)
    tries = 0

    def connect(url: str) -> object:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise DatabaseAway("it restarts")
        return connected(url)

    monkeypatch.setattr(audit_watch, "connected", connect)
    AuditWatch(books_url, ProgressLine(out, clock=clock), clock=clock, sleep=clock.sleep).run(passes_max=1)
    assert out.getvalue().splitlines()[0] == "the database cannot be reached: it restarts; trying again"
    assert clock.slept == [audit_watch.RETRY_S]


@pytest.mark.parametrize(("differs", "code"), [(False, 0), (True, 1)])
def test_an_interrupt_ends_the_watch_with_the_verdict(
    books_url: str, tmp_path: Path, differs: bool, code: int
) -> None:
    if differs:
        tamper(books_url, "update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'")
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": books_url, "HOLDFAST_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "holdfast", "audit", "--watch"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for line in watching.stdout:
            if line.startswith("pass 1: "):
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == code


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_is_raised_in_a_destructor_is_repeated() -> None:
    class Dropped:
        def __del__(self) -> None:
            done.append("interrupted")
            signal.raise_signal(signal.SIGINT)
            done.append("not raised")

    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with until_interrupted():
        Dropped()
        time.sleep(60)
        done.append("not repeated")
    assert done == ["interrupted"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_fault_that_an_interrupt_causes_is_its_end() -> None:
    with until_interrupted():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise AssertionError("closed by halves")


def test_a_fault_without_an_interrupt_is_raised() -> None:
    with pytest.raises(AssertionError, match="closed by halves"), until_interrupted():
        raise AssertionError("closed by halves")
