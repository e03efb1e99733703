"""How hard a secret is to guess: production refuses to start with a weak one."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Final

CHARS_MIN: Final = 32
GUESSES_LOG10_MIN: Final = 27.0
"""About 90 bits. Half of 32 random hexadecimal digits would do; words, dates and patterns with padding do not."""

CHARS_JUDGED_MAX: Final = 72
"""The estimate reads no further: a strong beginning is not weakened by what follows."""

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

_PREFIX = re.compile(r"(?:whsec_|[a-z0-9]{1,4}_(?:live_|test_)?)", re.ASCII)


def weakness(secret: str, *, chars_min: int = CHARS_MIN) -> str | None:
    """Say why a secret is weak, as a sentence's ending that never shows the secret; None for a strong one.

    A prefix that only names the kind, such as ``whsec_``, does not count.
    """
    if secret in EXAMPLES:
        return "is an example from the documentation; make one of your own"
    prefix = _PREFIX.match(secret)
    drawn = secret[prefix.end() :] if prefix else secret
    if (
        len(drawn) < chars_min
        or _counts(drawn)
        or _guesses_log10(drawn) < GUESSES_LOG10_MIN * min(1.0, chars_min / CHARS_MIN)
    ):
        return f"is too weak; give at least {chars_min} random characters"
    return None


def is_plainly_weak(secret: str, *, chars_min: int = CHARS_MIN) -> bool:
    """A cheap check for development: short, an example, or a few characters repeated."""
    return len(secret) < chars_min or len(set(secret)) < 8 or secret in EXAMPLES


def _counts(text: str) -> bool:
    """Whether the text encodes bytes in equal steps, as test vectors do: 00 01 02 and so on."""
    for decode in (bytes.fromhex, partial(base64.b64decode, validate=True)):
        with suppress(ValueError):
            data = decode(text)
            if len({(after - before) % 256 for before, after in pairwise(data)}) <= 1:
                return True
    return False


def _guesses_log10(text: str) -> float:
    # Its word lists take a second and some megabytes, which only production should pay for.
    from zxcvbn import zxcvbn  # type: ignore[import-untyped]

    return float(zxcvbn(text[:CHARS_JUDGED_MAX])["guesses_log10"])
