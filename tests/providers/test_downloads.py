"""Downloads: a stored file matches what was declared, and no other file remains."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import struct
import wave
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from quart import Response
from quart_trio import QuartTrio

from holdfast.providers.outbound.downloads import (
    THREADS_MAX_COUNT,
    Downloaded,
    DownloadRefused,
    ExpectedOutput,
    accept_inline,
    download,
)
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.storage.sniffing import (
    EXTENSIONS,
    MEDIA_TYPES,
    UNKNOWN_TYPE,
    Measure,
    measure,
    opened,
    plain_type,
    sniff,
)
from holdfast.providers.storage.spool import MEMORY_BYTES_MAX

from .conftest import ServeApp


def image(form: str = "PNG", size: tuple[int, int] = (12, 8)) -> bytes:
    stream = io.BytesIO()
    Image.effect_mandelbrot(size, (-2, -1, 1, 1), 20).save(stream, form)
    return stream.getvalue()


def huge_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def sound(seconds: float) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\0" * int(8000 * seconds))
    return stream.getvalue()


def serving(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> QuartTrio:
    app = QuartTrio("files", static_folder=None)

    @app.get("/file")
    async def file() -> Response:
        response = Response(body, status)
        del response.headers["Content-Type"]
        response.headers.update({name.replace("_", "-"): value for name, value in (headers or {}).items()})
        return response

    return app


def as_found(found: Downloaded) -> Downloaded:
    return found


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def get(
    serve_app: ServeApp,
    app: QuartTrio,
    directory: Path,
    expected: ExpectedOutput | None = None,
    *,
    use: Callable[[Downloaded], Any] = as_found,
    **options: Any,
) -> Any:
    async with serve_app(app) as url:
        client = GuardedClient(frozenset({("127.0.0.1", int(url.rsplit(":", 1)[1]))}))
        try:
            return await download(client, f"{url}/file", directory, expected or ExpectedOutput(), use, **options)
        finally:
            client.close()


@pytest.mark.parametrize(
    ("form", "content_type"),
    [
        ("PNG", "image/png"),
        ("JPEG", "image/jpeg"),
        ("WEBP", "image/webp"),
        ("GIF", "image/gif"),
        ("AVIF", "image/avif"),
    ],
)
async def test_images_are_kept_hashed_and_measured(
    serve_app: ServeApp, tmp_path: Path, form: str, content_type: str
) -> None:
    body = image(form)
    digest = hashlib.sha256(body).hexdigest()
    expected = ExpectedOutput(sha256=digest.upper(), bytes=len(body), content_type=content_type)
    downloaded = await get(serve_app, serving(body, headers={"Content_Type": content_type}), tmp_path, expected)
    assert downloaded == Downloaded(body, digest, len(body), content_type, 12, 8, None)
    assert files_in(tmp_path) == []
    (tmp_path / "file").write_bytes(body)
    with (tmp_path / "file").open("rb") as file, opened(file) as data:
        assert measure(data, content_type) == measure(body, content_type) == Measure(12, 8)


async def test_a_large_output_is_a_file_while_it_is_used(serve_app: ServeApp, tmp_path: Path) -> None:
    body = sound(200)
    assert len(body) > 3 * MEMORY_BYTES_MAX

    def use(found: Downloaded) -> tuple[bytes, list[str], str, float | None]:
        assert not isinstance(found.content, bytes)
        assert os.fstat(found.content.fileno()).st_size == len(body)
        return found.content.read(), files_in(tmp_path), found.sha256, found.duration_s

    used = await get(serve_app, serving(body), tmp_path, use=use)
    refused = await get(serve_app, serving(body), tmp_path, ExpectedOutput(sha256="0" * 64), use=use)
    assert used == (body, [], hashlib.sha256(body).hexdigest(), 200.0)
    assert refused.code == "mismatch"
    assert files_in(tmp_path) == []


async def test_sound_has_a_duration(serve_app: ServeApp, tmp_path: Path) -> None:
    downloaded = await get(serve_app, serving(sound(1.5), headers={"Content_Type": "audio/x-wav"}), tmp_path)
    assert (downloaded.content_type, downloaded.duration_s) == ("audio/wav", 1.5)


@pytest.mark.parametrize("declared", [{}, {"Content_Type": "application/octet-stream"}])
async def test_an_undeclared_type_is_found_from_the_content(
    serve_app: ServeApp, tmp_path: Path, declared: dict[str, str]
) -> None:
    downloaded = await get(serve_app, serving(image(), headers=declared), tmp_path)
    assert downloaded.content_type == "image/png"


@pytest.mark.parametrize(
    ("body", "headers", "expected", "code"),
    [
        (image(), {"Content_Type": "text/html"}, ExpectedOutput(), "bad_type"),
        (image(), {"Content_Type": "image/svg+xml"}, ExpectedOutput(), "bad_type"),
        (image(), {"Content_Type": "image/jpeg"}, ExpectedOutput(), "bad_type"),
        (image(), {}, ExpectedOutput(content_type="image/webp"), "bad_type"),
        (image(), {}, ExpectedOutput(content_types=frozenset({"audio/wav"})), "bad_type"),
        (b"<html>", {"Content_Type": "image/png"}, ExpectedOutput(), "bad_type"),
        (b"", {"Content_Type": "image/png"}, ExpectedOutput(), "bad_type"),
        (image()[:20], {"Content_Type": "image/png"}, ExpectedOutput(), "bad_type"),
        (b"RIFF\0\0\0\0WAVEjunk", {}, ExpectedOutput(), "bad_type"),
        (image(), {"Content_Encoding": "gzip"}, ExpectedOutput(), "bad_type"),
        (image(), {}, ExpectedOutput(sha256="0" * 64), "mismatch"),
        (image(), {}, ExpectedOutput(bytes=5), "mismatch"),
        (image(), {}, ExpectedOutput(bytes_max=20), "too_large"),
        (huge_png(60_000, 60_000), {}, ExpectedOutput(), "too_large"),
        (huge_png(9_000, 9_000), {}, ExpectedOutput(), "too_large"),
    ],
)
async def test_what_is_not_as_promised_is_refused_and_removed(
    *,
    serve_app: ServeApp,
    tmp_path: Path,
    body: bytes,
    headers: dict[str, str],
    expected: ExpectedOutput,
    code: str,
) -> None:
    refused = await get(serve_app, serving(body, headers=headers), tmp_path, expected)
    assert isinstance(refused, DownloadRefused)
    assert (refused.code, refused.permanent) == (code, True), refused
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "code", "permanent"),
    [
        (404, "not_found", True),
        (410, "not_found", True),
        (403, "not_found", True),
        (400, "unreachable", True),
        (204, "unreachable", False),
        (429, "unreachable", False),
        (500, "unreachable", False),
        (503, "unreachable", False),
    ],
)
async def test_other_answers_say_whether_to_try_again(
    serve_app: ServeApp, tmp_path: Path, status: int, code: str, permanent: bool
) -> None:
    refused = await get(serve_app, serving(b"", status=status), tmp_path)
    assert (refused.code, refused.permanent) == (code, permanent)


async def test_endless_body_stops_at_the_limit(serve_app: ServeApp, tmp_path: Path) -> None:
    app = QuartTrio("endless", static_folder=None)

    @app.get("/file")
    async def file() -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            yield image()
            while True:
                yield b"x" * 10_000

        return Response(blocks(), 200, content_type="image/png")

    refused = await get(serve_app, app, tmp_path, ExpectedOutput(bytes_max=1_000_000))
    assert refused.code == "too_large"


async def test_slow_body_stops_at_the_total_time(serve_app: ServeApp, tmp_path: Path) -> None:
    app = QuartTrio("slow", static_folder=None)

    @app.get("/file")
    async def file() -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await trio.sleep(0.01)

        return Response(blocks(), 200, content_type="image/png")

    refused = await get(serve_app, app, tmp_path, total_timeout_s=0.2)
    assert (refused.code, refused.permanent) == ("unreachable", False)


async def test_a_body_cut_short_is_not_stored(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def cut(stream: trio.SocketStream) -> None:
            async with stream:
                await stream.receive_some()
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + image())

        nursery.start_soon(trio.serve_listeners, cut, [listener])
        port = listener.socket.getsockname()[1]
        client = GuardedClient(frozenset({("127.0.0.1", port)}))
        refused = await download(client, f"http://127.0.0.1:{port}/file", tmp_path, ExpectedOutput(), as_found)
        assert isinstance(refused, DownloadRefused)
        assert (refused.code, refused.permanent) == ("unreachable", False)
        client.close()
        nursery.cancel_scope.cancel()


async def test_blocked_address_is_a_refusal(tmp_path: Path) -> None:
    client = GuardedClient()
    refused = await download(client, "http://127.0.0.1:9/file", tmp_path, ExpectedOutput(), as_found)
    assert isinstance(refused, DownloadRefused)
    assert (refused.code, refused.permanent) == ("blocked_address", True)
    client.close()


async def test_threads_that_cannot_start_take_no_place_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    data = base64.b64encode(image("WEBP")).decode()
    with monkeypatch.context() as patched:
        patched.setattr(trio.lowlevel, "start_thread_soon", fail)
        for _ in range(THREADS_MAX_COUNT):
            with pytest.raises(RuntimeError, match="can't start"):
                await accept_inline(data, ExpectedOutput(), as_found)
    assert isinstance(await accept_inline(data, ExpectedOutput(), as_found), Downloaded)


async def test_inline_result_passes_the_same_checks() -> None:
    body = image("WEBP")
    downloaded = await accept_inline(
        base64.b64encode(body).decode(), ExpectedOutput(content_type="image/webp"), as_found
    )
    assert isinstance(downloaded, Downloaded)
    assert (downloaded.width, downloaded.bytes) == (12, len(body))
    for data, expected, code in [
        ("***", ExpectedOutput(), "bad_type"),
        (base64.b64encode(b"<html>").decode(), ExpectedOutput(), "bad_type"),
        (base64.b64encode(body).decode(), ExpectedOutput(bytes_max=10), "too_large"),
        (base64.b64encode(body).decode(), ExpectedOutput(sha256="0" * 64), "mismatch"),
    ]:
        refused = await accept_inline(data, expected, as_found)
        assert isinstance(refused, DownloadRefused)
        assert refused.code == code


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"GIF89a", "image/gif"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"OggS\0", "audio/ogg"),
        (b"fLaC\0", "audio/flac"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isomavc1", "video/mp4"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", None),
        (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm", "video/webm"),
        (b"\x1a\x45\xdf\xa3\xa3B\x86\x81\x01B\x82\x88matroska", None),
        (b"<svg xmlns=", None),
        (b"<!DOCTYPE html>", None),
        (b"%PDF-1.7", None),
        (b"MZ\x90", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_first_bytes_tell_the_type(head: bytes, found: str | None) -> None:
    assert sniff(head) == found


@given(st.binary(max_size=80))
def test_sniffing_never_raises_and_names_only_hosted_types(head: bytes) -> None:
    assert sniff(head) in MEDIA_TYPES | {None}


def test_every_hosted_type_has_an_extension_and_a_plain_name() -> None:
    assert set(EXTENSIONS) == {*MEDIA_TYPES, UNKNOWN_TYPE}
    assert {plain_type(f" {name.upper()} ; q=1") for name in MEDIA_TYPES} == MEDIA_TYPES
    assert plain_type("image/jpg") == "image/jpeg"
    assert plain_type(None) is None
