"""What the studio's models have in common: an input made ready, a context to work at, results as files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


class BadInput(ValueError):
    """The input cannot be rendered; the message is for its sender."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A finished file and its measures, in pixels and seconds."""

    path: Path
    content_type: str
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None


class RenderContext:
    """A directory for a job's files, and how to report its progress.

    ``report`` is called in the rendering thread with a percentage (0 to 99) and a stage. It may raise to stop the
    work; the caller then removes the files written so far.
    """

    def __init__(self, directory: Path, report: Callable[[int, str], None]) -> None:
        self.files: list[Path] = []
        self._directory = directory
        self._report = report

    def new_file(self, suffix: str) -> Path:
        """Return a new path; its name cannot be guessed."""
        path = self._directory / f"{uuid.uuid4().hex}{suffix}"
        self.files.append(path)
        return path

    def step(self, done: float, stage: str) -> None:
        """Report that the share ``done`` (0 to 1) of the work is complete; raises if the job was canceled."""
        self._report(min(99, int(done * 100)), stage)


class Ready(Protocol):
    """A checked input, ready to be rendered in any thread."""

    def render(self, context: RenderContext) -> list[Rendered]:
        """Render; blocking. Raises :class:`BadInput` for faults that only rendering finds."""


@runtime_checkable
class NeedsSource(Protocol):
    """An input with a file to download before rendering."""

    @property
    def source_url(self) -> str | None:
        """The file's URL, or None."""

    async def fetch(self, directory: Path) -> Ready:
        """Download it, leaving nothing in ``directory``. Raises :class:`BadInput`."""


Prepare = Callable[[Mapping[str, object]], Ready]
"""Check an input. Raises :class:`BadInput`."""


def whole(data: Mapping[str, object], name: str, default: int, least: int, most: int) -> int:
    """Return an integer field within bounds."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} is a whole number from {least} to {most}")
    return value


def number(data: Mapping[str, object], name: str, default: float, least: float, most: float) -> float:
    """Return a number field within bounds."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} is a number from {least:g} to {most:g}")
    return float(value)


def text(data: Mapping[str, object], name: str, default: str | None, most_chars: int) -> str:
    """Return a text field; required if there is no default."""
    value = data.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip() or len(value) > most_chars:
        raise BadInput(f"{name} is a text of 1 to {most_chars} characters")
    return value


def choice(data: Mapping[str, object], name: str, default: str, known: tuple[str, ...]) -> str:
    """Return a text field with one of the known values."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{name} is one of {', '.join(known)}")
    return value
