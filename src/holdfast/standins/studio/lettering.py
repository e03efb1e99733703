"""Setting type on a picture with the typeface that comes with Pillow."""

from __future__ import annotations

import textwrap
import unicodedata
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from holdfast.standins.studio.palettes import Palette

TITLE_MAX_CHARS = 72
TYPE_MIN_PX = 9

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache(maxsize=64)
def font(size_px: int) -> Font:
    """The built-in typeface at a size."""
    return ImageFont.load_default(size_px)


def plain(prompt: str) -> str:
    """The part of a text that the typeface can show: accents folded, other scripts left out, blanks joined."""
    folded = unicodedata.normalize("NFKD", prompt)
    shown = (char if " " <= char <= "~" else " " for char in folded if not unicodedata.combining(char))
    return " ".join("".join(shown).split())


def title(size: tuple[int, int], prompt: str, palette: Palette) -> Image.Image:
    """The prompt in type on a darkened foot, to be laid over a picture of this size; clear everywhere else."""
    width, height = size
    foot = Image.linear_gradient("L").resize((width, round(height * 0.55))).point(lambda v: v * 0.8)
    dark = Image.new("L", size, 0)
    dark.paste(foot, (0, height - foot.height))
    layer = Image.new("RGB", size, palette[0])
    layer.putalpha(dark)
    margin = round(min(width, height) * 0.07)
    words = textwrap.shorten(plain(prompt), TITLE_MAX_CHARS, placeholder=" ...")
    for size_px in range(max(round(height * 0.13), TYPE_MIN_PX), TYPE_MIN_PX - 1, -2):
        face = font(size_px)
        lines = textwrap.wrap(words, max(1, round((width - 2 * margin) / face.getlength("n"))))
        fits = all(face.getlength(line) <= width - 2 * margin for line in lines)
        if fits and len(lines) * size_px * 1.06 <= height * 0.36:
            at = (margin, height - margin - size_px * 1.06 * len(lines))
            ImageDraw.Draw(layer).multiline_text(at, "\n".join(lines), (*palette[-1], 255), face, spacing=1)
            break
    return layer
