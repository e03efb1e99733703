"""Five colours that go together, drawn by a seeded generator."""

from __future__ import annotations

import colorsys
import random

Colour = tuple[int, int, int]
Palette = tuple[Colour, ...]
"""Five colours from dark to light."""

_STEPS = ((0.12, 0.55, 0.0), (0.32, 0.7, 0.3), (0.6, 0.75, 0.7), (0.82, 0.5, 1.0), (0.97, 0.18, 1.0))
"""Value, saturation, and how far along the turn of hue, of each colour."""


def choose(rng: random.Random) -> Palette:
    """A palette around a drawn hue."""
    hue, turn = rng.random(), rng.choice((0.08, 0.12, 0.33, 0.5))
    drawn = []
    for value, saturation, along in _STEPS:
        red, green, blue = colorsys.hsv_to_rgb((hue + turn * along) % 1, saturation, value)
        drawn.append((round(red * 255), round(green * 255), round(blue * 255)))
    return tuple(drawn)


def ramp(palette: Palette, at: float) -> Colour:
    """The colour at 0 (dark) to 1 (light) along the palette."""
    place = min(max(at, 0.0), 1.0) * (len(palette) - 1)
    low = min(int(place), len(palette) - 2)
    a, b, share = palette[low], palette[low + 1], place - low
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue
