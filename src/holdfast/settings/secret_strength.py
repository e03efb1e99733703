"""How hard a secret is to guess: production refuses to start with a weak one."""

from __future__ import annotations

import base64
import re
import sys
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Final

CHARS_MIN: Final = 32
GUESSES_LOG10_MIN: Final = 27.0
"""About 90 bits. 32 random hexadecimal digits exceed it; words, dates and padded patterns do not."""

CHARS_ESTIMATED_MAX: Final = 72
"""Only this many characters are estimated: more characters never make a secret weaker."""

EXAMPLES: Final = frozenset(
    {
        "an-example-secret-of-32-characters",
        "an-example-the-box-shows-to-us",
        "r8_an-example",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_YW4tZXhhbXBsZS1zZWNyZXQtb2YtMzItYnl0ZXMu",
    }
)
"""The secrets printed in the documentation."""

WORD_CHARS_MIN: Final = 4
WORDS_SHARE_MAX: Final = 1 / 3
"""Words of so many letters are rarely a quarter of a random secret, and about half of a phrase."""

_PREFIX = re.compile(r"(?:whsec_|[a-z0-9]{1,4}_(?:live_|test_)?)", re.ASCII)
_WORD = r"(?:[A-Z]?[a-z]+|[A-Z]+|[0-9]{1,4})"
_PHRASE = re.compile(
    rf"(?:{_WORD}[^A-Za-z0-9]+){{2,}}{_WORD}?|(?:{_WORD})?(?:[A-Z][a-z]{{2,}}[0-9]{{0,4}}){{3,}}", re.ASCII
)
"""Words in any language, between other characters or each with a capital."""


def weakness(secret: str, *, chars_min: int = CHARS_MIN) -> str | None:
    """Return why a secret is weak, as the end of a sentence that does not contain it; None if it is strong.

    A prefix that names the kind of secret, such as ``whsec_``, is not counted.
    """
    if secret in EXAMPLES:
        return "is an example from the documentation; generate a new one"
    prefix = _PREFIX.match(secret)
    random_part = secret[prefix.end() :] if prefix else secret
    if (
        len(random_part) < chars_min
        or _is_sequence(random_part)
        or _PHRASE.fullmatch(random_part)
        or _is_guessable(random_part, GUESSES_LOG10_MIN * min(1.0, chars_min / CHARS_MIN))
    ):
        return f"is too weak; give at least {chars_min} random characters"
    return None


def forget_words() -> None:
    """Free the lists of words, 15 MB. The next secret that is estimated loads them again."""
    # A copy of the names: another thread may load a module meanwhile.
    for name in [each for each in list(sys.modules) if each.partition(".")[0] == "zxcvbn"]:
        vars(sys.modules.pop(name)).clear()  # its functions would keep it until they are collected


def is_plainly_weak(secret: str) -> bool:
    """A cheap check for development: short, an example, or a few characters repeated."""
    return len(secret) < CHARS_MIN or len(set(secret)) < 8 or secret in EXAMPLES


def _is_sequence(text: str) -> bool:
    """Whether the text encodes bytes in equal steps, as test vectors do: 00 01 02 and so on."""
    for decode in (bytes.fromhex, partial(base64.b64decode, validate=True)):
        with suppress(ValueError):
            data = decode(text)
            if len({(after - before) % 256 for before, after in pairwise(data)}) <= 1:
                return True
    return False


def _is_guessable(text: str, guesses_log10_min: float) -> bool:
    # Imported here: its lists of words take a quarter of a second to load, and only production uses them.
    from zxcvbn import zxcvbn  # type: ignore[import-untyped]

    estimated = text[:CHARS_ESTIMATED_MAX]
    found = zxcvbn(estimated)
    words = (part["token"] for part in found["sequence"] if part["pattern"] == "dictionary")
    word_chars = sum(len(word) for word in words if len(word) >= WORD_CHARS_MIN)
    return found["guesses_log10"] < guesses_log10_min or word_chars > WORDS_SHARE_MAX * len(estimated)
