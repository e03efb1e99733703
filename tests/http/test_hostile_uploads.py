"""Uploads that break off, take more than they should, or come in forms that no client makes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
import trio
from tests.clients import ok, refused

from holdfast.http.kit.upload_shares import UploadedBytes
from holdfast.http.kit.uploads import BLOCK_BYTES, SPOOL_MEMORY_BYTES
from holdfast.persistence.claims.files import files_total
from holdfast.providers.storage.spool import Spool

if TYPE_CHECKING:
    from tests.http.api import Api

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def part(name: bytes, content: bytes, *lines: bytes) -> bytes:
    """One part of a form; with ``lines`` after its first header."""
    head = b"\r\n".join((b'Content-Disposition: form-data; name="%b"' % name, *lines))
    return b"--x\r\n%b\r\n\r\n%b\r\n" % (head, content)


def temporary_files() -> list[str]:
    """The files without a name that this process has open."""
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [each for each in opened if "/incoming/" in each]


async def break_off(api: Api, path: str, headers: dict[str, str], *blocks: bytes) -> None:
    """Send these parts of a body, and hang up once they have been read."""
    has_read = trio.Event()

    async def sent() -> AsyncIterator[bytes]:
        for block in blocks:
            yield block
        has_read.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await api.as_key("POST", path, content=sent(), headers=headers)
            has_read.set()  # it was refused

        nursery.start_soon(send)
        await has_read.wait()
        nursery.cancel_scope.cancel()


def open_full() -> IO[bytes]:
    """Open a file on a full disk, which takes nothing."""
    return Path("/dev/full").open("w+b")


async def is_unused(api: Api) -> bool:
    """Whether no upload has left a row, a content, a temporary file or bytes that count."""
    total = await api.database.read(files_total, api.account_id)
    stored = [each for each in (api.deps.settings.data_dir / "files").rglob("*") if each.is_file()]
    counted = api.deps.storage.uploaded_bytes
    return (*total, stored, temporary_files(), vars(counted)) == (0, 0, [], [], vars(UploadedBytes()))


async def test_an_upload_that_breaks_off_at_any_byte_leaves_nothing(api: Api) -> None:
    form = part(b"file", PNG, b"Content-Type: image/png") + b"--x--"
    for end in range(len(form)):
        await break_off(api, "/v2/files", FORM, form[:end])
    assert await is_unused(api)
    large = bytes(BLOCK_BYTES + SPOOL_MEMORY_BYTES)
    await break_off(api, "/v2/files", FORM, part(b"file", large)[:-2])
    await break_off(api, "/v2/files", {"Content-Type": "image/png"}, large, b"1")
    await break_off(api, "/replicate/v1/files", FORM, part(b"content", large))
    edit = part(b"image", large) + part(b"model", b"studio/edit-1") + part(b"image[]", large)
    await break_off(api, "/v1/images/edits", FORM, edit)
    assert await is_unused(api)
    ok(await api.as_key("POST", "/v2/files", content=form, headers=FORM))


async def test_all_files_of_a_form_share_a_little_memory(api: Api) -> None:
    """However many there are, each smaller than what is written at once."""
    files = [b"image", *[b"image[]"] * 7]
    content = bytes(BLOCK_BYTES + SPOOL_MEMORY_BYTES - 1024)
    grown = 0

    async def sent() -> AsyncIterator[bytes]:
        nonlocal grown
        for name in files:
            body = part(name, content)
            for start in range(0, len(body), 64 * 1024):
                yield body[start : start + 64 * 1024]
        del body
        grown = tracemalloc.get_traced_memory()[0] - before
        yield b"--x"

    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        refused(await api.as_key("POST", "/v1/images/edits", content=sent(), headers=FORM), 400, "invalid_form")
    finally:
        tracemalloc.stop()
    assert 0 < grown < 3 * (BLOCK_BYTES + SPOOL_MEMORY_BYTES) < len(files) * len(content)
    assert await is_unused(api)


BROKEN: dict[str, bytes] = {
    "a header that is not UTF-8": part(b"file", PNG, b"X-Note: " + b"\xff" * 4000),
    "a header without a name": part(b"file", PNG, b": 1"),
    "a folded header": part(b"file", PNG, b"\tfolded", b" " * 3000),
    "nine headers": part(b"file", PNG, *[b"X-%d: 1" % n for n in range(9)]),
    "a header without an end": b'--x\r\nContent-Disposition: form-data; name="' + b"n" * 9000,
    "two lengths": part(b"file", PNG, b"Content-Length: 28", b"Content-Length: 28"),
    "a length that is too small": part(b"file", PNG, b"Content-Length: 3"),
    "a part that ends early": part(b"file", PNG, b"Content-Length: 9999"),
    "a line feed alone": part(b"file", PNG).replace(b"\r\n", b"\n"),
    "bytes after the boundary": part(b"file", PNG) + b"--xy\r\n",
    "no parts of the first boundary": b"--y\r\n" + part(b"file", PNG),
    "ten thousand parts": part(b"note", b"") * 10_000 + part(b"file", PNG),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("path", ["/v2/files", "/v1/images/edits", "/v1/videos"])
async def test_a_broken_form_is_refused_in_a_few_words(api: Api, path: str, name: str) -> None:
    for body in (BROKEN[name] + b"--x--", BROKEN[name]):
        response = await api.as_key("POST", path, content=body, headers=FORM)
        refused(response, 400, "invalid_form")
        message = response.json()["error"]["message"]
        assert len(message) < 200
        # Not the exceptions behind it, as Python shows them.
        assert "Error" not in message
        assert "b'" not in message
    assert await is_unused(api)


@pytest.mark.parametrize("path", ["/v2/files", "/replicate/v1/files", "/v1/images/edits", "/v1/videos"])
@pytest.mark.parametrize(
    "options", ["", '; boundary=""', "; boundary=\xff", f"; boundary={'b' * 6000}", '; boundary="']
)
async def test_a_form_with_an_unusable_boundary_is_refused(api: Api, path: str, options: str) -> None:
    headers = {"Content-Type": f"multipart/form-data{options}"}
    response = await api.as_key("POST", path, content=part(b"file", PNG) + b"--x--", headers=headers)
    assert response.status_code in {400, 415, 422}, response.text


async def test_a_name_with_nul_is_refused(api: Api) -> None:
    """PostgreSQL could not store it."""
    for path in ("/v1/images/edits", "/v1/videos"):
        body = part(b"model", b"studio/edit-1") + part(b"a\0b", b"1") + part(b"image", PNG) + b"--x--"
        response = await api.as_key("POST", path, content=body, headers=FORM)
        assert response.status_code == 400, response.text
        assert "NUL" in response.json()["error"]["message"]
    assert await is_unused(api)


async def test_a_full_disk_is_reported_and_no_file_stays_open(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[IO[bytes]] = []

    def full(**_: object) -> IO[bytes]:
        opened.append(open_full())
        return opened[-1]

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    large = bytes(BLOCK_BYTES + SPOOL_MEMORY_BYTES)
    edit = part(b"image", large) + part(b"mask", large)
    refused(
        await api.as_key("POST", "/v1/images/edits", content=edit + b"--x--", headers=FORM), 507, "storage_full"
    )
    assert opened
    assert all(each.closed for each in opened)
    assert await is_unused(api)


def test_a_spool_on_a_full_disk_closes_without_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = open_full()
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: file)
    spool = Spool(tmp_path, memory_bytes_max=0)
    spool.write(b"in the buffer of the file")
    spool.close()
    assert file.closed
