"""Repeated lines are folded, by a clock."""

from __future__ import annotations

import pytest

from holdfast.telemetry.logs import PERIODS_S, Folding
from holdfast.telemetry.logs.lines import Fields
from holdfast.telemetry.repetitions import KEYS_MAX
from holdfast.telemetry.reports.report import REPORT_KINDS


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lost(key: str = "", **more: object) -> Fields:
    return {"level": "warning", "event": "connection lost", "key": key or None, **more}


def test_a_line_that_repeats_is_written_once_then_with_its_count() -> None:
    clock = Clock()
    folding = Folding(clock)
    assert [folding.admit(lost(units=number)) for number in range(5)] == [True, False, False, False, False]
    assert folding.due() == []
    clock.now_s = PERIODS_S[0]
    assert folding.due() == [lost(units=4, folded=4)]
    assert folding.due() == []


def test_each_period_is_longer_while_a_line_repeats() -> None:
    clock = Clock()
    folding = Folding(clock)
    shown_at = []
    for second in range(100):
        clock.now_s = float(second)
        folding.admit(lost())
        shown_at += [second for _ in folding.due()]
    assert shown_at == [10, 30, 70]


def test_a_single_repetition_is_written_as_it_is() -> None:
    clock = Clock()
    folding = Folding(clock)
    assert folding.admit(lost(units=1))
    assert not folding.admit(lost(units=2))
    clock.now_s = PERIODS_S[0]
    assert folding.due() == [lost(units=2)]


def test_a_line_that_rested_is_written_at_once_again() -> None:
    clock = Clock()
    folding = Folding(clock)
    assert folding.admit(lost())
    clock.now_s = PERIODS_S[0]
    assert folding.admit(lost())


def test_lines_about_several_keys_are_written_up_to_three() -> None:
    folding = Folding(Clock())
    assert [folding.admit(lost(f"acct_{number}")) for number in range(5)] == [True, True, True, False, False]
    assert folding.due(at_once=True) == [lost("acct_4", folded=2)]


def test_once_one_is_held_no_other_of_its_kind_comes_before_it() -> None:
    clock = Clock()
    folding = Folding(clock)
    assert [folding.admit(lost(key)) for key in ("acct_1", "acct_1", "acct_2")] == [True, False, False]
    clock.now_s = PERIODS_S[0]
    assert folding.due() == [lost("acct_2", folded=2)]
    assert folding.admit(lost("acct_2"))


def test_lines_that_differ_in_a_text_are_not_folded() -> None:
    folding = Folding(Clock())
    assert folding.admit(lost(reason="refused"))
    assert folding.admit(lost(reason="timed out"))


def test_dead_letters_that_differ_in_numbers_are_folded() -> None:
    folding = Folding(Clock())
    assert folding.admit({"event": "dead_letter", "path": "accounts", "text": "not handled: full after 12 ms"})
    assert not folding.admit({"event": "dead_letter", "path": "accounts", "text": "not handled: full after 9 ms"})


@pytest.mark.parametrize("kind", sorted(set(REPORT_KINDS) - {"dead_letter"}))
def test_other_reports_are_never_held(kind: str) -> None:
    folding = Folding(Clock())
    lines = [{"event": kind, "path": "accounts", "text": f"{number} of 5 restarts"} for number in range(1, 6)]
    assert all(folding.admit({**line}) for line in lines)
    assert folding.due(at_once=True) == []


def test_no_count_is_lost_when_there_are_too_many_kinds() -> None:
    folding = Folding(Clock())
    for number in range(2 * KEYS_MAX):
        assert folding.admit(lost(reason=str(number)))
        assert not folding.admit(lost(reason=str(number)))
    shown = folding.due(at_once=True)
    assert [line["reason"] for line in shown] == [str(number) for number in range(2 * KEYS_MAX)]
