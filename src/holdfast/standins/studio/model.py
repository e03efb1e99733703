"""What the studio's models have in common: an input made ready, a context to work at, results as files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


class BadInput(ValueError):
    """The input cannot be rendered; the message is for the one who sent it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One finished file and what it measures; pixels and seconds where they apply."""

    path: Path
    content_type: str
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None


class RenderContext:
    """Where one job is rendered: a directory for its files and a way to tell how far it is.

    ``report`` is called in the rendering thread with (percent 0..99, stage). It may raise to stop the work; then
    what was written so far is the caller's to remove.
    """

    def __init__(self, directory: Path, report: Callable[[int, str], None]) -> None:
        self.files: list[Path] = []
        self._directory = directory
        self._report = report

    def new_file(self, suffix: str) -> Path:
        """A path nobody else has; its name cannot be guessed."""
        path = self._directory / f"{uuid.uuid4().hex}{suffix}"
        self.files.append(path)
        return path

    def step(self, done: float, stage: str) -> None:
        """Tell that the share ``done`` (0 to 1) of the work is behind, and leave here if the job was canceled."""
        self._report(min(99, int(done * 100)), stage)


class Ready(Protocol):
    """An input that passed: all it needs to be rendered, in any thread."""

    def render(self, context: RenderContext) -> list[Rendered]:
        """Do the work; blocking. Raises :class:`BadInput` for what only the work could find out."""


@runtime_checkable
class NeedsSource(Protocol):
    """An input that names a file to be fetched before the work begins."""

    @property
    def source_url(self) -> str | None:
        """Where the file is; None where there is nothing to fetch."""

    async def fetch(self, directory: Path) -> Ready:
        """Fetch it, keeping nothing in ``directory``. Raises :class:`BadInput`."""


Prepare = Callable[[Mapping[str, object]], Ready]
"""Check an input. Raises :class:`BadInput`."""


def whole(data: Mapping[str, object], name: str, default: int, least: int, most: int) -> int:
    """An integer field within bounds."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} is a whole number from {least} to {most}")
    return value


def number(data: Mapping[str, object], name: str, default: float, least: float, most: float) -> float:
    """A number field within bounds."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} is a number from {least:g} to {most:g}")
    return float(value)


def text(data: Mapping[str, object], name: str, default: str | None, most_chars: int) -> str:
    """A text field; required where there is no default."""
    value = data.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip() or len(value) > most_chars:
        raise BadInput(f"{name} is a text of 1 to {most_chars} characters")
    return value


def choice(data: Mapping[str, object], name: str, default: str, known: tuple[str, ...]) -> str:
    """A text field out of a few."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{name} is one of {', '.join(known)}")
    return value
