"""The ``edit`` model: resize, crop or convert an image given by URL or in base64."""

from __future__ import annotations

import base64
import io
import random
from typing import Annotated, Literal

import msgspec
import trio
from PIL import Image, ImageOps, UnidentifiedImageError

from holdfast.providers.outbound.downloads import Downloaded, DownloadRefused, ExpectedOutput, download
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast_emulators.studio.drawing import Ground, draw_title
from holdfast_emulators.studio.model import BadInput, OutputFile, Prompt, RenderContext, finished

SOURCE_MAX_BYTES = 16 * 1024 * 1024
SOURCE_MAX_PIXELS = 24_000_000
SIDE_MAX_PX = 2048
FETCH_TIMEOUT_S = 30.0

_READABLE = ("PNG", "JPEG", "WEBP", "GIF")
_SOURCE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_names = NameLookups("studio")
"""Shared by all edits, each of which has a client of its own."""

Side = Annotated[int, msgspec.Meta(ge=16, le=SIDE_MAX_PX)]


class Edit(msgspec.Struct, frozen=True):
    """The input of an edit: an image, and what becomes of it; ``prompt`` is set in type on the result.

    ``image`` is a URL, like ``image_url``, or the image itself in base64.
    """

    operation: Literal["resize", "crop", "convert"] = "convert"
    image: Annotated[str, msgspec.Meta(max_length=SOURCE_MAX_BYTES)] | None = None
    image_url: Annotated[str, msgspec.Meta(max_length=2000, pattern=r"^https?://")] | None = None
    prompt: Prompt | None = None
    format: Literal["png", "jpeg", "webp"] = "png"
    width: Side | None = None
    height: Side | None = None

    def __post_init__(self) -> None:
        if (self.image is None) == (self.image_url is None):
            raise ValueError("exactly one of image and image_url is needed")
        if self._url is None and self._inline is None:
            raise ValueError("image is neither an http or https URL nor base64")
        if self.operation != "convert" and (self.width is None or self.height is None):
            raise ValueError(f"{self.operation} needs width and height")

    @property
    def _url(self) -> str | None:
        given = self.image_url or self.image or ""
        return given if given.startswith(("http://", "https://")) else None

    @property
    def _inline(self) -> bytes | None:
        try:
            return base64.b64decode(self.image or "", validate=True)
        except ValueError:
            return None

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Edit the image."""
        if self._url is not None:
            context.step(0, "fetch")
            content = trio.from_thread.run(_fetch, self._url, context)
        else:
            content = self._inline or b""
        context.step(0.05, "decode")
        image = _open(content)
        context.step(0.4, "render")
        image = self._apply(image)
        if self.prompt is not None:
            draw_title(image, self.prompt, Ground(random.Random(self.prompt), "gradient"))  # noqa: S311
        context.step(0.8, "encode")
        if self.format == "jpeg" and image.mode != "RGB":
            ground = Image.new("RGB", image.size, "white")
            ground.paste(image, mask=image.getchannel("A"))
            image = ground
        path = context.new_file(f".{self.format}")
        image.save(path, self.format, **({} if self.format == "png" else {"quality": 90}))
        return [finished(path, width=image.width, height=image.height)]

    def _apply(self, image: Image.Image) -> Image.Image:
        width, height = self.width or image.width, self.height or image.height
        if self.operation == "resize":
            return image.resize((width, height), Image.Resampling.LANCZOS)
        if self.operation == "crop":
            return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
        limit = (min(width, SIDE_MAX_PX), min(height, SIDE_MAX_PX))
        if image.width > limit[0] or image.height > limit[1]:
            image = ImageOps.contain(image, limit, Image.Resampling.LANCZOS)
        return image


async def _fetch(url: str, context: RenderContext) -> bytes:
    """Fetch an image, leaving nothing in the directory. Raises ``BadInput``."""
    # Guarded, since a caller chose the URL; the service's own files may be at a private address.
    client = GuardedClient(context.service, resolve=_names.addresses)
    try:
        expected = ExpectedOutput(bytes_max=SOURCE_MAX_BYTES, content_types=_SOURCE_TYPES)
        found = await download(client, url, context.directory, expected, _content, total_timeout_s=FETCH_TIMEOUT_S)
    finally:
        client.close()
    if isinstance(found, DownloadRefused):
        if found.code == "bad_type":
            raise BadInput("the image is not a PNG, JPEG, WebP or GIF")
        raise BadInput(f"the image could not be fetched: {found.message}")
    return found


def _content(found: Downloaded) -> bytes:
    return found.content if isinstance(found.content, bytes) else found.content.read()


def _open(content: bytes) -> Image.Image:
    """Decode an image, upright, as RGB or RGBA; pixels are counted before any of them is unpacked."""
    try:
        image = Image.open(io.BytesIO(content), formats=_READABLE)
        if image.width * image.height > SOURCE_MAX_PIXELS:
            raise BadInput(f"the image has more than {SOURCE_MAX_PIXELS} pixels")
        upright = ImageOps.exif_transpose(image)
        return upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        raise BadInput(f"the image has more than {SOURCE_MAX_PIXELS} pixels") from fault
    except (UnidentifiedImageError, OSError, SyntaxError, EOFError) as fault:
        raise BadInput("the image is not a PNG, JPEG, WebP or GIF that can be read") from fault
