"""A provider whose files are no files, never end or lie elsewhere: each has one written outcome.

What cannot be kept is not charged, and nobody is called who was not configured.
"""

from __future__ import annotations

import io
import struct
import zlib
from decimal import Decimal
from urllib.parse import urlsplit

import trio
from PIL import Image

from .conftest import NewCustomer
from .house import Service, Totals, ok
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
from .task_tales import PAID, Story, Tale, nothing_is_left_open, tell_all

FLOOD_BYTES = 300 * 1024 * 1024


def bomb(width: int, height: int) -> bytes:
    """A small file that says it is a huge picture."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


async def in_vain(tale: Tale, spoiled: dict[str, tuple[Answer | str, dict[str, object], str]]) -> None:
    """Each of these outputs cannot be stored: its task goes to review with its hold open, and is then canceled.

    By name: how the file answers (or where the output is said to be), what is claimed of it, and the error.
    """
    await tale.customer.recharge("90.00")
    tales = {name: Tale(f"{tale.name}.{name}", tale.service, tale.provider, tale.customer) for name in spoiled}

    async def meet(name: str) -> None:
        place, claims, error = spoiled[name]
        each = tales[name]
        await each.begins()
        await each.is_taken()
        url = place if isinstance(place, str) else each.file("a.png", place)
        await each.hears("succeeded", outputs=[{"url": url, **claims}])
        task = await each.becomes("review")
        assert (task["error"] or "").startswith(f"hosting_failed: {error}"), (name, task["error"])
        assert task["hosting"]["error"] == task["error"]
        assert (task["review_reason"], task["output"]) == ("hosting_failed", []), name

    async with trio.open_nursery() as nursery:
        for name in spoiled:
            nursery.start_soon(meet, name)
    count = len(spoiled)
    assert await tale.customer.totals() == Totals(Decimal(100), Decimal(count), Decimal(100 - count))
    for each in tales.values():
        assert ok(await each.cancels())["status"] == "canceled"
    assert await tale.customer.totals() == Totals(Decimal(100), Decimal(0), Decimal(100))


async def files_that_are_not_pictures(tale: Tale) -> None:
    """What is no picture, or not the one that was declared, is not kept."""
    page = b"<!DOCTYPE html><script>alert(1)</script>"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    jpeg = io.BytesIO()
    Image.new("RGB", (8, 8)).save(jpeg, "JPEG")
    other_hash: dict[str, object] = {"sha256": "0" * 64}
    await in_vain(
        tale,
        {
            "page": (is_file(page), {}, "bad_type"),
            "page_told": (is_file(page, "text/html"), {}, "bad_type"),
            "svg": (is_file(svg), {}, "bad_type"),
            "svg_told": (is_file(svg, "image/svg+xml"), {"content_type": "image/svg+xml"}, "bad_type"),
            "jpeg_as_png": (is_file(jpeg.getvalue()), {}, "bad_type"),
            "jpeg_unwanted": (is_file(jpeg.getvalue(), "image/jpeg"), {}, "bad_type"),
            "declared_as_jpeg": (is_file(PICTURE), {"content_type": "image/jpeg"}, "bad_type"),
            "bomb": (is_file(bomb(60_000, 60_000)), {}, "too_large: the image has too many pixels"),
            "small_bomb": (is_file(bomb(9_000, 9_000)), {}, "too_large: the image has too many pixels"),
            "truncated": (is_file(noise(64)[:-300]), {}, "bad_type: the content is cut short"),
            "head_alone": (is_file(PICTURE[:20]), {}, "bad_type"),
            "empty": (is_file(b""), {}, "bad_type"),
            "other_hash": (is_file(PICTURE), other_hash, "mismatch"),
            "other_length": (is_file(PICTURE), {"bytes": len(PICTURE) + 1}, "mismatch"),
            "packed": (is_file(zlib.compress(PICTURE), Content_Encoding="deflate"), {}, "bad_type"),
            "gone": (says(404, b"", "text/plain"), {}, "not_found"),
            "expired": (says(403, b"", "text/plain"), {}, "not_found"),
        },
    )


async def files_that_do_not_end(tale: Tale) -> None:
    """A flood is let go at the limit, whether its length was told or not."""
    poured: list[int] = []
    await in_vain(
        tale,
        {
            "told": (pours(FLOOD_BYTES, poured, declared=True), {}, "too_large"),
            "untold": (pours(FLOOD_BYTES, poured, declared=False), {}, "too_large"),
            "told_in_the_news": (is_file(PICTURE), {"bytes": FLOOD_BYTES}, "mismatch"),
        },
    )
    assert len(poured) == 2
    assert max(poured) < FILE_BYTES_MAX + 64 * 1024 * 1024


async def files_elsewhere(tale: Tale) -> None:
    """Neither outputs nor redirects lead anywhere but to the provider itself; nobody else is called."""
    provider = tale.provider
    trap, own = urlsplit(provider.trap_url).port, urlsplit(provider.url).port
    elsewhere = {
        "trap": f"http://127.0.0.1:{trap}/a.png",
        "trap_https": f"https://127.0.0.1:{trap}/a.png",
        "localhost": f"http://localhost:{trap}/a.png",
        "localhost_https": f"https://localhost:{trap}/a.png",
        "number": f"http://2130706433:{trap}/a.png",
        "number_https": f"https://2130706433:{trap}/a.png",
        "hex": f"https://0x7f000001:{trap}/a.png",
        "octal": f"https://0177.0.0.1:{trap}/a.png",
        "short": f"https://127.1:{trap}/a.png",
        "zero": f"https://0.0.0.0:{trap}/a.png",
        "mapped": f"http://[::ffff:127.0.0.1]:{trap}/a.png",
        "mapped_https": f"https://[::ffff:127.0.0.1]:{trap}/a.png",
        "six": f"https://[::1]:{trap}/a.png",
        "user": f"http://127.0.0.1:{own}@127.0.0.1:{trap}/a.png",
        "other_provider": f"{provider.other_url}/a.png",
        "other_provider_https": f"{provider.other_url.replace('http:', 'https:')}/a.png",
        "own_port_by_name": f"http://localhost:{own}/files/a.png",
    }
    only_by_redirect = {
        "file": "file:///etc/passwd",
        "gopher": f"gopher://127.0.0.1:{trap}/",
        "data": data_url(PICTURE),
        "slashes": f"//127.0.0.1:{trap}/a.png",
        "nonsense": "http://[",
    }
    loop = tale.file("loop.png", redirects("loop.png"))
    there = tale.file("there.png", redirects("back.png"))
    tale.file("back.png", redirects("there.png"))
    spoiled: dict[str, tuple[Answer | str, dict[str, object], str]] = {
        "loop": (loop, {}, "blocked_address: more than"),
        "pendulum": (there, {}, "blocked_address: more than"),
    }
    for name, url in (elsewhere | only_by_redirect).items():
        spoiled[f"to_{name}"] = (redirects(url), {}, "blocked_address")
    for name, url in elsewhere.items():
        spoiled[f"at_{name}"] = (url, {}, "blocked_address")
    await in_vain(tale, spoiled)


async def redirected_at_home(tale: Tale) -> None:
    """A redirect that stays at the provider is followed."""
    await tale.begins()
    await tale.is_taken()
    tale.file("b.png")
    await tale.succeeds(tale.file("a.png", redirects("b.png")))
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")


async def dripping(tale: Tale) -> None:
    """A file that comes byte by byte is let go in time; when the time for storing is over, it is reviewed."""
    await tale.begins(STORING)
    await tale.is_taken()
    await tale.succeeds(tale.file("slow.png", drips(0.05)))
    await tale.becomes("review")
    await tale.stands("queued", "processing", "review", error="hosting_failed", hosting="failed")
    ok(await tale.cancels())


async def shaky(tale: Tale) -> None:
    """A file that fails and then comes is stored; what was stored meanwhile is not fetched again."""
    await tale.begins(n=2)
    await tale.is_taken()
    await tale.succeeds(tale.file("b.png"), tale.file("a.png", in_turn(says(500, {}), is_file(PICTURE))))
    await tale.becomes("succeeded")
    task = await tale.stands(*PAID, cost="2.00", units=2, hosting="ready")
    assert task["hosting"]["error"] is None


async def inline_and_too_large(tale: Tale) -> None:
    """A result inside the answer is held to the same limits: too large, not base64, or text that names a file."""
    big, text = noise(1100), "file:///etc/passwd"
    assert len(big) > FILE_BYTES_MAX

    async def meet(output: str, error: str) -> None:
        each = Tale(f"{tale.name}.{len(output)}", tale.service, tale.provider, tale.customer)
        await each.begins(POLLED, Script(get=finished(output)))
        task = await each.becomes("review")
        assert task["error"].startswith(f"hosting_failed: {error}"), task["error"]
        ok(await each.cancels())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meet, data_url(big), "too_large")
        for output in ("data:image/png;base64,***", text, "ftp://127.0.0.1/a.png"):
            nursery.start_soon(meet, output, "bad_type")
    assert (await tale.customer.totals()) == Totals(Decimal(10), Decimal(0), Decimal(10))


STORIES: tuple[Story, ...] = (
    files_that_are_not_pictures, files_that_do_not_end, files_elsewhere, redirected_at_home, dripping, shaky,
    inline_and_too_large,
)  # fmt: skip


async def test_whatever_a_file_is_only_what_can_be_kept_is_charged(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    assert scripted.visits == []
    nothing_is_left_open(scripted_house)
