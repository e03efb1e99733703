"""The ``poster`` and ``clip`` models: a ground in the colours of a seed, still or moving, with the prompt on it.

Everything is drawn from a generator seeded with the input, so that equal inputs give equal pixels under one Pillow
version.
"""

from __future__ import annotations

import colorsys
import io
import random
import struct
import textwrap
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from PIL import Image, ImageChops, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from holdfast_emulators.studio.model import OutputFile, Prompt, RenderContext, Seed, finished, new_seed

Style = Literal["gradient", "mosaic", "plasma"]
TITLE_MAX_CHARS: Final = 72
TYPE_MIN_PX: Final = 9

_DOTS: Final[dict[Style, int]] = {"gradient": 4, "mosaic": 24, "plasma": 9}
"""How many dots of colour a side of each style's ground has."""

Side = Annotated[int, msgspec.Meta(ge=64, le=2048)]
SIZES = {"360p": (640, 360), "480p": (854, 480), "720p": (1280, 720)}
FRAMES_PER_S = 12
AUTO_DURATION_S = 4.0
QUALITY = 62


class Ground:
    """Random dots of colour between a dark and a light one, stretched: softly, or in squares for a mosaic."""

    def __init__(self, rng: random.Random, style: Style) -> None:
        hue, side = rng.random(), _DOTS[style]
        self.dark, self.light = _colour(hue, 0.6, 0.15), _colour(hue + 0.1, 0.2, 0.95)
        shades = [(rng.random(), rng.uniform(0.15, 0.85)) for _ in range(side * side)]
        self._dots = Image.new("RGB", (side, side))
        self._dots.putdata([_colour(hue + 0.2 * turn, 0.6, value) for turn, value in shades])
        self._resampling = Image.Resampling.NEAREST if style == "mosaic" else Image.Resampling.BICUBIC

    def paint(self, size: tuple[int, int]) -> Image.Image:
        """Return a ground of this size."""
        return self._dots.resize(size, self._resampling)


@lru_cache(maxsize=64)
def font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the built-in typeface in a size."""
    return ImageFont.load_default(size_px)


def plain(prompt: str) -> str:
    """Return what the typeface can show of a text: without accents and other scripts, with single blanks."""
    folded = unicodedata.normalize("NFKD", prompt)
    shown = (char if " " <= char <= "~" else " " for char in folded if not unicodedata.combining(char))
    return " ".join("".join(shown).split())


def draw_title(image: Image.Image, prompt: str, ground: Ground) -> None:
    """Draw the prompt at the foot of the image, in the largest type that fits."""
    width, height = image.size
    margin = round(min(width, height) * 0.07)
    words = textwrap.shorten(plain(prompt), TITLE_MAX_CHARS, placeholder=" ...")
    for size_px in range(max(round(height * 0.13), TYPE_MIN_PX), TYPE_MIN_PX - 1, -2):
        face = font(size_px)
        lines = textwrap.wrap(words, max(1, round((width - 2 * margin) / face.getlength("n"))))
        if all(face.getlength(line) <= width - 2 * margin for line in lines) and len(lines) * size_px <= height / 3:
            corner = (margin, height - margin - size_px * 1.06 * len(lines))
            ImageDraw.Draw(image).multiline_text(
                corner, "\n".join(lines), ground.light, face, spacing=1, stroke_width=1, stroke_fill=ground.dark
            )
            return


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


class Poster(msgspec.Struct, frozen=True):
    """The input of a poster: ``n`` different ones."""

    prompt: Prompt
    n: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    width: Side = 1024
    height: Side = 1024
    seed: Seed = msgspec.field(default_factory=new_seed)
    style: Style = "gradient"

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Paint one after the other."""
        results = []
        for number in range(self.n):
            context.step(number / self.n, "render")
            ground = Ground(random.Random(f"{self.prompt}|{self.seed}|{number}"), self.style)  # noqa: S311
            image = ground.paint((self.width, self.height))
            context.step((number + 0.4) / self.n, "render")
            draw_title(image, self.prompt, ground)
            context.step((number + 0.5) / self.n, "encode")
            path = context.new_file(".png")
            notes = PngInfo()
            notes.add_itxt("Description", self.prompt)
            image.save(path, "PNG", compress_level=3, pnginfo=notes)
            results.append(finished(path, width=self.width, height=self.height))
        return results


