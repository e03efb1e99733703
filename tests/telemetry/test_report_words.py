"""Reports in words, as an operator reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.telemetry.reports.report import REPORT_KINDS, Report, in_words
from holdfast.telemetry.scrubbing import scrub, spelled

FAULT = {"reason_type": "ValueError", "reason": "a\n b", "location": "m:3"}
EXAMPLES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "start", "reason": "9 children"}, "started: 9 children"),
    ({"kind": "stop"}, "stopped"),
    (
        {"kind": "crash", **FAULT},
        "crashed: ValueError: a b (m:3); not restarted; start it on the page of its process",
    ),
    (
        {"kind": "crash", **FAULT, "context": "start_error", "decision": "backoff", "delay_s": 0.5}
        | {"restarts": 1, "budget": 5},
        "did not start: ValueError: a b (m:3); restarts in 0.5 s (1 of 5 restarts); look at what was deployed last",
    ),
    (
        {"kind": "crash", **FAULT, "decision": "backoff", "delay_s": 0.5, "restarts": 1, "budget": 5}
        | {"level": "warning", "key": "acct_1", "mailbox_depth": 1}
        | {"incarnation": 3, "last_message_type": "CreateTask"},
        "crashed (incarnation 3, last message CreateTask): ValueError: a b (m:3); "
        "restarts in 0.5 s (1 of 5 restarts); nothing to do",
    ),
    (
        {"kind": "crash", **FAULT, "decision": "backoff", "delay_s": 0.5, "restarts": 1, "budget": 5}
        | {"level": "warning", "key": "acct_1", "mailbox_depth": 0},
        "crashed: ValueError: a b (m:3); "
        "restarts with its next message, after 0.5 s (1 of 5 restarts); nothing to do",
    ),
    (
        {"kind": "crash", "reason": "it returned", "decision": "restart"},
        "crashed: it returned; restarts at once; look at what was deployed last",
    ),
    (
        {"kind": "crash", "reason": "process 7 was killed by SIGKILL", "decision": "restart"},
        "crashed: process 7 was killed by SIGKILL; restarts at once; see whether the machine has memory left",
    ),
    (
        {"kind": "crash", "reason_type": "EndedByOperator", "reason": "a drill", "decision": "restart"},
        "crashed: EndedByOperator: a drill; restarts at once; nothing to do",
    ),
    (
        {"kind": "crash", "reason_type": "ProcessEnded", "reason": "process 7 ended with exit code 1"}
        | {"decision": "backoff", "delay_s": 0.1, "level": "warning"},
        "crashed: ProcessEnded: process 7 ended with exit code 1; restarts in 0.1 s; "
        "its own lines before it name the cause",
    ),
    ({"kind": "crash", **FAULT, "decision": "pause"}, "crashed: ValueError: a b (m:3); its group pauses"),
    (
        {"kind": "crash", **FAULT, "decision": "escalate", "restarts": 4, "budget": 3},
        "crashed: ValueError: a b (m:3); its supervisor gives up (4 of 3 restarts)",
    ),
    (
        {"kind": "crash_loop", "reason": "it keeps crashing: OSError", "duration_s": 93_600.0, "count": 99},
        "it keeps crashing: OSError; lasts for 26 h, 99 failures; look at what was deployed last",
    ),
    ({"kind": "restart", "incarnation": 2}, "started again (incarnation 2)"),
    (
        {"kind": "quarantine", **FAULT, "delay_s": 120.0, "restarts": 6, "budget": 5, "decision": "quarantine"},
        "quarantined for 120 s: ValueError: a b (m:3); after 6 crashes; "
        "remove the cause, then release it on its page; it is tried again by itself",
    ),
    (
        {"kind": "quarantine", "reason": "ticket 7", "delay_s": 3600.0, "restarts": 1, "budget": 5},
        "quarantined for 60 min: ticket 7; "
        "remove the cause, then release it on its page; it is tried again by itself",
    ),
    ({"kind": "release", "reason": "its trial succeeded"}, "released from quarantine: its trial succeeded"),
    ({"kind": "pause", "reason_type": "OSError", "reason": "gone"}, "paused: OSError: gone"),
    ({"kind": "resume"}, "resumed"),
    (
        {"kind": "escalation", "reason_type": "GaveUp", "reason": "over 3 restarts"},
        "gave up: over 3 restarts; the crashes before it name the cause",
    ),
    (
        {"kind": "drain", "context": "shutdown", "reason": "every child in time"},
        "stopped in order: every child in time",
    ),
    ({"kind": "drain", "context": "killed", "reason": "killed: a"}, "did not stop in order: killed: a"),
    ({"kind": "roll", "reason": "process 1 by 2"}, "replaced: process 1 by 2"),
    (
        {"kind": "roll", "level": "error", "reason": "not ready"},
        "roll abandoned: not ready; remove the cause, then roll again",
    ),
    (
        {"kind": "stuck", "reason": "Say waits in a < b", "duration_s": 31.0, "location": "a"},
        "takes too long, 31 s so far: Say waits in a < b; "
        "it may be restarted on its page, unless it waits for the database",
    ),
    (
        {"kind": "stuck", "reason": "process 7 does not respond", "duration_s": 3.0, "path": "processes/worker-0"},
        "takes too long, 3 s so far: process 7 does not respond; it is replaced if that lasts",
    ),
    (
        {"kind": "poison", **FAULT, "last_message_type": "CreateTask", "count": 1},
        "CreateTask crashes its actor: ValueError: a b (m:3); "
        "remove the cause, then replay or discard the message on its page",
    ),
    (
        {"kind": "poison", **FAULT, "last_message_type": "CreateTask", "count": 3},
        "CreateTask crashes its actor again, now 3 times: ValueError: a b (m:3); "
        "remove the cause, then replay or discard the message on its page",
    ),
    (
        {"kind": "dead_letter", "reason": "CreateTask, its deadline had passed"},
        "not handled: CreateTask, its deadline had passed",
    ),
    (
        {"kind": "dead_letter", "reason": "more of the same", "count": 12, "duration_s": 10.0},
        "not handled 12 times in 10 s: more of the same",
    ),
    ({"kind": "outage", "reason": "the database is away: refused"}, "the database is away: refused"),
    (
        {"kind": "recovery", "reason": "the database answers", "duration_s": 26.3, "count": 1},
        "the database answers; lasted 26.3 s, 1 failure",
    ),
    (
        {"kind": "recovery", "reason": "no request is answered 503 any more", "duration_s": 0.0, "count": 1},
        "no request is answered 503 any more; 1 failure",
    ),
    (
        {"kind": "quarantine", "reason": "ticket 7", "delay_s": 111.199},
        "quarantined for 111 s: ticket 7; "
        "remove the cause, then release it on its page; it is tried again by itself",
    ),
    (
        {"kind": "refusal", "reason": "callbacks are refused: invalid_signature"},
        "callbacks are refused: invalid_signature",
    ),
    ({"kind": "lockout"}, "locked out"),
    ({"kind": "difference", "reason": "account acct_1: x"}, "the ledger differs: account acct_1: x"),
    (
        {"kind": "action", "operator": "operator-token", "reason": "restart actor: done; reason: ticket 7"},
        "by operator-token, restart actor: done; reason: ticket 7",
    ),
    ({"kind": "loss", "count": 5, "reason": "memory was full"}, "reports were lost 5 times: memory was full"),
]


@pytest.mark.parametrize(("fields", "text"), EXAMPLES)
def test_a_report_in_words(fields: dict[str, Any], text: str) -> None:
    report = Report(**{"at": datetime(2026, 11, 22, tzinfo=UTC), "path": "top/a", **fields})
    assert in_words(report) == text
    assert scrub(text) == text


def test_there_is_an_example_of_every_kind() -> None:
    assert {fields["kind"] for fields, _ in EXAMPLES} == {*REPORT_KINDS}


def test_operators_of_one_initial_differ_in_the_log() -> None:
    for local in ("grace", "g.hopper"):
        assert (
            spelled(f"{local}@example.com") == scrub(spelled(f"{local}@example.com")) == f"{local} at example.com"
        )
    assert spelled("operator-token") == "operator-token"
