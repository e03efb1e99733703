"""The progress list is limited in length, and a provider's texts in it are safe to show and to store."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.tasks.progress import (
    callback_ref,
    clean_message,
    clean_word,
    error_text,
    highest_percent,
    system_note,
    with_note,
)
from holdfast.ledger.tasks.task import Progress

NOON = datetime.fromisoformat("2026-11-20T12:00:00Z")


def test_urls_and_keys_are_removed() -> None:
    text = (
        "GET https://cdn.test/a?sig=1 with Bearer abcdefgh123 and sk_live_abcdefghij, token=xyz, see www.cdn.test/b"
    )
    assert clean_message(text) == "GET [url] with [removed] and [removed], [removed] see [url]"


def test_an_address_whose_scheme_is_no_word_is_removed() -> None:
    assert clean_message("at ://cdn.test/a, é://b and ://") == "at [url] é[url] and [url]"


def test_long_opaque_words_are_removed() -> None:
    assert clean_message("saved " + "a1" * 20) == "saved [removed]"
    assert clean_message("eyJhbGciOiJIUzI1NiJ9.e30.x is it") == "[removed] is it"


def test_plain_words_stay() -> None:
    assert clean_message("frame 19/48, 12.5 fps (step 3 of 4)") == "frame 19/48, 12.5 fps (step 3 of 4)"


def test_a_key_is_not_cut_in_half() -> None:
    text = "https://x.test/" + "y" * 3950 + " Bearer " + "k" * 200
    cleaned = clean_message(text)
    assert cleaned is not None
    assert "k" * 8 not in cleaned


@given(st.text(max_size=6000))
def test_a_message_is_short_clean_and_storable(text: str) -> None:
    cleaned = clean_message(text)
    assert cleaned is None or (0 < len(cleaned) <= 500 and "://" not in cleaned)
    if cleaned is not None:
        assert all(ord(letter) >= 32 for letter in cleaned)
        assert msgspec.json.decode(msgspec.json.encode(cleaned)) == cleaned


def test_an_error_has_a_code_even_without_text() -> None:
    assert error_text("provider_error", None) == "provider_error: no further detail"
    assert clean_word("a\x00b") == "a b"


def test_long_event_ids_stay_distinct() -> None:
    first, second = callback_ref("e" * 500 + "1"), callback_ref("e" * 500 + "2")
    assert first != second
    assert len(first) <= 255


def test_percent_is_a_running_maximum() -> None:
    assert [
        highest_percent(None, None),
        highest_percent(None, -3),
        highest_percent(40, 30),
        highest_percent(4, 300),
    ] == [
        None,
        0,
        40,
        100,
    ]


def test_a_full_list_retains_its_first_and_its_newest_entries() -> None:
    progress: tuple[Progress, ...] = ()
    for number in range(300):
        progress = with_note(progress, system_note("processing", str(number), NOON + timedelta(seconds=2 * number)))
    assert len(progress) == 100
    numbers = [int(note.source_ref.removeprefix("system:")) for note in progress]
    assert numbers == [0, 1, 2, 3, 4, *range(205, 300)]


def test_equal_entries_within_a_second_are_merged() -> None:
    first = Progress(ts=NOON, status="processing", source_ref="callback:1", percent=4, stage="render")
    soon = Progress(
        ts=NOON + timedelta(milliseconds=999), status="processing", source_ref="callback:2", stage="render"
    )
    merged = with_note((first,), soon)
    assert [(note.source_ref, note.percent) for note in merged] == [("callback:2", 4)]
    later = msgspec.structs.replace(soon, ts=soon.ts + timedelta(seconds=1))
    assert len(with_note(merged, later)) == 2
    other = msgspec.structs.replace(soon, stage="encode")
    assert len(with_note((first,), other)) == 2
