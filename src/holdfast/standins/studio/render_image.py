"""The ``poster`` model: a ground in one of three styles, and the prompt set in type.

Everything drawn comes from a generator seeded with prompt, seed and number, so equal inputs give equal pixels under
one Pillow version. Grounds are painted in strips: that is what progress counts and where a cancel takes hold.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageOps
from PIL.PngImagePlugin import PngInfo

from holdfast.standins.studio.lettering import title
from holdfast.standins.studio.model import RenderContext, Rendered, choice, text, whole
from holdfast.standins.studio.palettes import Palette, choose, ramp

STYLES = ("gradient", "mosaic", "plasma")
SIDE_MIN_PX = 64
SIDE_MAX_PX = 2048
IMAGES_MAX_COUNT = 8
STRIP_HEIGHT_PX = 128

_FIELD_PX = 192
_OCTAVES = ((3, 1.0), (5, 0.5), (9, 0.28), (17, 0.14))


@dataclass(frozen=True, slots=True)
class Poster:
    """A poster order that passed its checks."""

    prompt: str
    n: int
    width: int
    height: int
    seed: int
    style: str

    def render(self, context: RenderContext) -> list[Rendered]:
        """Paint ``n`` posters, each a variation of its own."""
        results = []
        for number in range(self.n):

            def step(done: float, stage: str, number: int = number) -> None:
                context.step((number + done) / self.n, stage)

            image = self.paint(number, step)
            step(0.9, "encode")
            path = context.new_file(".png")
            notes = PngInfo()
            notes.add_itxt("Description", self.prompt)
            notes.add_text("Comment", f"seed={self.seed} number={number} style={self.style}")
            image.save(path, "PNG", compress_level=3, pnginfo=notes)
            results.append(Rendered(path, "image/png", width=self.width, height=self.height))
        return results

    def paint(self, number: int, step: Callable[[float, str], None]) -> Image.Image:
        """Paint one poster; ``step`` is told the share done after each strip and may raise to stop."""
        rng = random.Random(f"{self.prompt}|{self.seed}|{number}")  # noqa: S311 - a picture, not a secret
        palette = choose(rng)
        canvas = Image.new("RGB", (self.width, self.height), palette[0])
        strips = _GROUNDS[self.style](canvas, palette, rng)
        count = math.ceil(self.height / STRIP_HEIGHT_PX)
        step(0.0, "render")
        for done, _ in enumerate(strips, start=1):
            step(0.75 * min(done / count, 1.0), "render")
        letters = title(canvas.size, self.prompt, palette)
        canvas.paste(letters, (0, 0), letters)
        return canvas


def prepare(data: Mapping[str, object]) -> Poster:
    """Check a poster's input. Raises ``BadInput``."""
    return Poster(
        prompt=text(data, "prompt", None, 4000),
        n=whole(data, "n", 1, 1, IMAGES_MAX_COUNT),
        width=whole(data, "width", 1024, SIDE_MIN_PX, SIDE_MAX_PX),
        height=whole(data, "height", 1024, SIDE_MIN_PX, SIDE_MAX_PX),
        seed=whole(data, "seed", random.SystemRandom().randrange(2**31), 0, 2**63 - 1),
        style=choice(data, "style", "gradient", STYLES),
    )


def _bands(canvas: Image.Image) -> Iterator[tuple[int, int]]:
    for top in range(0, canvas.height, STRIP_HEIGHT_PX):
        yield top, min(top + STRIP_HEIGHT_PX, canvas.height)


def _stretch(field: Image.Image, canvas: Image.Image, top: int, bottom: int) -> Image.Image:
    """The part of a small field that lies under one strip, at the canvas's scale."""
    scale = field.height / canvas.height
    box = (0.0, top * scale, float(field.width), bottom * scale)
    return field.resize((canvas.width, bottom - top), Image.Resampling.BICUBIC, box=box)


def _mesh(palette: Palette, rng: random.Random) -> Image.Image:
    """A few colours spread softly over a small field, darker towards the bottom where the title stands."""
    side = 4
    dots = Image.new("RGB", (side, side))
    dots.putdata(
        [
            ramp(palette, 0.15 + 0.75 * (1 - row / side) * rng.uniform(0.45, 1.0))
            for row in range(side)
            for _ in range(side)
        ]
    )
    return dots.resize((_FIELD_PX, _FIELD_PX), Image.Resampling.BICUBIC)


def noise(rng: random.Random) -> Image.Image:
    """Smooth grey hills: random dots at several scales, added up."""
    total: Image.Image | None = None
    weight = 0.0
    for side, share in _OCTAVES:
        dots = Image.frombytes("L", (side, side), rng.randbytes(side * side))
        layer = dots.resize((_FIELD_PX, _FIELD_PX), Image.Resampling.BICUBIC)
        weight += share
        total = layer if total is None else Image.blend(total, layer, share / weight)
    assert total is not None
    return ImageOps.autocontrast(total)


def _gradient(canvas: Image.Image, palette: Palette, rng: random.Random) -> Iterator[None]:
    field = _mesh(palette, rng)
    for top, bottom in _bands(canvas):
        canvas.paste(_stretch(field, canvas, top, bottom), (0, top))
        yield


def _plasma(canvas: Image.Image, palette: Palette, rng: random.Random) -> Iterator[None]:
    field = noise(rng)
    turns, phase = rng.uniform(0.7, 1.2), rng.random()
    colours = [ramp(palette, 0.5 - 0.5 * math.cos(math.tau * (turns * v / 255 + phase))) for v in range(256)]
    curves = [[colour[channel] for colour in colours] for channel in range(3)]
    for top, bottom in _bands(canvas):
        grey = _stretch(field, canvas, top, bottom)
        canvas.paste(Image.merge("RGB", [grey.point(curve) for curve in curves]), (0, top))
        yield


def _mosaic(canvas: Image.Image, palette: Palette, rng: random.Random) -> Iterator[None]:
    field, draw, side = _mesh(palette, rng), ImageDraw.Draw(canvas), STRIP_HEIGHT_PX // 8
    for top, bottom in _bands(canvas):
        for y in range(top, bottom, side):
            for x in range(0, canvas.width, side):
                at = (x * _FIELD_PX // canvas.width, y * _FIELD_PX // canvas.height)
                found = field.getpixel(at)
                assert isinstance(found, tuple)
                shade = rng.uniform(0.78, 1.0)
                red, green, blue = (round(part * shade) for part in found)
                draw.rectangle((x, y, x + side - 1, y + side - 1), fill=(red, green, blue))
        yield


_GROUNDS: dict[str, Callable[[Image.Image, Palette, random.Random], Iterator[None]]] = {
    "gradient": _gradient,
    "mosaic": _mosaic,
    "plasma": _plasma,
}
