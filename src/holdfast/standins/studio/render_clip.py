"""The ``clip`` model: a poster whose ground moves, as WebM. A frame is a lossy WebP image, thus a VP8 key frame."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from dataclasses import dataclass

from PIL import ImageChops, ImageDraw

from holdfast.standins.studio.drawing import Ground, draw_title
from holdfast.standins.studio.model import RenderContext, Rendered, choice, number, text, whole
from holdfast.standins.studio.webm import vp8_frame, write_webm

SIZES = {"360p": (640, 360), "480p": (854, 480), "720p": (1280, 720)}
FRAMES_PER_S = 12
DURATION_MAX_S = 12
AUTO_DURATION_S = 4.0
QUALITY = 62


@dataclass(frozen=True, slots=True)
class Clip:
    """The checked input of a clip."""

    prompt: str
    duration_s: float
    resolution: str
    seed: int

    def render(self, context: RenderContext) -> list[Rendered]:
        """Draw and encode frame by frame."""
        size = width, height = SIZES[self.resolution]
        ground = Ground(random.Random(f"{self.prompt}|{self.seed}|clip"), "plasma")  # noqa: S311
        still = ground.strip(size, 0, height)
        count = max(1, round(self.duration_s * FRAMES_PER_S))
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
        duration_s = round(count / FRAMES_PER_S, 3)
        return [Rendered(path, "video/webm", width=width, height=height, duration_s=duration_s)]


def prepare(data: Mapping[str, object]) -> Clip:
    """Check a clip's input. Raises ``BadInput``."""
    automatic = data.get("duration") == "auto"
    return Clip(
        prompt=text(data, "prompt", None, 4000),
        duration_s=AUTO_DURATION_S if automatic else number(data, "duration", 4.0, 1.0, DURATION_MAX_S),
        resolution=choice(data, "resolution", "360p", tuple(SIZES)),
        seed=whole(data, "seed", random.SystemRandom().randrange(2**31), 0, 2**63 - 1),
    )
