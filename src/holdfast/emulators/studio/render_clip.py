"""The ``clip`` model: a poster whose ground moves, as WebM. A frame is a lossy WebP image, thus a VP8 key frame."""

from __future__ import annotations

import io
import random
from typing import Annotated, Literal

import msgspec
from PIL import ImageChops, ImageDraw

from holdfast.emulators.studio.drawing import Ground, draw_title
from holdfast.emulators.studio.model import OutputFile, Prompt, RenderContext, Seed, finished, new_seed
from holdfast.emulators.studio.webm import vp8_frame, write_webm

SIZES = {"360p": (640, 360), "480p": (854, 480), "720p": (1280, 720)}
FRAMES_PER_S = 12
AUTO_DURATION_S = 4.0
QUALITY = 62


class Clip(msgspec.Struct, frozen=True):
    """The input of a clip."""

    prompt: Prompt
    duration: Annotated[float, msgspec.Meta(ge=1, le=12)] | Literal["auto"] = AUTO_DURATION_S
    resolution: Literal["360p", "480p", "720p"] = "360p"
    seed: Seed = msgspec.field(default_factory=new_seed)

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Draw and encode frame by frame."""
        size = width, height = SIZES[self.resolution]
        ground = Ground(random.Random(f"{self.prompt}|{self.seed}|clip"), "plasma")  # noqa: S311
        still = ground.paint(size)
        count = round((AUTO_DURATION_S if self.duration == "auto" else self.duration) * FRAMES_PER_S)
        frames = []
        for index in range(count):
            context.step(0.95 * index / count, "render")
            frame = ImageChops.offset(still, round(width * index / count), 0)
            draw_title(frame, self.prompt, ground)
            bar = (0, height - height // 120, round(width * (index + 1) / count), height)
            ImageDraw.Draw(frame).rectangle(bar, fill=ground.light)
            encoded = io.BytesIO()
            frame.save(encoded, "WEBP", quality=QUALITY, method=0)
            frames.append(vp8_frame(encoded.getvalue()))
        context.step(0.96, "encode")
        path = context.new_file(".webm")
        path.write_bytes(write_webm(frames, width, height, FRAMES_PER_S))
        return [finished(path, width=width, height=height, duration_s=round(count / FRAMES_PER_S, 3))]
