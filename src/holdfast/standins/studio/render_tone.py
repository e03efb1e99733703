"""The ``tone`` model: a sequence of notes as WAV, drawn from mood, prompt and seed."""

from __future__ import annotations

import array
import math
import random
import sys
import wave
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.standins.studio.model import RenderContext, Rendered, choice, number, text, whole

RATE_HZ = 22_050
DURATION_MAX_S = 60

_MOODS: dict[str, tuple[tuple[int, ...], float, float]] = {
    "calm": ((0, 2, 4, 7, 9), 72.0, 196.0),
    "bright": ((0, 2, 4, 5, 7, 9, 11), 112.0, 261.63),
    "dark": ((0, 2, 3, 5, 7, 8, 10), 64.0, 146.83),
    "playful": ((0, 2, 4, 7, 9), 132.0, 329.63),
}
"""Scale in semitones, beats a minute, root in hertz."""


@dataclass(frozen=True, slots=True)
class Tone:
    """The checked input of a tone."""

    prompt: str
    duration_s: float
    mood: str
    seed: int

    def render(self, context: RenderContext) -> list[Rendered]:
        """Write the notes, one for each beat, fading out."""
        rng = random.Random(f"{self.prompt}|{self.mood}|{self.seed}")  # noqa: S311 - a sound, not a secret
        scale, tempo, root = _MOODS[self.mood]
        beat, total = round(RATE_HZ * 60 / tempo), round(self.duration_s * RATE_HZ)
        samples = array.array("h")
        while len(samples) < total:
            context.step(0.9 * len(samples) / total, "render")
            turn = math.tau * root * 2 ** (rng.choice(scale) / 12) / RATE_HZ
            samples.extend(int(16_000 * (1 - i / beat) ** 2 * math.sin(turn * i)) for i in range(beat))
        if sys.byteorder == "big":
            samples.byteswap()
        context.step(0.95, "encode")
        path = context.new_file(".wav")
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(samples[:total].tobytes())
        return [Rendered(path, "audio/wav", duration_s=round(total / RATE_HZ, 3))]


def prepare(data: Mapping[str, object]) -> Tone:
    """Check a tone's input. Raises ``BadInput``."""
    return Tone(
        prompt=text(data, "prompt", None, 4000),
        duration_s=number(data, "duration", 6.0, 1.0, DURATION_MAX_S),
        mood=choice(data, "mood", "calm", tuple(_MOODS)),
        seed=whole(data, "seed", random.SystemRandom().randrange(2**31), 0, 2**63 - 1),
    )
