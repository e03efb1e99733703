"""The ``poster`` model: a ground in one of three styles, with the prompt on it.

Everything is drawn from a generator seeded with prompt, seed and number, so that equal inputs give equal pixels
under one Pillow version. A ground is painted in strips: progress counts them, and a cancellation takes effect
between them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from holdfast.standins.studio.drawing import STYLES, Ground, draw_title
from holdfast.standins.studio.model import RenderContext, Rendered, choice, text, whole

SIDE_MIN_PX = 64
SIDE_MAX_PX = 2048
IMAGES_MAX_COUNT = 8
STRIP_HEIGHT_PX = 128


@dataclass(frozen=True, slots=True)
class Poster:
    """The checked input of a poster."""

    prompt: str
    n: int
    width: int
    height: int
    seed: int
    style: str

    def render(self, context: RenderContext) -> list[Rendered]:
        """Paint ``n`` different posters."""
        results = []
        for number in range(self.n):

            def step(done: float, stage: str, number: int = number) -> None:
                context.step((number + done) / self.n, stage)

            image = self._paint(number, step)
            step(0.9, "encode")
            path = context.new_file(".png")
            notes = PngInfo()
            notes.add_itxt("Description", self.prompt)
            notes.add_text("Comment", f"seed={self.seed} number={number} style={self.style}")
            image.save(path, "PNG", compress_level=3, pnginfo=notes)
            results.append(Rendered(path, "image/png", width=self.width, height=self.height))
        return results

    def _paint(self, number: int, step: Callable[[float, str], None]) -> Image.Image:
        ground = Ground(random.Random(f"{self.prompt}|{self.seed}|{number}"), self.style)  # noqa: S311
        image = Image.new("RGB", (self.width, self.height))
        count = math.ceil(self.height / STRIP_HEIGHT_PX)
        for index in range(count):
            step(0.75 * index / count, "render")
            top = index * STRIP_HEIGHT_PX
            image.paste(ground.strip(image.size, top, min(top + STRIP_HEIGHT_PX, self.height)), (0, top))
        step(0.75, "render")
        draw_title(image, self.prompt, ground)
        return image


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
