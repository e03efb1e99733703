"""Setting type on a picture with the typeface that comes with Pillow."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont, ImageStat

from holdfast.providers.studio.palettes import Palette

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
    return " ".join(
        "".join(
            char if " " <= char <= "~" else " "
            for char in folded
            if ord(char) < 0x300 or not unicodedata.combining(char)
        ).split()
    )


def wrap(words: list[str], size_px: int, width_px: float) -> list[str] | None:
    """Lines no wider than ``width_px``; None where one word alone is wider."""
    face, lines = font(size_px), [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if face.getlength(longer) <= width_px:
            lines[-1] = longer
        elif face.getlength(word) > width_px:
            return None
        else:
            lines.append(word)
    return lines


def set_title(canvas: Image.Image, prompt: str, caption: str | None, palette: Palette) -> None:
    """Set the prompt bottom left, as large as it fits, on a darkened foot; a small caption stands on top."""
    width, height = canvas.size
    margin = round(min(width, height) * 0.07)
    title = plain(prompt)
    if len(title) > TITLE_MAX_CHARS:
        title = title[:TITLE_MAX_CHARS].rsplit(" ", 1)[0] + "…"
    small = max(TYPE_MIN_PX, round(min(width, height) * 0.02))
    light = palette[-1]
    foot = Image.linear_gradient("L").resize((width, round(height * 0.55))).point(lambda v: v * 0.8)
    canvas.paste(palette[0], (0, height - foot.height), foot)
    pen = ImageDraw.Draw(canvas)
    fitted = _fit(title.split(), width - 2 * margin, height * 0.36, round(height * 0.13))
    if fitted is None:
        return
    size, lines = fitted
    leading = round(size * 1.06)
    top = height - margin - leading * len(lines)
    for line in lines:
        pen.text((margin, top), line, fill=light, font=font(size))
        top += leading
    if caption is not None and min(width, height) >= 240:
        rule = margin + round(small * 1.1)
        band = canvas.crop((margin, margin - small // 2, width - margin, rule)).convert("L").reduce(4)
        ink = palette[0] if ImageStat.Stat(band).mean[0] > 120 else light
        pen.text((margin, margin - small // 2), caption, fill=ink, font=font(small))
        pen.line((margin, rule, width - margin, rule), fill=ink, width=max(1, round(min(width, height) / 700)))


def _fit(words: list[str], width: float, height: float, largest: int) -> tuple[int, list[str]] | None:
    """The largest size, with its lines, at which the words stay inside; None where no size will do."""
    size = max(largest, TYPE_MIN_PX)
    while words and size >= TYPE_MIN_PX:
        lines = wrap(words, size, width)
        if lines is not None and len(lines) * size * 1.06 <= height:
            return size, lines
        size = size - 1 if size < 16 else round(size * 0.92)
    return None
