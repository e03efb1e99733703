"""A provider's silence: what counts as one, and that it is told of once."""

from __future__ import annotations

from typing import Any

import structlog

from holdfast.providers.media.silences import SILENT_AFTER_CALLS, SILENT_AFTER_S, ProviderSilences


class Counter:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_silence_is_one_line_at_its_beginning_and_one_at_its_end() -> None:
    counter = Counter()
    silences = ProviderSilences(counter=counter)
    with structlog.testing.capture_logs() as lines:
        for _ in range(1000):
            silences.unanswered("box", "submissions", "no answer")
            counter.now_s += 0.1
        [silence] = silences.silences("box")
        assert (silence.of, round(silence.seconds)) == ("submissions", 100)
        assert silences.silences("other") == ()
        silences.answered("box", "news")
        assert silences.silences("box") == (silence,)
        for _ in range(10):
            silences.answered("box", "submissions")
        assert silences.silences("box") == ()
    told: list[Any] = [(line["event"], line["provider"], line["of"]) for line in lines]
    assert told == [
        ("provider is silent", "box", "submissions"),
        ("provider is no longer silent", "box", "submissions"),
    ]
    assert lines[1]["calls"] == 1000


def test_a_call_now_and_then_without_an_answer_is_no_silence() -> None:
    counter = Counter()
    silences = ProviderSilences(counter=counter)
    for _ in range(SILENT_AFTER_CALLS * 10):
        silences.unanswered("box", "news", "no answer")
        counter.now_s += SILENT_AFTER_S
        silences.answered("box", "news")
    assert silences.silences("box") == ()
    # Many at once are one moment's trouble.
    for _ in range(100):
        silences.unanswered("box", "news", "no answer")
    assert silences.silences("box") == ()
