"""Life events of tasks are written one by one, and counted while they are many, by a clock."""

from __future__ import annotations

from holdfast.telemetry.logs import EVENT_PERIODS_S, EVENTS_MAX, Folding

PERIOD_S, COUNTED_PERIOD_S = EVENT_PERIODS_S


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def admitted(events: Folding, count: int, event: str = "task created") -> int:
    return sum(events.admit_task_event(event) for _ in range(count))


def test_few_events_are_written_one_by_one() -> None:
    clock = Clock()
    events = Folding(clock)
    for _ in range(3):
        assert admitted(events, EVENTS_MAX) == EVENTS_MAX
        clock.now_s += PERIOD_S
        assert events.due() == []


def test_many_events_are_counted_by_name_until_they_are_few_again() -> None:
    clock = Clock()
    events = Folding(clock)
    assert admitted(events, EVENTS_MAX + 5) == EVENTS_MAX
    clock.now_s += PERIOD_S - 1
    assert events.due() == []
    clock.now_s += 1
    [line] = events.due()
    assert (line["counts"], line["seconds"]) == ({"task created": 5}, PERIOD_S)

    assert admitted(events, EVENTS_MAX) == 0
    assert admitted(events, 1, "task succeeded") == 0
    clock.now_s += PERIOD_S
    assert events.due() == []
    clock.now_s += COUNTED_PERIOD_S - PERIOD_S
    [line] = events.due()
    assert line["counts"] == {"task created": EVENTS_MAX, "task succeeded": 1}

    assert admitted(events, EVENTS_MAX) == 0
    clock.now_s += COUNTED_PERIOD_S
    assert events.due()
    assert admitted(events, 1) == 1


def test_counted_events_are_written_at_the_end() -> None:
    events = Folding(Clock())
    admitted(events, EVENTS_MAX + 1)
    [line] = events.due(at_once=True)
    assert line["counts"] == {"task created": 1}
    assert events.due(at_once=True) == []


def test_thirty_tasks_a_second_have_a_line_for_each_event() -> None:
    clock = Clock()
    events = Folding(clock)
    for _ in range(60):
        assert admitted(events, 30 * 3) == 30 * 3
        clock.now_s += 1.0
        assert events.due() == []
