"""The ``tone`` model: a sequence of notes as WAV, drawn from mood, prompt and seed."""

from __future__ import annotations

import array
import math
import random
import sys
import wave
from typing import Annotated, Literal

import msgspec

from holdfast_emulators.studio.model import OutputFile, Prompt, RenderContext, Seed, finished, new_seed

RATE_HZ = 22_050

Mood = Literal["calm", "bright", "dark", "playful"]

_MOODS: dict[Mood, tuple[tuple[int, ...], float, float]] = {
    "calm": ((0, 2, 4, 7, 9), 72.0, 196.0),
    "bright": ((0, 2, 4, 5, 7, 9, 11), 112.0, 261.63),
    "dark": ((0, 2, 3, 5, 7, 8, 10), 64.0, 146.83),
    "playful": ((0, 2, 4, 7, 9), 132.0, 329.63),
}
"""Scale in semitones, beats a minute, root in hertz."""


class Tone(msgspec.Struct, frozen=True):
    """The input of a tone; each ``voice`` has overtones of its own."""

    prompt: Prompt
    duration: Annotated[float, msgspec.Meta(ge=1, le=60)] = 6.0
    mood: Mood = "calm"
    voice: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\S")] | None = None
    seed: Seed = msgspec.field(default_factory=new_seed)

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Write the notes, one for each beat, fading out."""
        rng = random.Random(f"{self.prompt}|{self.mood}|{self.seed}")  # noqa: S311 - a sound, not a secret
        scale, tempo, root = _MOODS[self.mood]
        overtones = 0.0 if self.voice is None else random.Random(self.voice).uniform(0.5, 3)  # noqa: S311
        beat, total = round(RATE_HZ * 60 / tempo), round(self.duration * RATE_HZ)
        samples = array.array("h")
        while len(samples) < total:
            context.step(0.9 * len(samples) / total, "render")
            turn = math.tau * root * 2 ** (rng.choice(scale) / 12) / RATE_HZ
            for i in range(beat):
                phase = turn * i
                wave_form = math.sin(phase + overtones * math.sin(phase))
                samples.append(int(16_000 * (1 - i / beat) ** 2 * wave_form))
        if sys.byteorder == "big":
            samples.byteswap()
        context.step(0.95, "encode")
        path = context.new_file(".wav")
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(samples[:total].tobytes())
        return [finished(path, duration_s=round(total / RATE_HZ, 3))]
