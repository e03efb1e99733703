"""The table of docs/clients.md: what each client was tried with, as its programs in the tests say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from .openai_programs import PROGRAMS as OPENAI
from .replicate_programs import PROGRAMS as REPLICATE

FEATURES: Final = (
    "image", "edit", "sound", "clip", "upload", "wait", "stream", "webhook", "cancel", "list", "errors",
)  # fmt: skip
CLIENTS: Final[tuple[Mapping[str, Collection[str]], ...]] = (OPENAI, REPLICATE)
"""The programs of each layer, by client and feature."""


def client_table() -> str:
    """Return the table in Markdown: a row for each client, a column for each feature."""
    rows: list[tuple[str, ...]] = [("client", *FEATURES)]
    for programs in CLIENTS:
        rows += [
            (name, *("yes" if each in features else "-" for each in FEATURES))
            for name, features in programs.items()
        ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]))
