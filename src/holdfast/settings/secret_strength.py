"""How hard a secret is to guess: production refuses to start with a weak one."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

import msgspec

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

WORDS_SHARE_MAX: Final = 1 / 3
"""Words are rarely a quarter of a random secret, and about half of a phrase."""

ESTIMATE_S: Final = 30.0
"""For each secret; one takes a tenth of a second on a machine that has nothing else to do."""
ESTIMATES_MAX: Final = 16
"""So many sets of secrets are not estimated again."""

Candidate = tuple[str, int]
"""A secret, and how many random characters it must have."""

_PREFIX = re.compile(r"(?:whsec_|[a-z0-9]{1,4}_(?:live_|test_)?)", re.ASCII)
_WORD = r"(?:[A-Z]?[a-z]+|[A-Z]+|[0-9]{1,4})"
_PHRASE = re.compile(
    rf"(?:{_WORD}[^A-Za-z0-9]+){{2,}}{_WORD}?|(?:{_WORD})?(?:[A-Z][a-z]{{2,}}[0-9]{{0,4}}){{3,}}", re.ASCII
)
"""Words in any language, between other characters or each with a capital."""


class CannotEstimate(OSError):
    """The process that estimates secrets does not start, or has failed."""


def find_weak(candidates: Iterable[Candidate]) -> dict[Candidate, str]:
    """Return why each weak one is weak, as the end of a sentence that does not contain it; the others are strong.

    A prefix that names the kind of secret, such as ``whsec_``, is not counted. Blocks. Raises
    :class:`CannotEstimate`.
    """
    weak: dict[Candidate, str] = {}
    texts: dict[Candidate, str] = {}
    for secret, chars_min in candidates:
        prefix = _PREFIX.match(secret)
        random_part = secret[prefix.end() :] if prefix else secret
        if secret in EXAMPLES:
            weak[secret, chars_min] = "is an example from the documentation; generate a new one"
        elif len(random_part) < chars_min or _is_sequence(random_part) or _PHRASE.fullmatch(random_part):
            weak[secret, chars_min] = _too_weak(chars_min)
        else:
            texts[secret, chars_min] = random_part[:CHARS_ESTIMATED_MAX]
    estimates = _estimate(tuple(texts.values())) if texts else ()
    for (secret, chars_min), (guesses_log10, words_share) in zip(texts, estimates, strict=True):
        if guesses_log10 < GUESSES_LOG10_MIN * min(1.0, chars_min / CHARS_MIN) or words_share > WORDS_SHARE_MAX:
            weak[secret, chars_min] = _too_weak(chars_min)
    return weak


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


def _too_weak(chars_min: int) -> str:
    return f"is too weak; give at least {chars_min} random characters"


@lru_cache(maxsize=ESTIMATES_MAX)
def _estimate(texts: tuple[str, ...]) -> tuple[tuple[float, float], ...]:
    """Return what :mod:`holdfast.settings.guesses` estimates of each text."""
    try:
        done = subprocess.run(
            # -P: its secrets are not given to a module that lies in the working directory.
            [sys.executable, "-P", "-m", "holdfast.settings.guesses"],
            # ASCII alone, so that neither its locale nor a byte that is not UTF-8 matters.
            input=json.dumps(texts).encode("ascii"),
            stdout=subprocess.PIPE,
            # A traceback may have a part of a secret.
            stderr=subprocess.DEVNULL,
            timeout=ESTIMATE_S * len(texts),
            check=True,
            # A Ctrl-C at the terminal is for this process alone.
            start_new_session=True,
        )
        return msgspec.json.decode(done.stdout, type=tuple[tuple[float, float], ...])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as fault:
        raise CannotEstimate(f"The strength of secrets cannot be estimated: {fault}") from fault
