"""How error messages show a value that the caller sent."""

from __future__ import annotations

from typing import Final

SHOWN_CHARS_MAX: Final = 80


def shown(value: str) -> str:
    """Return a value in quotes, cut to 80 characters, unprintable characters escaped. Never for a secret."""
    cut = value if len(value) <= SHOWN_CHARS_MAX else value[: SHOWN_CHARS_MAX - 1] + "…"
    return f"'{cut}'" if cut.isprintable() else ascii(cut)[: SHOWN_CHARS_MAX + 2]
