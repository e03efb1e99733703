"""The ``edit`` model: resize, crop or convert an image given by URL or in base64."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from holdfast.providers.outbound.downloads import DeclaredOutput, Downloaded, DownloadRefused, download
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.standins.studio.model import BadInput, Ready, RenderContext, Rendered, choice, text, whole

OPERATIONS = ("resize", "crop", "convert")
FORMATS = {"png": ("PNG", "image/png"), "jpeg": ("JPEG", "image/jpeg"), "webp": ("WEBP", "image/webp")}
SOURCE_MAX_BYTES = 16 * 1024 * 1024
SOURCE_MAX_PIXELS = 24_000_000
SIDE_MAX_PX = 2048
FETCH_TIMEOUT_S = 30.0

_READABLE = ("PNG", "JPEG", "WEBP", "GIF")
_SOURCE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_names = NameLookups("studio")
"""Shared by all edits, each of which has a client of its own."""


def _guarded_client() -> GuardedClient:
    return GuardedClient(resolve=_names.addresses)


@dataclass(frozen=True, slots=True)
class Edit:
    """The checked input of an edit; ``content`` is the image, None until it was fetched."""

    operation: str
    form: str
    width: int | None
    height: int | None
    source_url: str | None
    content: bytes | None
    guard: Callable[[], GuardedClient]

    async def fetch(self, directory: Path) -> Ready:
        """Fetch the image with the guarded client, since a caller chose its URL. Raises ``BadInput``."""
        assert self.source_url is not None
        client = self.guard()
        try:
            claim = DeclaredOutput(bytes_max=SOURCE_MAX_BYTES, content_types=_SOURCE_TYPES)
            found = await download(
                client, self.source_url, directory, claim, _content, total_timeout_s=FETCH_TIMEOUT_S
            )
        finally:
            client.close()
        if isinstance(found, DownloadRefused):
            raise BadInput(f"image_url could not be fetched: {found.message}")
        return replace(self, content=found, source_url=None)

    def render(self, context: RenderContext) -> list[Rendered]:
        """Edit the image."""
        context.step(0.05, "decode")
        image = _open(self.content or b"")
        context.step(0.4, "render")
        image = self._apply(image)
        context.step(0.8, "encode")
        form, content_type = FORMATS[self.form]
        if form == "JPEG" and image.mode != "RGB":
            ground = Image.new("RGB", image.size, "white")
            ground.paste(image, mask=image.getchannel("A"))
            image = ground
        path = context.new_file(f".{self.form}")
        image.save(path, form, **({} if form == "PNG" else {"quality": 90}))
        return [Rendered(path, content_type, width=image.width, height=image.height)]

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


def prepare(data: Mapping[str, object], guard: Callable[[], GuardedClient] = _guarded_client) -> Edit:
    """Check an edit's input. Raises ``BadInput``. ``guard`` creates the client that fetches the image."""
    operation = choice(data, "operation", "", OPERATIONS)
    if not operation:
        raise BadInput(f"operation is one of {', '.join(OPERATIONS)}")
    if (data.get("image") is None) == (data.get("image_url") is None):
        raise BadInput("exactly one of image and image_url is needed")
    url = None if data.get("image_url") is None else text(data, "image_url", None, 2000)
    if url is not None and not re.match(r"https?://", url):
        raise BadInput("image_url is an http or https URL")
    width = whole(data, "width", 0, 16, SIDE_MAX_PX) or None
    height = whole(data, "height", 0, 16, SIDE_MAX_PX) or None
    if operation in ("resize", "crop") and (width is None or height is None):
        raise BadInput(f"{operation} needs width and height")
    return Edit(
        operation=operation,
        form=choice(data, "format", "png", tuple(FORMATS)),
        width=width,
        height=height,
        source_url=url,
        content=None if url is not None else _decode(text(data, "image", None, SOURCE_MAX_BYTES // 3 * 4)),
        guard=guard,
    )


def _decode(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise BadInput("image is base64") from fault


def _content(found: Downloaded) -> bytes:
    return found.content if isinstance(found.content, bytes) else found.content.read_bytes()


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
