"""Colours out of words: what a prompt speaks of decides the palette, its seed the rest."""

from __future__ import annotations

import colorsys
import random
import re

Colour = tuple[int, int, int]
Palette = tuple[Colour, ...]
"""Five colours from dark to light."""

_NAMED: dict[str, tuple[str, str]] = {
    "dusk": ("1b1035 5a2a6b c8456b f58a5b ffd9a0", "sunset dusk evening sundown twilight autumn ember"),
    "dawn": ("27304f 6a6fa8 d99bb0 f8c9a8 fff1d6", "dawn morning sunrise spring soft pastel pink rose blossom"),
    "sea": ("04202e 0a4a63 1a86a0 6cc7c9 e4f6ef", "sea ocean water wave waves blue lake river rain ship whale"),
    "wood": ("0c1f17 1f4a32 4d8a4f a8c66c f2efc7", "forest wood woods tree trees green jungle garden leaf moss"),
    "night": ("05060f 141a3a 33407a 8a8fd0 f0e9ff", "night moon star stars space galaxy cosmos dark midnight"),
    "fire": ("1a0505 6b0f12 d1331c f88c22 ffe27a", "fire flame lava volcano red dragon hot desert sun summer"),
    "ice": ("0e1c2b 3b5b78 86aec4 c9e2ea ffffff", "ice snow winter frost arctic cold glacier white silver"),
    "gold": ("1d1408 59400f ad7f1d e2bb52 fbf0c9", "gold golden honey brass amber royal crown wheat"),
    "neon": ("0a0416 3a0ca3 d100d1 00c2ff f3ffae", "neon city cyber cyberpunk robot future electric arcade synth"),
    "earth": ("201510 5a3a28 a2694a d3a882 f5e6d3", "earth clay coffee chocolate leather canyon brown stone"),
}


def words(prompt: str) -> list[str]:
    """The prompt's words in lower case."""
    return re.findall(r"[^\W_]+", prompt.lower())


def choose(prompt: str, rng: random.Random) -> Palette:
    """The palette whose words the prompt uses most; a drawn harmony where it uses none."""
    said = words(prompt)
    scores = {name: sum(word in known.split() for word in said) for name, (_, known) in _NAMED.items()}
    best = max(scores.values())
    if best:
        name = rng.choice([name for name, score in scores.items() if score == best])
        return tuple(_from_hex(code) for code in _NAMED[name][0].split())
    return _harmony(rng)


def blend(a: Colour, b: Colour, share: float) -> Colour:
    """The colour ``share`` of the way from ``a`` to ``b``."""
    return (
        round(a[0] + (b[0] - a[0]) * share),
        round(a[1] + (b[1] - a[1]) * share),
        round(a[2] + (b[2] - a[2]) * share),
    )


def ramp(palette: Palette, at: float) -> Colour:
    """The colour at 0 (dark) to 1 (light) along the palette."""
    place = min(max(at, 0.0), 1.0) * (len(palette) - 1)
    low = min(int(place), len(palette) - 2)
    return blend(palette[low], palette[low + 1], place - low)


def _from_hex(code: str) -> Colour:
    return int(code[0:2], 16), int(code[2:4], 16), int(code[4:6], 16)


def _harmony(rng: random.Random) -> Palette:
    hue, turn = rng.random(), rng.choice((0.08, 0.12, 0.33, 0.5))
    steps = ((0.12, 0.55, 0.0), (0.32, 0.7, 0.3), (0.6, 0.75, 0.7), (0.82, 0.5, 1.0), (0.97, 0.18, 1.0))
    drawn = []
    for value, saturation, along in steps:
        red, green, blue = colorsys.hsv_to_rgb((hue + turn * along) % 1, saturation, value)
        drawn.append((round(red * 255), round(green * 255), round(blue * 255)))
    return tuple(drawn)
