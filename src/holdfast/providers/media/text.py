"""Clean texts from providers before they are stored.

A bad text is no reason to refuse an update: one that is too long is truncated, and control characters are replaced
(a NUL cannot be stored).
"""

from __future__ import annotations

import re
from typing import Final

MESSAGE_MAX_CHARS: Final = 500
WORD_MAX_CHARS: Final = 64
"""The longest stage, status, unit or code."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+")


def tidy(text: str | None, limit_chars: int) -> str | None:
    """Replace control characters by blanks and truncate; None if nothing remains."""
    if text is None:
        return None
    clean = _CONTROLS.sub(" ", text[: limit_chars * 4]).strip()
    return (clean if len(clean) <= limit_chars else clean[: limit_chars - 1] + "…") or None
