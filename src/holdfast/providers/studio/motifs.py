"""Simple figures a prompt may ask for by word: sun and moon, mountains, waves, trees, a skyline, stars, or rings.

Each is drawn as a mask at twice the size and halved, which smooths its edges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from PIL import Image, ImageDraw

from holdfast.providers.studio.palettes import Colour, Palette, blend, ramp, words

_OVER = 2

Draw = Callable[[ImageDraw.ImageDraw, int, int], None]


def draw_motif(canvas: Image.Image, prompt: str, palette: Palette, rng: random.Random) -> None:
    """Lay what the prompt names upon the canvas, far things first; rings where it names nothing known."""
    said = set(words(prompt))
    wanted = [figure for known, figure in _FIGURES if said & known]
    for figure in wanted or [_rings]:
        figure(canvas, palette, rng)


def _lay(canvas: Image.Image, colour: Colour, strength: float, draw: Draw) -> None:
    width, height = canvas.width * _OVER, canvas.height * _OVER
    mask = Image.new("L", (width, height), 0)
    draw(ImageDraw.Draw(mask, "L"), width, height)
    fine = mask.reduce(_OVER)
    canvas.paste(colour, (0, 0), fine if strength >= 1 else fine.point(lambda v: v * strength))


def _disc(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    x, y, r = rng.uniform(0.3, 0.7), rng.uniform(0.26, 0.36), rng.uniform(0.15, 0.21)

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        radius = r * min(width, height)
        pen.ellipse((x * width - radius, y * height - radius, x * width + radius, y * height + radius), fill=255)

    _lay(canvas, palette[-1], 0.94, draw)


def _stars(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    dots = [(rng.random(), rng.random() ** 1.4 * 0.8, rng.uniform(0.0008, 0.0035)) for _ in range(140)]

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        for x, y, r in dots:
            radius = max(r * min(width, height), _OVER * 0.6)
            pen.ellipse(
                (x * width - radius, y * height - radius, x * width + radius, y * height + radius), fill=255
            )

    _lay(canvas, palette[-1], 0.85, draw)


def _mountains(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    for layer in range(3):
        foot = 0.5 + 0.13 * layer
        peaks = [(i / 8, foot - (rng.uniform(0.04, 0.24 - 0.05 * layer) if i % 2 else -0.03)) for i in range(10)]
        shift = rng.uniform(-0.12, 0.0)

        def draw(
            pen: ImageDraw.ImageDraw,
            width: int,
            height: int,
            peaks: list[tuple[float, float]] = peaks,
            shift: float = shift,
        ) -> None:
            ridge = [((x * 1.15 + shift) * width, y * height) for x, y in peaks]
            pen.polygon([(-width, height), (-width, ridge[0][1]), *ridge, (2 * width, height)], fill=255)

        _lay(canvas, blend(ramp(palette, 0.55), palette[0], 0.35 + 0.3 * layer), 1, draw)


def _waves(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    for layer in range(4):
        level, swell = 0.56 + 0.1 * layer, rng.uniform(0.012, 0.03)
        count, phase = rng.uniform(1.4, 3.2), rng.random() * math.tau
        line = [(i / 96, level + swell * math.sin(math.tau * count * i / 96 + phase)) for i in range(97)]

        def draw(
            pen: ImageDraw.ImageDraw,
            width: int,
            height: int,
            line: list[tuple[float, float]] = line,
        ) -> None:
            crest = [(x * width, y * height) for x, y in line]
            pen.polygon([(0, height), *crest, (width, height)], fill=255)

        _lay(canvas, ramp(palette, 0.62 - 0.17 * layer), 0.88, draw)


def _trees(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    for layer in range(2):
        pines = [(rng.random(), rng.uniform(0.14, 0.3), 0.66 + 0.14 * layer) for _ in range(26)]

        def draw(
            pen: ImageDraw.ImageDraw,
            width: int,
            height: int,
            pines: list[tuple[float, float, float]] = pines,
        ) -> None:
            for x, tall, foot in pines:
                for tier in range(3):
                    top, half = (foot - tall * (1 - tier * 0.25)) * height, tall * (0.1 + 0.06 * tier) * height
                    base = top + tall * 0.5 * height
                    pen.polygon([(x * width, top), (x * width - half, base), (x * width + half, base)], fill=255)
            pen.rectangle((0, min(foot for _, _, foot in pines) * height - 0.01 * height, width, height), fill=255)

        _lay(canvas, blend(palette[1], palette[0], 0.25 + 0.5 * layer), 1, draw)


def _skyline(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    for layer in range(2):
        left, towers = -0.02, []
        while left < 1:
            wide = rng.uniform(0.035, 0.1)
            towers.append((left, wide, rng.uniform(0.4, 0.68) + 0.1 * layer))
            left += wide

        def draw(
            pen: ImageDraw.ImageDraw,
            width: int,
            height: int,
            towers: list[tuple[float, float, float]] = towers,
        ) -> None:
            for x, wide, top in towers:
                pen.rectangle((x * width, top * height, (x + wide) * width, height), fill=255)

        _lay(canvas, blend(palette[1], palette[0], 0.2 + 0.6 * layer), 1, draw)


def _rings(canvas: Image.Image, palette: Palette, rng: random.Random) -> None:
    x, y = rng.uniform(0.25, 0.75), rng.uniform(0.2, 0.4)
    circles = [(0.07 + 0.065 * i, rng.uniform(0, 360), rng.uniform(90, 300)) for i in range(5)]

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        unit = min(width, height)
        for r, start, sweep in circles:
            box = (x * width - r * unit, y * height - r * unit, x * width + r * unit, y * height + r * unit)
            pen.arc(box, start, start + sweep, fill=255, width=max(1, round(0.022 * unit)))

    _lay(canvas, palette[-1], 0.8, draw)


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_FIGURES: tuple[tuple[frozenset[str], Callable[[Image.Image, Palette, random.Random], None]], ...] = (
    (_words("star stars night galaxy space cosmos midnight sky snow"), _stars),
    (_words("sun moon sunset sunrise planet dusk dawn eclipse evening morning desert"), _disc),
    (_words("mountain mountains hill hills alps peak peaks volcano glacier canyon summit"), _mountains),
    (_words("sea ocean wave waves lake river water harbour harbor ship beach coast"), _waves),
    (_words("tree trees forest wood woods jungle pine pines"), _trees),
    (_words("city skyline town tower towers neon cyberpunk street metropolis"), _skyline),
)
