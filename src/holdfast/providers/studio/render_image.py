"""The ``poster`` model: a ground in one of three styles, a motif the prompt asks for, and the prompt set in type.

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

from holdfast.providers.studio.craft import Bench, Rendered, choice, text, whole
from holdfast.providers.studio.lettering import set_title
from holdfast.providers.studio.motifs import draw_motif
from holdfast.providers.studio.palettes import Palette, blend, choose, ramp

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

    def render(self, bench: Bench) -> list[Rendered]:
        """Paint ``n`` posters, each a variation of its own."""
        results = []
        for number in range(self.n):

            def step(done: float, stage: str, number: int = number) -> None:
                bench.step((number + done) / self.n, stage)

            image = self.paint(number, step)
            step(0.9, "encode")
            path = bench.new_file(".png")
            notes = PngInfo()
            notes.add_itxt("Description", self.prompt)
            notes.add_text("Comment", f"seed={self.seed} number={number} style={self.style}")
            image.save(path, "PNG", compress_level=3, pnginfo=notes)
            results.append(Rendered(path, "image/png", width=self.width, height=self.height))
        return results

    def paint(self, number: int, step: Callable[[float, str], None]) -> Image.Image:
        """Paint one poster; ``step`` is told the share done after each strip and may raise to stop."""
        rng = random.Random(f"{self.prompt}|{self.seed}|{number}")  # noqa: S311 - a picture, not a secret
        palette = choose(self.prompt, rng)
        canvas = Image.new("RGB", (self.width, self.height), palette[0])
        strips = _GROUNDS[self.style](canvas, palette, rng)
        count = math.ceil(self.height / STRIP_HEIGHT_PX)
        step(0.0, "render")
        for done, _ in enumerate(strips, start=1):
            step(0.6 * min(done / count, 1.0), "render")
        draw_motif(canvas, self.prompt, palette, rng)
        step(0.75, "render")
        set_title(canvas, self.prompt, f"{self.style} · {self.seed}", palette)
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
    field = dots.resize((_FIELD_PX, _FIELD_PX), Image.Resampling.BICUBIC)
    spread = round(_FIELD_PX * rng.uniform(0.7, 1.3))
    glow = (
        ImageOps.invert(Image.radial_gradient("L")).resize((spread, spread)).point(lambda v: max(0, v - 128) * 1.2)
    )
    at = (round(rng.uniform(-0.2, 0.6) * _FIELD_PX), round(rng.uniform(-0.3, 0.2) * _FIELD_PX))
    field.paste(palette[-1], (at[0], at[1], at[0] + spread, at[1] + spread), glow)
    return field


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
    field = _mesh(palette, rng)
    draw = ImageDraw.Draw(canvas)
    rows = max(4, math.ceil(canvas.height / STRIP_HEIGHT_PX) * 2)
    tile = canvas.height / rows
    columns = max(2, math.ceil(canvas.width / tile))
    wide = canvas.width / columns

    def corner(column: int, row: int) -> tuple[float, float]:
        sway = 0.0 if column in (0, columns) else rng.uniform(-0.34, 0.34)
        heave = 0.0 if row in (0, rows) else rng.uniform(-0.34, 0.34)
        return (column + sway) * wide, (row + heave) * tile

    above = [corner(column, 0) for column in range(columns + 1)]
    for row in range(rows):
        below = [corner(column, row + 1) for column in range(columns + 1)]
        for column in range(columns):
            a, b, c, d = above[column], above[column + 1], below[column + 1], below[column]
            halves = ((a, b, c), (a, c, d)) if rng.random() < 0.5 else ((a, b, d), (b, c, d))
            for half in halves:
                x = sum(point[0] for point in half) / 3 / canvas.width * _FIELD_PX
                y = sum(point[1] for point in half) / 3 / canvas.height * _FIELD_PX
                found = field.getpixel((min(int(x), _FIELD_PX - 1), min(int(y), _FIELD_PX - 1)))
                assert isinstance(found, tuple)
                ground = (int(found[0]), int(found[1]), int(found[2]))
                shade = palette[-1] if rng.random() < 0.5 else palette[0]
                draw.polygon(half, fill=blend(ground, shade, rng.uniform(0.0, 0.22)))
        above = below
        if row % 2:
            yield
    if rows % 2:
        yield


_GROUNDS: dict[str, Callable[[Image.Image, Palette, random.Random], Iterator[None]]] = {
    "gradient": _gradient,
    "mosaic": _mosaic,
    "plasma": _plasma,
}
