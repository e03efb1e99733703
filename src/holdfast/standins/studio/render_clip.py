"""The ``clip`` model: a poster that moves, as WebM. Each frame is a lossy WebP picture, thus a VP8 key frame."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from PIL import Image, ImageDraw

from holdfast.standins.studio.lettering import title
from holdfast.standins.studio.model import RenderContext, Rendered, choice, number, text, whole
from holdfast.standins.studio.palettes import choose, ramp
from holdfast.standins.studio.render_image import noise
from holdfast.standins.studio.webm import vp8_frame, write_webm

SIZES = {"360p": (640, 360), "480p": (854, 480), "720p": (1280, 720)}
FRAMES_PER_S = 12
DURATION_MAX_S = 12
AUTO_DURATION_S = 4.0
QUALITY = 62


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip that passed its checks."""

    prompt: str
    duration_s: float
    resolution: str
    seed: int

    def render(self, context: RenderContext) -> list[Rendered]:
        """Draw and encode a frame at a time."""
        rng = random.Random(f"{self.prompt}|{self.seed}|clip")  # noqa: S311 - a picture, not a secret
        palette = choose(rng)
        size = SIZES[self.resolution]
        letters = title(size, self.prompt, palette)
        hills = noise(rng).resize(size, Image.Resampling.BICUBIC)
        colours = [ramp(palette, 0.1 + 0.6 * (0.5 - 0.5 * math.cos(math.tau * v / 256))) for v in range(256)]
        count = max(1, round(self.duration_s * FRAMES_PER_S))
        turns = max(1, round(self.duration_s / 6))
        frames = []
        for index in range(count):
            context.step(0.95 * index / count, "render")
            turn = round(256 * turns * index / count)
            curves = [[colours[(v + turn) % 256][channel] for v in range(256)] for channel in range(3)]
            frame = Image.merge("RGB", [hills.point(curve) for curve in curves])
            frame.paste(letters, (0, 0), letters)
            _bar(frame, (index + 1) / count, palette[-1])
            encoded = io.BytesIO()
            frame.save(encoded, "WEBP", quality=QUALITY, method=0)
            frames.append(vp8_frame(encoded.getvalue()))
        context.step(0.96, "encode")
        path = context.new_file(".webm")
        path.write_bytes(write_webm(frames, *size, FRAMES_PER_S))
        return [
            Rendered(path, "video/webm", width=size[0], height=size[1], duration_s=round(count / FRAMES_PER_S, 3))
        ]


def prepare(data: Mapping[str, object]) -> Clip:
    """Check a clip's input. Raises ``BadInput``."""
    automatic = data.get("duration") == "auto"
    return Clip(
        prompt=text(data, "prompt", None, 4000),
        duration_s=AUTO_DURATION_S if automatic else number(data, "duration", 4.0, 1.0, DURATION_MAX_S),
        resolution=choice(data, "resolution", "360p", tuple(SIZES)),
        seed=whole(data, "seed", random.SystemRandom().randrange(2**31), 0, 2**63 - 1),
    )


def _bar(frame: Image.Image, done: float, colour: tuple[int, int, int]) -> None:
    thick = max(2, frame.height // 120)
    ImageDraw.Draw(frame).rectangle((0, frame.height - thick, round(frame.width * done), frame.height), fill=colour)
