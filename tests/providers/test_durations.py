"""How long files are: as encoders write them, as hostile providers change them, and as chance does."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc

import pytest

from holdfast.providers.storage.durations import duration_of
from holdfast.providers.storage.durations.reading import Contradiction, TooManySteps
from holdfast.providers.storage.sniffing import NotMedia, measure, sniff

from .media_files import demuxed_s, encoded, wave

FRAGMENTED = "frag_keyframe+empty_moov"
KINDS = [
    ("audio/wav", "wav pcm_s16le", {}),
    ("audio/wav", "wav pcm_f32le", {}),
    ("audio/wav", "wav pcm_mulaw", {}),
    ("video/webm", "webm libvpx", {}),
    ("video/webm", "webm libvpx", {"live": "1"}),
    ("video/webm", "webm libvpx libopus", {}),
    ("video/mp4", "mp4 mpeg4", {}),
    ("video/mp4", "mp4 mpeg4 aac", {}),
    ("video/mp4", "mp4 mpeg4 aac", {"movflags": FRAGMENTED}),
    ("video/mp4", "mp4 aac", {}),
    ("audio/mpeg", "mp3 libmp3lame", {}),
    ("audio/mpeg", "mp3 libmp3lame", {"write_xing": "0"}),
    ("audio/ogg", "ogg libopus", {}),
    ("audio/ogg", "ogg flac", {}),
    ("audio/flac", "flac flac", {}),
]


@pytest.mark.parametrize(("content_type", "kind", "options"), KINDS)
@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_a_file_is_as_long_as_what_libav_finds_in_it(
    content_type: str, kind: str, options: dict[str, str], seconds: float
) -> None:
    content = encoded(kind, seconds, **options)
    found_s = duration_of(content, content_type)
    assert sniff(content[:4096]) == content_type
    # Encoders pad sound to whole frames; where they say so, the padding is not counted.
    assert found_s == pytest.approx(seconds, abs=0.05)
    assert found_s == pytest.approx(demuxed_s(content, kind="video" if "video" in content_type and
                                              kind != "mp4 aac" else "audio"), abs=0.05)  # fmt: skip


@pytest.mark.parametrize(
    ("declared_bytes", "riff_bytes"),
    [(0xFFFFFFFF, 0xFFFFFFFF), (0, 0), (0, None), (0x7FFFF000, 0x7FFFF024), (None, 0xFFFFFFFF), (None, None)],
)
def test_a_sound_from_a_pipe_is_as_long_as_its_bytes(declared_bytes: int | None, riff_bytes: int | None) -> None:
    content = wave(1.0, declared_bytes=declared_bytes, riff_bytes=riff_bytes)
    assert measure(content, "audio/wav").duration_s == 1.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wave(0.0), "no samples"),
        (wave(0.0, declared_bytes=0xFFFFFFFF), "no samples"),
        (wave(1.0, declared_bytes=16_001), "truncated"),
        (wave(1.0)[:9000], "truncated"),
        (wave(1.0, rate=10), "not valid"),
        (wave(1.0, frame_bytes=1), "not valid"),
        (wave(1.0, channels=0, bits=16), "not valid"),
        (b"RIFF\x04\0\0\0WAVE", "no samples"),
    ],
)
def test_a_sound_that_is_none_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(NotMedia, match=reason):
        measure(content, "audio/wav")


def test_a_coding_of_unknown_block_length_is_not_measured() -> None:
    assert duration_of(wave(1.0, coding=0x55), "audio/wav") is None


def test_a_clip_is_measured_by_its_time_scale_not_its_declared_length() -> None:
    content = encoded("webm libvpx", 2.0)
    at = content.index(b"\x44\x89\x88")
    longer = content[: at + 3] + struct.pack(">d", 10.0**8) + content[at + 11 :]
    assert duration_of(longer, "video/webm") == 2.0
    # The usual scale is a million nanoseconds to a tick; half of it halves every time in the file.
    scale = b"\x2a\xd7\xb1\x83"
    assert scale + (1_000_000).to_bytes(3, "big") in content
    halved = content.replace(scale + (1_000_000).to_bytes(3, "big"), scale + (500_000).to_bytes(3, "big"))
    assert duration_of(halved, "video/webm") == pytest.approx(1.0, abs=0.03)
    with pytest.raises(Contradiction):
        duration_of(content.replace(scale + (1_000_000).to_bytes(3, "big"), scale + bytes(3)), "video/webm")


def test_the_declared_lengths_of_movie_and_track_are_ignored() -> None:
    content = encoded("mp4 mpeg4", 2.0)
    for name, place in ((b"mvhd", 20), (b"mdhd", 20), (b"tkhd", 24)):
        at = content.index(name) + place
        content = content[:at] + b"\x7f\xff\xff\xff" + content[at + 4 :]
    assert duration_of(content, "video/mp4") == 2.0


def test_a_clip_that_lists_more_than_it_holds_is_refused() -> None:
    content = encoded("mp4 mpeg4", 2.0)
    at = content.index(b"stsz") + 16
    with pytest.raises(Contradiction, match="more data than it has"):
        duration_of(content[:at] + b"\x00\xff\xff\xff" + content[at + 4 :], "video/mp4")


def test_samples_that_claim_to_last_for_ever_last_as_long_as_shown() -> None:
    content = encoded("mp4 mpeg4", 2.0)
    at = content.index(b"stts") + 16
    endless = content[:at] + b"\x7f\xff\xff\xff" + content[at + 4 :]
    assert duration_of(endless, "video/mp4") == 2.0
    with pytest.raises(Contradiction, match="too short for its times"):
        duration_of(endless.replace(b"elst", b"free"), "video/mp4")


@pytest.mark.parametrize(("content_type", "kind", "options"), KINDS)
def test_a_file_cut_anywhere_is_refused_or_measured_by_what_is_left(
    content_type: str, kind: str, options: dict[str, str]
) -> None:
    content = encoded(kind, 2.0, **options)
    for part in (0.02, 0.3, 0.6, 0.97):
        try:
            found_s = duration_of(content[: int(len(content) * part)], content_type)
        except Contradiction:
            continue
        assert found_s is not None
        assert found_s <= 2.04 * part + 0.5, part


def test_a_sound_whose_positions_are_made_up_is_bounded_by_its_packets() -> None:
    content = bytearray(encoded("ogg libopus", 0.4))
    place = content.rindex(b"OggS")
    content[place + 6 : place + 14] = (10**15).to_bytes(8, "little")
    found_s = duration_of(bytes(content), "audio/ogg")
    assert found_s is not None
    assert found_s < 5


def test_the_sample_count_of_a_header_is_ignored() -> None:
    content = bytearray(encoded("flac flac", 2.0))
    content[21] |= 0x0F
    content[22:26] = b"\xff" * 4
    assert duration_of(bytes(content), "audio/flac") == 2.0


def test_sound_behind_a_tag_is_found() -> None:
    tag = b"ID3\x04\0\0" + bytes([0, 0, 2, 0]) + bytes(256)
    assert duration_of(tag + encoded("mp3 libmp3lame", 2.0), "audio/mpeg") == pytest.approx(2.0, abs=0.04)


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("audio/mpeg", b"ID3" + b"\xff" * 100_000),
        ("audio/flac", encoded("flac flac", 0.4)[:86] + b"\xff\xf8" * 50_000),
        ("audio/ogg", (b"OggS" + bytes(23)) * 4_000),
        ("video/mp4", b"\0\0\0\x08free" * 12_000),
        ("video/webm", b"\xec\x80" * 50_000),
        ("audio/wav", b"RIFF....WAVE" + b"junk\0\0\0\0" * 12_000),
    ],
)
def test_a_file_made_of_nothing_but_work_is_given_up(content_type: str, content: bytes) -> None:
    with pytest.raises((TooManySteps, Contradiction)):
        duration_of(content, content_type, steps_max=3_000)


def test_no_chance_change_of_a_file_breaks_a_reader_or_costs_memory() -> None:
    """The same changes in each run of the suite; FUZZ_S=600 for ten minutes of others, which FUZZ_SEED repeats."""
    fuzz_s = float(os.environ.get("FUZZ_S", "0"))
    seed = int(os.environ.get("FUZZ_SEED", random.randrange(2**32) if fuzz_s else 20261121))
    rng = random.Random(seed)
    files = [(content_type, encoded(kind, 0.4, **options)) for content_type, kind, options in KINDS]
    end, rounds = time.monotonic() + fuzz_s, 0
    tracemalloc.start()
    try:
        while rounds < len(files) * 40 or time.monotonic() < end:
            content_type, content = files[rounds % len(files)]
            changed = mutated(rng, content)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                found_s = duration_of(changed, content_type, steps_max=200_000)
                assert found_s is None or 0 < found_s <= max(1, len(changed))
            except (Contradiction, TooManySteps):
                pass
            except Exception as fault:
                raise AssertionError(f"{content_type} with FUZZ_SEED={seed}, round {rounds}") from fault
            assert tracemalloc.get_traced_memory()[1] - before < 4 * 1024 * 1024, (content_type, seed, rounds)
            rounds += 1
    finally:
        tracemalloc.stop()


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Bytes changed, pieces cut out, doubled, or replaced by the numbers that readers trip over."""
    made_up = bytearray(content)
    # Structure is mostly in front.
    reach = len(made_up) if rng.random() < 0.5 else min(len(made_up), 600)
    for _ in range(rng.choice((1, 2, 5, 20))):
        place = rng.randrange(max(1, min(reach, len(made_up))))
        match rng.randrange(5):
            case 0:
                made_up[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(
                    (0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), rng.randrange(2 ** (8 * width)))
                )
                made_up[place : place + width] = number.to_bytes(width, rng.choice(("big", "little")))
            case 2:
                del made_up[place : place + rng.randrange(1, 64)]
            case 3:
                made_up[place:place] = made_up[place : place + rng.randrange(1, 64)]
            case _:
                del made_up[place + rng.randrange(1, 4000) :]
    return bytes(made_up)
