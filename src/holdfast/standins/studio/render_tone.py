"""The ``tone`` model: a small piece of music as WAV, its key and tempo drawn from mood, words and seed."""

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
    """A piece that passed its checks."""

    prompt: str
    duration_s: float
    mood: str
    seed: int

    def render(self, context: RenderContext) -> list[Rendered]:
        """Compose and write the piece, a beat at a time."""
        rng = random.Random(f"{self.prompt}|{self.mood}|{self.seed}")  # noqa: S311 - music, not a secret
        scale, tempo, root = _MOODS[self.mood]
        beat = round(RATE_HZ * 60 / (tempo * rng.uniform(0.92, 1.08)))
        root *= 2 ** (rng.randrange(-3, 4) / 12)
        total = round(self.duration_s * RATE_HZ)
        mix = array.array("f", bytes(4 * (total + beat * 4)))
        step, place, beats = len(scale), 0, 0
        degree = rng.randrange(step)
        while place < total:
            context.step(0.85 * place / total, "render")
            if beats % 4 == 0:
                chord = rng.choice((0, 3, 4, 5))
                for child_reports_ in (chord, chord + 2):
                    _add(mix, place, _note(_pitch(root / 2, scale, child_reports_), beat * 4, 0.5, 0.16))
            if beats == 0 or rng.random() < 0.8:
                degree = min(max(degree + rng.choice((-2, -1, 1, 1, 2)), -2), step + 3)
                note = _note(_pitch(root, scale, degree), beat, 2.0, 0.3)
                _add(mix, place, note)
                if rng.random() < 0.3:
                    _add(mix, place + beat // 2, note)
            place += beat
            beats += 1
        context.step(0.9, "encode")
        path = context.new_file(".wav")
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(_samples(mix, total))
        return [Rendered(path, "audio/wav", duration_s=round(total / RATE_HZ, 3))]


def prepare(data: Mapping[str, object]) -> Tone:
    """Check a piece's input. Raises ``BadInput``."""
    return Tone(
        prompt=text(data, "prompt", None, 4000),
        duration_s=number(data, "duration", 6.0, 1.0, DURATION_MAX_S),
        mood=choice(data, "mood", "calm", tuple(_MOODS)),
        seed=whole(data, "seed", random.SystemRandom().randrange(2**31), 0, 2**63 - 1),
    )


def _pitch(root: float, scale: tuple[int, ...], degree: int) -> float:
    octave, place = divmod(degree, len(scale))
    return float(root * 2 ** (octave + scale[place] / 12))


def _note(hertz: float, length: int, bite: float, loudness: float) -> list[float]:
    """A note whose brightness and loudness fade together; ``bite`` is how bright it begins."""
    turn = math.tau * hertz / RATE_HZ
    attack = RATE_HZ // 100
    sine, result = math.sin, []
    for i in range(length):
        fade = (1 - i / length) ** 2
        level = loudness * fade * (i / attack if i < attack else 1.0)
        result.append(level * sine(turn * i + bite * fade * sine(2 * turn * i)))
    return result


def _add(mix: array.array[float], place: int, note: list[float]) -> None:
    for i, value in enumerate(note[: max(0, len(mix) - place)], start=place):
        mix[i] += value


def _samples(mix: array.array[float], total: int) -> bytes:
    """16-bit little-endian samples, softly limited, with a short fade at the end."""
    fade = min(total, RATE_HZ // 4)
    limit, samples = math.tanh, array.array("h", bytes(2 * total))
    for i in range(total):
        value = limit(mix[i])
        left = total - i
        samples[i] = int(28_000 * value * (left / fade if left < fade else 1.0))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()
