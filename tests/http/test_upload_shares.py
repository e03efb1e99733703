"""What uploads use together: threads in turn, the quota of an account while they come, a share of the disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
from tests.clients import ok, refused
from trio.testing import wait_all_tasks_blocked

from holdfast.http.kit.upload_shares import UploadedBytes, UploadThreads
from holdfast.persistence.claims.files import files_total

if TYPE_CHECKING:
    from tests.http.api import Api

MIB = 1024 * 1024


async def test_an_upload_waits_for_few_jobs_of_others_however_many_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight accounts at one address, and of another account there."""
    threads, gate, done = UploadThreads(4), trio.Event(), list[str]()

    async def run_sync(work: Callable[[], None], *, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            await gate.wait()
            work()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)

    async def run(account_id: str, origin: str) -> None:
        await threads.run(account_id, origin, lambda: done.append(account_id))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            for _ in range(32):
                nursery.start_soon(run, f"attacker {number}", "one address")
        await wait_all_tasks_blocked()
        nursery.start_soon(run, "neighbour", "one address")
        await wait_all_tasks_blocked()
        nursery.start_soon(run, "other", "another address")
        await wait_all_tasks_blocked()
        gate.set()
    assert done.index("other") < 2 * 4
    assert done.index("neighbour") < 2 * 8 * 2
    assert len(done) == 8 * 32 + 2


async def test_an_upload_whose_client_is_slow_holds_no_thread(api: Api) -> None:
    """However many have sent a part each and send no more, another is received."""
    begun, may_end = trio.Event(), trio.Event()
    left = 40

    async def trickle() -> AsyncIterator[bytes]:
        nonlocal left
        yield bytes(300_000)
        left -= 1
        if not left:
            begun.set()
        await may_end.wait()
        yield b"the end"

    async def upload() -> None:
        ok(await api.as_key("POST", "/v2/files", content=trickle()))

    async with trio.open_nursery() as nursery:
        for _ in range(left):
            nursery.start_soon(upload)
        with trio.fail_after(60):
            await begun.wait()
            ok(await api.as_key("POST", "/v2/files", content=bytes(300_000)))
        assert await api.database.read(files_total, api.account_id) == (1, 300_000)
        may_end.set()


async def test_uploads_in_progress_count_towards_the_quota(api: Api) -> None:
    api.configure(files_bytes_max=MIB)
    ok(await api.as_key("POST", "/v2/files", content=bytes(MIB // 4)))
    has_come, may_end = trio.Event(), trio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(MIB // 2)
        has_come.set()
        await may_end.wait()

    async with trio.open_nursery() as nursery:

        async def upload() -> None:
            ok(await api.as_key("POST", "/v2/files", content=slow()))

        nursery.start_soon(upload)
        await has_come.wait()
        error = refused(
            await api.as_key("POST", "/v2/files", content=bytes(MIB // 4 + 1)), 409, "file_limit_reached"
        )
        assert f"1 files with {MIB + 1} bytes" in error["message"]
        # One that states its length is refused before it is read, also if it could be stored without the other.
        large = {"Content-Length": str(2 * MIB - MIB // 2)}
        refused(await api.as_key("POST", "/v2/files", content=b"", headers=large), 409, "file_limit_reached")
        ok(await api.as_key("POST", "/v2/files", content=bytes(MIB // 4)))
        may_end.set()
    assert await api.database.read(files_total, api.account_id) == (3, MIB)


async def test_what_is_stored_meanwhile_counts_for_an_upload_in_progress(api: Api) -> None:
    api.configure(files_bytes_max=MIB)
    has_come, may_end = trio.Event(), trio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(MIB // 2)
        has_come.set()
        await may_end.wait()
        yield b"1"

    async with trio.open_nursery() as nursery:

        async def upload() -> None:
            refused(await api.as_key("POST", "/v2/files", content=slow()), 409, "file_limit_reached")

        nursery.start_soon(upload)
        await has_come.wait()
        ok(await api.as_key("POST", "/v2/files", content=bytes(MIB // 2)))
        may_end.set()
    ok(await api.as_key("POST", "/v2/files", content=bytes(MIB // 2)))


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))


def test_an_origin_has_no_more_of_the_disk_than_it_leaves_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uploads, free = UploadedBytes(), 800

    def take(origin: str) -> int:
        """Send as long as there is room; return how many bytes were sent."""
        nonlocal free
        with_room = 0
        upload = opened[origin] = uploads.counted(f"account of {origin}", origin)
        counted = upload.__enter__()
        while True:
            disk(monkeypatch, free)
            counted.add(1)
            if not counted.fits(tmp_path):
                return with_room
            with_room, free = with_room + 1, free - 1

    opened = {}  # type: ignore[var-annotated]
    assert [take(origin) for origin in "abcd"] == pytest.approx([200, 100, 50, 25], abs=3)
    for each in opened.values():
        each.__exit__(None, None, None)
    assert vars(uploads) == vars(UploadedBytes())


def test_a_disk_that_others_have_filled_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uploads = UploadedBytes()
    disk(monkeypatch, 1000)
    with uploads.counted("a", "a") as upload:
        upload.add(400)
        assert upload.fits(tmp_path) is False
        disk(monkeypatch, 300)
        with pytest.raises(OSError) as caught:
            upload.fits(tmp_path)
        assert caught.value.errno == errno.ENOSPC


async def test_an_upload_without_room_on_the_disk_is_refused_and_no_outage(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 100_000)
    ok(await api.as_key("POST", "/v2/files", content=bytes(20_000)))
    refused(await api.as_key("POST", "/v2/files", content=bytes(40_000)), 507, "storage_full")
    assert api.reports == []
    assert await api.database.read(files_total, api.account_id) == (1, 20_000)
