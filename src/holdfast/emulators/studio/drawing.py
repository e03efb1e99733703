"""Draw a ground in the colours of a seed, and a prompt on it in the typeface that comes with Pillow."""

from __future__ import annotations

import colorsys
import random
import textwrap
import unicodedata
from functools import lru_cache
from typing import Final, Literal

from PIL import Image, ImageDraw, ImageFont

Style = Literal["gradient", "mosaic", "plasma"]
TITLE_MAX_CHARS: Final = 72
TYPE_MIN_PX: Final = 9

_DOTS: Final[dict[Style, int]] = {"gradient": 4, "mosaic": 24, "plasma": 9}
"""How many dots of colour a side of each style's ground has."""


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
            place = (margin, height - margin - size_px * 1.06 * len(lines))
            ImageDraw.Draw(image).multiline_text(
                place, "\n".join(lines), ground.light, face, spacing=1, stroke_width=1, stroke_fill=ground.dark
            )
            return


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)