def vp8_frame(webp: bytes) -> bytes:
    """Return the VP8 key frame of a lossy WebP file. Raises ``ValueError`` if there is none."""
    offset = 12
    while offset + 8 <= len(webp):
        size = int.from_bytes(webp[offset + 4 : offset + 8], "little")
        if webp[offset : offset + 4] == b"VP8 ":
            return webp[offset + 8 : offset + 8 + size]
        offset += 8 + size + size % 2
    raise ValueError("not a lossy WebP file")


def write_webm(frames: Sequence[bytes], width: int, height: int, frames_per_s: int) -> bytes:
    """Return a whole file. Clusters are one second long."""
    groups = [frames[offset : offset + frames_per_s] for offset in range(0, len(frames), frames_per_s)]
    clusters = []
    for second, group in enumerate(groups):
        blocks = [
            _element(0xA3, b"\x81" + struct.pack(">hB", round(i * 1000 / frames_per_s), 0x80) + frame)
            for i, frame in enumerate(group)
        ]
        clusters.append(_element(0x1F43B675, _number(0xE7, second * 1000) + b"".join(blocks)))
    information = _element(
        0x1549A966,
        _number(0x2AD7B1, 1_000_000)
        + _element(0x4489, struct.pack(">d", len(frames) * 1000 / frames_per_s))
        + _element(0x4D80, b"holdfast studio")
        + _element(0x5741, b"holdfast studio"),
    )
    tracks = _element(
        0x1654AE6B,
        _element(
            0xAE,
            _number(0xD7, 1)
            + _number(0x73C5, 1)
            + _number(0x83, 1)
            + _number(0x9C, 0)
            + _element(0x86, b"V_VP8")
            + _number(0x23E383, round(1_000_000_000 / frames_per_s))
            + _element(0xE0, _number(0xB0, width) + _number(0xBA, height)),
        ),
    )
    return _ebml_head() + _element(0x18538067, information + tracks + b"".join(clusters))


def _ebml_head() -> bytes:
    return _element(
        0x1A45DFA3,
        _number(0x4286, 1)
        + _number(0x42F7, 1)
        + _number(0x42F2, 4)
        + _number(0x42F3, 8)
        + _element(0x4282, b"webm")
        + _number(0x4287, 2)
        + _number(0x4285, 2),
    )


def _element(mark: int, content: bytes) -> bytes:
    name = mark.to_bytes((mark.bit_length() + 7) // 8, "big")
    for width in range(1, 9):
        if len(content) < (1 << 7 * width) - 1:
            return name + (len(content) | 1 << 7 * width).to_bytes(width, "big") + content
    raise ValueError("an element this large cannot be written")


def _number(mark: int, value: int) -> bytes:
    return _element(mark, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))


class Clip(msgspec.Struct, frozen=True):
    """The input of a clip."""

    prompt: Prompt
    duration: Annotated[float, msgspec.Meta(ge=1, le=12)] | Literal["auto"] = AUTO_DURATION_S
    resolution: Literal["360p", "480p", "720p"] = "360p"
    seed: Seed = msgspec.field(default_factory=new_seed)

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Draw and encode frame by frame."""
        size = width, height = SIZES[self.resolution]
        ground = Ground(random.Random(f"{self.prompt}|{self.seed}|clip"), "plasma")  # noqa: S311
        still = ground.paint(size)
        count = round((AUTO_DURATION_S if self.duration == "auto" else self.duration) * FRAMES_PER_S)
        frames = []
        for index in range(count):
            context.step(0.95 * index / count, "render")
            frame = ImageChops.offset(still, round(width * index / count), 0)
            draw_title(frame, self.prompt, ground)
            bar = (0, height - height // 120, round(width * (index + 1) / count), height)
            ImageDraw.Draw(frame).rectangle(bar, fill=ground.light)
            encoded = io.BytesIO()
            frame.save(encoded, "WEBP", quality=QUALITY, method=0)
            frames.append(vp8_frame(encoded.getvalue()))
        context.step(0.96, "encode")
        path = context.new_file(".webm")
        path.write_bytes(write_webm(frames, width, height, FRAMES_PER_S))
        return [finished(path, width=width, height=height, duration_s=round(count / FRAMES_PER_S, 3))]
