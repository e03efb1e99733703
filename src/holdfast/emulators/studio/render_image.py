"""The ``poster`` model: a ground in one of three styles, with the prompt on it.

Everything is drawn from a generator seeded with prompt, seed and number, so that equal inputs give equal pixels
under one Pillow version.
"""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
from PIL.PngImagePlugin import PngInfo

from holdfast.emulators.studio.drawing import Ground, Style, draw_title
from holdfast.emulators.studio.model import OutputFile, Prompt, RenderContext, Seed, finished, new_seed

Side = Annotated[int, msgspec.Meta(ge=64, le=2048)]


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
