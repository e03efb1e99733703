"""Sounds and clips whose headers or whose provider tell other lengths than they have.

The input leaves the length open, up to 90 seconds at 0.10 a second; the file decides.
"""

from __future__ import annotations

import struct
from decimal import Decimal

import trio
from tests.providers.media_files import made, wave

from .conftest import NewCustomer
from .house import Service, ok
from .scripted_provider import DOUBTED, TIMED, ScriptedProvider, is_file
from .task_tales import PAID, Story, Tale, nothing_is_left_open, tell_all

UNKNOWN = 0xFFFFFFFF
TIME_SCALE = b"\x2a\xd7\xb1\x83" + (1_000_000).to_bytes(3, "big")


async def costs(
    tale: Tale, content: bytes, content_type: str, cost: str, *, told: str | None = None, **claims: object
) -> None:
    """The task with this one output costs so much, for as many units; ``told`` is in its progress."""
    await tale.begins(TIMED)
    await tale.runs()
    usage = claims.pop("usage", None)
    output = {"url": tale.file("a.bin", is_file(content, content_type)), **claims}
    await tale.hears("succeeded", outputs=[output], **({} if usage is None else {"usage": usage}))
    task = await tale.becomes("succeeded")
    await tale.stands(*PAID, cost=cost, units=int(Decimal(cost) * 10), hosting="ready")
    message = tale.last_line(task, "succeeded")["message"]
    assert (message is None) if told is None else (told in message), message


async def a_sound_from_a_pipe(tale: Tale) -> None:
    """A sound of one second that was written to a pipe costs one second."""
    await costs(tale, wave(1.0, told_bytes=UNKNOWN, riff_bytes=UNKNOWN), "audio/wav", "0.10")


async def a_clip_that_tells_a_longer_time(tale: Tale) -> None:
    """Two seconds whose header says sixty."""
    clip = made("webm libvpx", 2.0)
    told = clip.index(b"\x44\x89\x88") + 3
    longer = clip[:told] + struct.pack(">d", 60_000.0) + clip[told + 8 :]
    await costs(tale, longer, "video/webm", "0.20", duration_s=1e9)


async def a_clip_in_a_time_scale_of_its_own(tale: Tale) -> None:
    """Fifty pictures thirty milliseconds' ticks apart; the last one is shown as long as the header says of each."""
    clip = made("webm libvpx", 2.0)
    assert TIME_SCALE in clip
    slow = clip.replace(TIME_SCALE, TIME_SCALE[:4].replace(b"\x83", b"\x84") + (30_000_000).to_bytes(4, "big"))
    # One byte more: the elements around it are lengthened by what stands behind them.
    await costs(tale, _grown(slow), "video/webm", "5.90")


async def a_movie_that_tells_a_longer_time(tale: Tale) -> None:
    """Two seconds whose movie and track headers say days."""
    clip = made("mp4 mpeg4", 2.0)
    for name in (b"mvhd", b"mdhd"):
        at = clip.index(name) + 20
        clip = clip[:at] + b"\x7f\xff\xff\xff" + clip[at + 4 :]
    await costs(tale, clip, "video/mp4", "0.20")


async def a_report_beyond_reason(tale: Tale) -> None:
    """Three seconds and a report of a trillion: three are charged, and the difference is told."""
    usage = {"units": 10**18, "unit": "second"}
    await costs(tale, wave(3.0), "audio/wav", "0.30", usage=usage, told="3 (second) measured")


async def a_report_of_nothing(tale: Tale) -> None:
    """Thirty seconds and a report of none: thirty are charged."""
    usage = {"units": 0, "unit": "second"}
    await costs(tale, wave(30.0), "audio/wav", "3.00", usage=usage, told="reported 0 (second)")


async def a_report_of_less(tale: Tale) -> None:
    """Thirty seconds and a report of twelve: the smaller is charged."""
    usage = {"units": 12, "unit": "second"}
    await costs(
        tale, wave(30.0), "audio/wav", "1.20", usage=usage, told="reported 12 (second); 30 (second) measured"
    )


async def a_sound_without_sound(tale: Tale) -> None:
    """Headers and nothing behind them are no result."""
    await tale.begins(TIMED)
    await tale.runs()
    await tale.succeeds(tale.file("a.bin", is_file(wave(0.0, told_bytes=UNKNOWN), "audio/wav")))
    task = await tale.becomes("review")
    assert task["error"] == "hosting_failed: bad_type: the sound holds no samples"
    ok(await tale.cancels())


async def a_difference_that_a_person_decides(tale: Tale) -> None:
    """Where the catalog wants it, the task waits in review; approved, it costs the smaller."""
    await tale.begins(DOUBTED)
    await tale.runs()
    url = tale.file("a.bin", is_file(wave(3.0), "audio/wav"))
    await tale.succeeds(url, usage={"units": 9, "unit": "second"})
    task = await tale.becomes("review")
    assert task["review_reason"] == "usage_mismatch"
    assert task["error"] == "usage_mismatch: the provider reported 9 (second); 3 (second) measured"
    assert ok(await tale.reviewed("approve"))["task"]["status"] == "succeeded"
    await tale.stands("queued", "processing", "review", "succeeded", cost="0.30", units=3, hosting="ready")


def _grown(clip: bytes) -> bytes:
    """The clip with a length of one more for the element that describes it; the segment around it has no end."""
    info = clip.index(b"\x15\x49\xa9\x66") + 4
    width = 9 - clip[info].bit_length()
    length = int.from_bytes(clip[info : info + width], "big") + 1
    segment = clip.index(b"\x18\x53\x80\x67") + 4
    grown = clip[:info] + length.to_bytes(width, "big") + clip[info + width :]
    return grown[:segment] + b"\x01" + b"\xff" * 7 + grown[segment + 8 :]


STORIES: tuple[Story, ...] = (
    a_sound_from_a_pipe, a_clip_that_tells_a_longer_time, a_clip_in_a_time_scale_of_its_own,
    a_movie_that_tells_a_longer_time, a_report_beyond_reason, a_report_of_nothing, a_report_of_less,
    a_sound_without_sound, a_difference_that_a_person_decides,
)  # fmt: skip


async def test_the_file_decides_what_its_length_costs(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    nothing_is_left_open(scripted_house)
