"""Output files that are invalid, endless or elsewhere: each has one documented outcome.

What cannot be stored is not charged, and only configured hosts are contacted.
"""

from __future__ import annotations

import io
import struct
import zlib
from decimal import Decimal
from urllib.parse import urlsplit

import pytest
import trio
from PIL import Image
from tests.clients import Totals, ok

from .conftest import NewCustomer
from .scripted_provider import (
    FILE_BYTES_MAX,
    PICTURE,
    POLLED,
    STORING,
    Answer,
    Script,
    ScriptedProvider,
    data_url,
    drips,
    finished,
    in_turn,
    is_file,
    noise,
    pours,
    redirects,
    says,
)
from .service_process import Service
from .task_scenarios import PAID, Scenario, TaskRun, check_nothing_is_open, run_scenarios

FLOOD_BYTES = 300 * 1024 * 1024


def bomb(width: int, height: int) -> bytes:
    """Return a small file with the header of a huge picture."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


async def in_vain(run: TaskRun, spoiled: dict[str, tuple[Answer | str, dict[str, object], str]]) -> None:
    """Each of these outputs cannot be stored: its task goes to review with its hold open.

    By name: how the file answers (or where the output is said to be), what is claimed of it, and the error.
    """
    await run.customer.recharge("90.00")
    tales = {name: TaskRun(f"{run.name}.{name}", run.service, run.provider, run.customer) for name in spoiled}

    async def meet(name: str) -> None:
        place, claims, error = spoiled[name]
        each = tales[name]
        await each.create()
        await each.wait_submitted()
        url = place if isinstance(place, str) else each.file("a.png", place)
        await each.send_update("succeeded", outputs=[{"url": url, **claims}])
        task = await each.wait_for("review")
        assert (task["error"] or "").startswith(f"hosting_failed: {error}"), (name, task["error"])
        assert task["hosting"]["error"] == task["error"]
        assert (task["review_reason"], task["output"]) == ("hosting_failed", []), name

    async with trio.open_nursery() as nursery:
        for name in spoiled:
            nursery.start_soon(meet, name)
    count = len(spoiled)
    assert await run.customer.totals() == Totals(Decimal(100), Decimal(count), Decimal(100 - count))
    for each in tales.values():
        ok(await each.cancel())


async def files_that_are_not_pictures(run: TaskRun) -> None:
    """A file that is not a picture, or not the declared one, is not stored."""
    page = b"<!DOCTYPE html><script>alert(1)</script>"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    jpeg = io.BytesIO()
    Image.new("RGB", (8, 8)).save(jpeg, "JPEG")
    other_hash: dict[str, object] = {"sha256": "0" * 64}
    await in_vain(
        run,
        {
            "page": (is_file(page), {}, "bad_type"),
            "svg_declared": (is_file(svg, "image/svg+xml"), {"content_type": "image/svg+xml"}, "bad_type"),
            "jpeg_as_png": (is_file(jpeg.getvalue()), {}, "bad_type"),
            "bomb": (is_file(bomb(60_000, 60_000)), {}, "too_large: the image has too many pixels"),
            "truncated": (is_file(noise(64)[:-300]), {}, "bad_type: the content is truncated"),
            "empty": (is_file(b""), {}, "bad_type"),
            "other_hash": (is_file(PICTURE), other_hash, "mismatch"),
            "packed": (is_file(zlib.compress(PICTURE), Content_Encoding="deflate"), {}, "bad_type"),
            "gone": (says(404, b"", "text/plain"), {}, "not_found"),
        },
    )


async def files_that_do_not_end(run: TaskRun) -> None:
    """An endless file is dropped at the limit, with or without Content-Length."""
    poured: list[int] = []
    await in_vain(
        run,
        {
            "declared": (pours(FLOOD_BYTES, poured, declared=True), {}, "too_large"),
            "undeclared": (pours(FLOOD_BYTES, poured, declared=False), {}, "too_large"),
            "declared_in_the_update": (is_file(PICTURE), {"bytes": FLOOD_BYTES}, "mismatch"),
        },
    )
    assert len(poured) == 2
    assert max(poured) < FILE_BYTES_MAX + 64 * 1024 * 1024


async def files_elsewhere(run: TaskRun) -> None:
    """Outputs and redirects lead to the provider only; no other host is contacted."""
    provider = run.provider
    trap, own = urlsplit(provider.trap_url).port, urlsplit(provider.url).port
    elsewhere = {
        "trap": f"http://127.0.0.1:{trap}/a.png",
        "localhost_https": f"https://localhost:{trap}/a.png",
        "number": f"http://2130706433:{trap}/a.png",
        "octal": f"https://0177.0.0.1:{trap}/a.png",
        "mapped_https": f"https://[::ffff:127.0.0.1]:{trap}/a.png",
        "user": f"http://127.0.0.1:{own}@127.0.0.1:{trap}/a.png",
        "other_provider": f"{provider.other_url}/a.png",
        "own_port_by_name": f"http://localhost:{own}/files/a.png",
    }
    only_by_redirect = {
        "file": "file:///etc/passwd",
        "data": data_url(PICTURE),
        "slashes": f"//127.0.0.1:{trap}/a.png",
    }
    loop = run.file("loop.png", redirects("loop.png"))
    there = run.file("there.png", redirects("back.png"))
    run.file("back.png", redirects("there.png"))
    spoiled: dict[str, tuple[Answer | str, dict[str, object], str]] = {
        "loop": (loop, {}, "blocked_address: more than"),
        "pendulum": (there, {}, "blocked_address: more than"),
    }
    for name, url in (elsewhere | only_by_redirect).items():
        spoiled[f"to_{name}"] = (redirects(url), {}, "blocked_address")
    for name, url in elsewhere.items():
        spoiled[f"at_{name}"] = (url, {}, "blocked_address")
    await in_vain(run, spoiled)


async def redirected_at_home(run: TaskRun) -> None:
    """A redirect that stays at the provider is followed."""
    await run.create()
    await run.wait_submitted()
    run.file("b.png")
    await run.report_success(run.file("a.png", redirects("b.png")))
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="1.00", units=1, hosting="ready")


async def dripping(run: TaskRun) -> None:
    """A file that arrives byte by byte is dropped in time; at the hosting deadline the task goes to review."""
    await run.create(STORING)
    await run.wait_submitted()
    await run.report_success(run.file("slow.png", drips(0.05)))
    await run.wait_for("review")
    await run.check("queued", "processing", "review", error="hosting_failed", hosting="failed")
    ok(await run.cancel())


async def shaky(run: TaskRun) -> None:
    """A file that fails and then arrives is stored; stored ones are not downloaded again."""
    await run.create(n=2)
    await run.wait_submitted()
    await run.report_success(run.file("b.png"), run.file("a.png", in_turn(says(500, {}), is_file(PICTURE))))
    await run.wait_for("succeeded")
    task = await run.check(*PAID, cost="2.00", units=2, hosting="ready")
    assert task["hosting"]["error"] is None


async def inline_and_too_large(run: TaskRun) -> None:
    """An inline result has the same limits: too large, not base64, or text that names a file."""
    big, text = noise(1100), "file:///etc/passwd"
    assert len(big) > FILE_BYTES_MAX

    async def meet(output: str, error: str) -> None:
        each = TaskRun(f"{run.name}.{len(output)}", run.service, run.provider, run.customer)
        await each.create(POLLED, Script(get=finished(output)))
        task = await each.wait_for("review")
        assert task["error"].startswith(f"hosting_failed: {error}"), task["error"]
        ok(await each.cancel())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meet, data_url(big), "too_large")
        for output in ("data:image/png;base64,***", text, "ftp://127.0.0.1/a.png"):
            nursery.start_soon(meet, output, "bad_type")


SCENARIOS: tuple[Scenario, ...] = (
    files_that_are_not_pictures, files_that_do_not_end, files_elsewhere, redirected_at_home, dripping, shaky,
    inline_and_too_large,
)  # fmt: skip


@pytest.mark.slow
async def test_only_outputs_that_can_be_stored_are_charged(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    assert scripted.visits == []
    check_nothing_is_open(scripted_service)
