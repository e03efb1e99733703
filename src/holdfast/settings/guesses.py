"""The program that estimates how hard texts are to guess: ``python -m holdfast.settings.guesses``.

It reads a list of texts as JSON and writes a list of as many estimates. It is a process of its own, because its
lists of words take 15 MB, of which a service keeps three when it has freed them.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from zxcvbn import zxcvbn  # type: ignore[import-untyped]

WORD_CHARS_MIN: Final = 4
"""Shorter words are frequent in random texts."""


def estimate(text: str) -> tuple[float, float]:
    """Return how many guesses find a text, as a logarithm to the base of 10, and which share of it is words."""
    found = zxcvbn(text)
    words = (part["token"] for part in found["sequence"] if part["pattern"] == "dictionary")
    word_chars = sum(len(word) for word in words if len(word) >= WORD_CHARS_MIN)
    return found["guesses_log10"], word_chars / len(text)


if __name__ == "__main__":
    json.dump([estimate(text) for text in json.load(sys.stdin)], sys.stdout)
