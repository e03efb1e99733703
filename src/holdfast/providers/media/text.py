"""What providers write for people to read, made fit for a row.

A provider's word is no reason to refuse its news: a text that is too long is cut, and control characters (a NUL
cannot be stored at all) are taken out.
"""

from __future__ import annotations

import re
from typing import Final

MESSAGE_MAX_CHARS: Final = 500
WORD_MAX_CHARS: Final = 64
"""How long a stage, a status, a unit or a code may be."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+")


def tidy(text: str | None, limit_chars: int) -> str | None:
    """Prose fit for a row: control characters become blanks, the end is cut; None where nothing is left."""
    if text is None:
        return None
    clean = _CONTROLS.sub(" ", text[: limit_chars * 4]).strip()
    return (clean if len(clean) <= limit_chars else clean[: limit_chars - 1] + "…") or None
