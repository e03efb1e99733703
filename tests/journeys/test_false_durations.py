"""Sounds and clips with wrong durations in their headers or in the provider's report.

The input leaves the length open, up to 90 seconds at 0.10 a second; the file decides.
"""

from __future__ import annotations

from decimal import Decimal

import trio
from tests.clients import ok
from tests.providers.media_files import encoded, wave

from .conftest import NewCustomer
from .scripted_provider import DOUBTED, TIMED, ScriptedProvider, is_file
from .service_process import Service
from .task_scenarios import PAID, Scenario, TaskRun, check_nothing_is_open, run_scenarios

UNKNOWN = 0xFFFFFFFF


async def costs(
    run: TaskRun, content: bytes, content_type: str, cost: str, *, message_part: str | None = None, **claims: object
) -> None:
    """Check the cost and units of a task with this output; ``message_part`` is in its progress."""
    await run.create(TIMED)
    await run.start_processing()
    usage = claims.pop("usage", None)
    output = {"url": run.file("a.bin", is_file(content, content_type)), **claims}
    await run.send_update("succeeded", outputs=[output], **({} if usage is None else {"usage": usage}))
    task = await run.wait_for("succeeded")
    await run.check(*PAID, cost=cost, units=int(Decimal(cost) * 10), hosting="ready")
    message = run.last_progress(task, "succeeded")["message"]
    assert (message is None) if message_part is None else (message_part in message), message


async def a_sound_from_a_pipe(run: TaskRun) -> None:
    """A sound of one second without a length in its header costs one second."""
    await costs(run, wave(1.0, declared_bytes=UNKNOWN, riff_bytes=UNKNOWN), "audio/wav", "0.10")


async def a_movie_that_tells_a_longer_time(run: TaskRun) -> None:
    """Two seconds with movie and track headers of days."""
    clip = encoded("mp4 mpeg4", 2.0)
    for name in (b"mvhd", b"mdhd"):
        at = clip.index(name) + 20
        clip = clip[:at] + b"\x7f\xff\xff\xff" + clip[at + 4 :]
    await costs(run, clip, "video/mp4", "0.20")


async def a_report_beyond_reason(run: TaskRun) -> None:
    """Three seconds, a trillion reported: three are charged, and the difference is reported."""
    usage = {"units": 10**18, "unit": "second"}
    await costs(run, wave(3.0), "audio/wav", "0.30", usage=usage, message_part="3 (second) measured")


async def a_report_of_less(run: TaskRun) -> None:
    """Thirty seconds, twelve reported: the smaller is charged."""
    usage = {"units": 12, "unit": "second"}
    await costs(
        run, wave(30.0), "audio/wav", "1.20", usage=usage, message_part="reported 12 (second); 30 (second) measured"
    )


async def a_sound_without_sound(run: TaskRun) -> None:
    """Headers without content are not a result."""
    await run.create(TIMED)
    await run.start_processing()
    await run.report_success(run.file("a.bin", is_file(wave(0.0, declared_bytes=UNKNOWN), "audio/wav")))
    task = await run.wait_for("review")
    assert task["error"] == "hosting_failed: bad_type: the audio has no samples"
    ok(await run.cancel())


async def a_difference_that_a_person_decides(run: TaskRun) -> None:
    """With on_mismatch = review the task waits in review; approved, it costs the smaller."""
    await run.create(DOUBTED)
    await run.start_processing()
    url = run.file("a.bin", is_file(wave(3.0), "audio/wav"))
    await run.report_success(url, usage={"units": 9, "unit": "second"})
    task = await run.wait_for("review")
    assert task["review_reason"] == "usage_mismatch"
    assert task["error"] == "usage_mismatch: the provider reported 9 (second); 3 (second) measured"
    assert ok(await run.decide_review("approve"))["task"]["status"] == "succeeded"
    await run.check("queued", "processing", "review", "succeeded", cost="0.30", units=3, hosting="ready")


SCENARIOS: tuple[Scenario, ...] = (
    a_sound_from_a_pipe, a_movie_that_tells_a_longer_time, a_report_beyond_reason, a_report_of_less,
    a_sound_without_sound, a_difference_that_a_person_decides,
)  # fmt: skip


async def test_the_measured_duration_decides_the_charge(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    check_nothing_is_open(scripted_service)
