"""The edit model: what comes out has the size and type that were asked for, whatever went in."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image
from quart import Response
from quart_trio import QuartTrio

from holdfast_emulators.studio.edit import Edit
from holdfast_emulators.studio.model import BadInput, OutputFile, RenderContext

from .conftest import ServeApp, StartStudio


def picture(form: str = "PNG", size: tuple[int, int] = (120, 80), mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.effect_mandelbrot(size, (-2, -1, 1, 1), 30).convert(mode).save(stream, form)
    return stream.getvalue()


def render(directory: Path, content: bytes | None = None, **order: Any) -> OutputFile:
    data = {"image": base64.b64encode(picture() if content is None else content).decode(), **order}
    (one,) = msgspec.convert(data, Edit).render(RenderContext(directory, lambda percent, stage: None))
    return one


@pytest.mark.parametrize(
    ("order", "size"),
    [
        ({"operation": "resize", "width": 50, "height": 70}, (50, 70)),
        ({"operation": "crop", "width": 40, "height": 40}, (40, 40)),
        ({"operation": "crop", "width": 300, "height": 200}, (300, 200)),
        ({"operation": "convert", "width": 2000, "height": 2000}, (120, 80)),
        ({"operation": "convert"}, (120, 80)),
        ({"operation": "convert", "width": 60, "height": 60}, (60, 40)),
        ({"width": 60, "height": 60, "prompt": "a harbour"}, (60, 40)),
    ],
)
@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_result_has_the_size_and_type_asked_for(
    tmp_path: Path, order: dict[str, Any], size: tuple[int, int], form: str
) -> None:
    one = render(tmp_path, format=form, **order)
    with Image.open(one.path) as image:
        assert image.size == size == (one.width, one.height)
        assert (image.format or "").lower() == form
    assert one.content_type == f"image/{form}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_prompt_is_set_in_type(tmp_path: Path, mode: str) -> None:
    content = picture(size=(240, 160), mode=mode)
    plain, first = render(tmp_path, content), render(tmp_path, content, prompt="a harbour")
    again, other = render(tmp_path, content, prompt="a harbour"), render(tmp_path, content, prompt="a hill")
    assert first.sha256 == again.sha256
    assert len({plain.sha256, first.sha256, other.sha256}) == 3


@pytest.mark.parametrize(
    ("form", "mode"),
    [("PNG", "RGBA"), ("PNG", "P"), ("PNG", "1"), ("JPEG", "CMYK"), ("WEBP", "RGBA"), ("GIF", "P")],
)
def test_any_readable_picture_can_become_a_jpeg(tmp_path: Path, form: str, mode: str) -> None:
    one = render(tmp_path, picture(form, mode=mode), operation="convert", format="jpeg")
    with Image.open(one.path) as image:
        assert (image.mode, image.size) == ("RGB", (120, 80))


def test_larger_originals_are_kept_within_bounds(tmp_path: Path) -> None:
    one = render(tmp_path, picture(size=(3000, 100)), operation="convert")
    assert (one.width, one.height) == (2048, 68)


@pytest.mark.parametrize("content", [b"", b"<svg/>", picture()[:60], b"GIF89a", b"\xff\xd8\xff\xe0 junk"])
def test_what_is_no_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadInput):
        render(tmp_path, content, operation="convert")


def test_picture_with_too_many_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pixels"):
        render(tmp_path, picture(size=(6000, 4001), mode="1"), operation="convert")


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"operation": "convert"},
        {"operation": "convert", "image": "aGk=", "image_url": "https://a.example/"},
        {"operation": "convert", "image": "***"},
        {"operation": "convert", "image_url": "file:///etc/passwd"},
        {"operation": "paint", "image": "aGk="},
        {"operation": "resize", "image": "aGk=", "width": 10},
        {"operation": "resize", "image": "aGk=", "width": 4000, "height": 10},
        {"operation": "watermark", "image": "aGk=", "text": "Ann"},
        {"operation": "convert", "image": "aGk=", "format": "gif"},
        {"image": "aGk=", "prompt": " "},
    ],
)
def test_what_cannot_be_edited_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(order, Edit)


async def test_image_is_fetched_behind_the_guard(start_studio: StartStudio, serve_app: ServeApp) -> None:
    """A private address is refused, but that of the service, which takes the job's callbacks."""
    app = QuartTrio("pictures", static_folder=None)

    @app.get("/a.png")
    async def file() -> Response:
        return Response(picture(), content_type="image/png")

    @app.post("/hook")
    async def hook() -> Response:
        return Response(b"")

    @app.get("/a.txt")
    async def text() -> Response:
        return Response(b"no picture", content_type="application/octet-stream")

    async with serve_app(app) as url, serve_app(QuartTrio("other", static_folder=None)) as other:
        order = {"operation": "convert", "format": "webp", "image_url": f"{url}/a.png"}
        async with start_studio() as studio:
            for job, webhook in (("a.1", None), ("a.4", f"{other}/hook")):
                await studio.put(job, model="edit", input=order, webhook=webhook)
                shown = await studio.finished(job)
                assert shown["status"] == "failed"
                assert shown["error_code"] == "invalid_upstream_input"
            await studio.put("a.2", model="edit", input=order, webhook=f"{url}/hook")
            shown = await studio.finished("a.2")
            assert shown["status"] == "succeeded"
            assert shown["output"][0]["content_type"] == "image/webp"
            missing = {**order, "image_url": f"{url}/b.png"}
            await studio.put("a.3", model="edit", input=missing, webhook=f"{url}/hook")
            assert (await studio.finished("a.3"))["status"] == "failed"
            await studio.put("a.5", model="edit", input={"image_url": f"{url}/a.txt"}, webhook=f"{url}/hook")
            assert "not a PNG, JPEG, WebP or GIF" in (await studio.finished("a.5"))["error"]
