"""Reports reach the log, the ring and the listeners, without secrets and without harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import FilteringBoundLogger

from holdfast.ledger.values import utc_now
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.causes import describe, leaf_of
from holdfast.telemetry.reports.report import REASON_SHOWN_CHARS, Report, in_words
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.telemetry.scrubbing import scrub

HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
KEY_TAIL = "3kTMd9RrT2cQ8vXbLw0sYfHj5nPzGaUe1x7B0Q"
TOKEN = "Zk3v9QmX0aB-7yT_rLw2sHf5nPzGaUe1x7CdKjM4o"

SECRETS = {
    "bearer token": (f"Authorization: Bearer {TOKEN}", TOKEN),
    "basic authorization": ("authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
    "lone bearer": ("got bearer abc.def refused", "abc.def"),
    "api key": (f"key hk_live_{KEY_TAIL} is revoked", KEY_TAIL),
    "test api key": (f"'hk_test_{KEY_TAIL}'", KEY_TAIL),
    "session token": (f"no session hst_{TOKEN}", TOKEN),
    "webhook secret": ("whsec_MfKQ9r8GKYqrTwjU", "MfKQ9r8GKYqrTwjU"),
    "card key": ("stripe said: No such key sk_test_51Habcdef", "51Habcdef"),
    "client secret": ("pi_3Nx_secret_q8ZrT", "q8ZrT"),
    "password parameter": ("connect failed: host=db password=hunter2 user=x", "hunter2"),
    "password in a dict": ("{'user': 'x', 'password': 'hunter two'}", "hunter two"),
    "password in json": ('{"password": "hun\\"ter2", "a": 1}', "ter2"),
    "one-time code": ("debug_otp=493021", "493021"),
    "dsn": ("postgresql+psycopg://holdfast:hunter2@db:5432/holdfast is away", "hunter2"),
    "dsn with odd password": ("postgres://u:hun@ter/2@db/x", "ter/2"),
    "e-mail": ("no account for ada.lovelace+test@example.org here", "lovelace"),
    "e-mail key": ("email:ada@example.org", "ada@"),
    "long hex": (f"hash {HEX}", HEX),
    "base64": ("secretless run q83vEjRWeJq83vASNFZ4mrze8BI0VniavN7wEjRWeJo= end", "q83vEjRWeJ"),
    "signature header": (f"bad header t=1700000000,v1={HEX},v1={HEX}", "v1=9f"),
    "short signature": ("t=1700000000,v1=abcdef", "abcdef"),
    "standard webhooks signature": ("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=", "K5oZ"),
    "statement parameters": ("(psycopg.Error) x\n[SQL: insert]\n[parameters: ('Ada', 17)]\n(Background on", "Ada"),
    "refused row": ("DETAIL:  Failing row contains (acct, Ada, 17).", "Ada"),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS.keys())
def test_planted_secrets_are_scrubbed(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in scrub(text)
    assert secret not in scrub(f"prefix,{text}\nsuffix")
    assert scrub(scrub(text)) == scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "task_0199f3c2aa017000800000000000beef holds 9.76 of acct_0199f3c2aa017000800000000000cafe",
        "catalog cat_2a4c6b8d0e1f3a5c in force",
        "holdfast/workers/hosting did not stop within 5 s",
        "tokens_in=12, risk_status: none; ask_timeout 10",
        "SupervisorDirectoryActorMailbox.handle_message_or_refuse in holdfast_supervision_reports",
        "connection to server at 127.0.0.1, port 5432 failed: Connection refused",
        "password authentication failed for user holdfast",
        "2026-11-20T18:40:00.123Z",
        "accounts/acct_0199f3c2aa017000800000000000cafe",
        "proc_0199f3c2aa017000800000000000feed/tasks/task_0199f3c2aa017000800000000000beef/timeline",
        "t=3, n=4",
    ],
)
def test_useful_text_is_not_scrubbed(text: str) -> None:
    assert scrub(text) == text


@given(st.text(alphabet="abcXYZ019+/_-=. @:,'\"t\n", max_size=300))
def test_scrubbing_never_fails_and_is_idempotent(text: str) -> None:
    once = scrub(text)
    assert scrub(once) == once


def test_scrubbing_truncates_without_leaving_part_of_a_secret() -> None:
    assert len(scrub("word " * 10_000)) == 2_000
    text = "w " * 3_990 + TOKEN * 20
    assert TOKEN[:12] not in scrub(text, limit_chars=2_000)
    assert scrub("x" * 1_000_000) == ""


def report(**fields: Any) -> Report:
    fields.setdefault("kind", "crash")
    return Report(at=utc_now(), path="top/a", **fields)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_a_report_is_one_log_line_with_a_level_by_kind(logged: list[Any]) -> None:
    reporter = Reporter()
    reporter.report(
        report(reason_type="ValueError", reason="a\nb", location="m:3", decision="backoff", delay_s=0.5)
    )
    reporter.report(report(kind="restart", key="acct_1"))
    reporter.report(report(kind="escalation"))
    reporter.report(report(kind="drain", context="killed"))
    reporter.report(report(level="warning"))
    shown = [{name: value for name, value in line.items() if value is not None} for line in logged]
    assert shown[0] == {
        "event": "crash",
        "log_level": "error",
        "path": "top/a",
        "text": "crashed: ValueError: a b (m:3); restarts in 0.5 s; look at what was deployed last",
    }
    assert shown[1] == {
        "event": "restart",
        "log_level": "info",
        "path": "top/a",
        "key": "acct_1",
        "text": "started again",
    }
    assert [entry["log_level"] for entry in logged[2:]] == ["critical", "error", "warning"]


def test_reports_are_counted_by_kind_and_level(logged: list[Any]) -> None:
    def count() -> float:
        return float(metrics.REPORTS.labels("quarantine", "error")._value.get())

    before = count()
    Reporter().report(Report(kind="quarantine", at=utc_now(), path="holdfast/accounts"))
    assert count() == before + 1


def test_a_long_reason_is_cut_in_words_and_kept_in_the_report(logged: list[Any]) -> None:
    reporter = Reporter()
    reporter.report(report(reason="word " * 200, decision="backoff", delay_s=0.5))
    cut = ("word " * 200)[: REASON_SHOWN_CHARS - 1]
    [kept] = reporter.recent()
    assert logged[0]["text"] == in_words(kept)
    assert in_words(kept).startswith(f"crashed: {cut}…; restarts in 0.5 s")
    assert kept.reason == "word " * 200


def test_the_start_of_a_process_names_it_as_links_do(logged: list[Any]) -> None:
    reporter = Reporter(member_id="proc_1", worker=2)
    reporter.report(Report(kind="start", path="holdfast"))
    reporter.report(Report(kind="start", path="holdfast/http"))
    assert [line["member"] for line in logged] == ["proc_1", None]


def test_a_report_says_who_emitted_it_and_in_which_order(logged: list[Any]) -> None:
    reporter = Reporter(member_id="proc_1", host="db7", worker=2)
    reporter.report(report(key="acct_1"))
    reporter.report(report(key="task_1"))
    second, first = reporter.recent()
    assert (first.number, first.member_id, first.host, first.worker) == (1, "proc_1", "db7", 2)
    assert second.number == 2
    assert first.report_id != second.report_id
    assert (first.account_id, first.task_id) == ("acct_1", None)
    assert (second.account_id, second.task_id) == (None, "task_1")


def test_reason_and_key_of_a_report_are_scrubbed(logged: list[Any]) -> None:
    reporter = Reporter()
    reporter.report(report(reason=f"Bearer {TOKEN}", key="email:ada@example.org"))
    (stored,) = reporter.recent()
    assert (stored.reason, stored.key) == ("Bearer ***", "email:***")
    assert TOKEN not in str(logged)
    assert "ada@" not in str(logged)


def test_the_ring_keeps_the_newest(logged: list[Any]) -> None:
    reporter = Reporter(ring_records=3)
    for n in range(5):
        reporter.report(report(incarnation=n))
    assert [stored.incarnation for stored in reporter.recent()] == [4, 3, 2]
    assert [stored.incarnation for stored in reporter.recent(1)] == [4]


def test_a_failing_listener_or_log_does_not_affect_others() -> None:
    class BrokenLog:
        def error(self, event: str, **fields: object) -> None:
            raise BrokenPipeError

    reporter = Reporter(logger=cast(FilteringBoundLogger, BrokenLog()))
    received: list[Report] = []

    def broken(_report: Report) -> None:
        raise ZeroDivisionError

    reporter.listen(broken)
    reporter.listen(received.append)
    reporter.report(report())
    assert len(received) == 1


def test_a_listener_that_fails_is_logged() -> None:
    def broken(_report: Report) -> None:
        raise ZeroDivisionError

    with structlog.testing.capture_logs() as entries:
        reporter = Reporter()
        reporter.listen(broken)
        reporter.report(report())
    assert [entry["event"] for entry in entries][-1] == "a report could not be passed on"


def test_an_exception_is_described_by_its_leaf_with_arguments_scrubbed() -> None:
    try:
        raise ValueError(f"bad token={TOKEN}", {"password": "hunter2"})
    except ValueError as exc:
        cause = describe(ExceptionGroup("outer", [ExceptionGroup("inner", [exc])]))
    assert cause.reason_type == "ValueError"
    assert TOKEN not in cause.reason
    assert "hunter2" not in cause.reason
    assert cause.location is not None
    assert cause.location.startswith(f"{__name__}:")


def test_an_exception_whose_str_fails_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RecursionError

    assert describe(Mute()).reason == "(no text: str() failed)"


def test_the_leaf_is_an_exception_that_must_end_the_process() -> None:
    interrupt = KeyboardInterrupt()
    assert leaf_of(BaseExceptionGroup("g", [ValueError(), BaseExceptionGroup("h", [interrupt])])) is interrupt


def test_dead_letters_are_counted_and_the_newest_retained() -> None:
    letters = DeadLetters(ring_records=2)
    for reason in ("dead", "full", "full"):
        letters.record(reason, path="top/accounts", key="email:ada@example.org", message_type="Recharge")
    assert letters.counts() == {"dead": 1, "full": 2, "expired": 0, "orphan_reply": 0}
    assert [letter.reason for letter in letters.recent()] == ["full", "full"]
    assert "ada" not in str(letters.recent())
