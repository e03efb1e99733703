"""What the studio's models have in common: fields of their inputs, a context to work at, results as files."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from holdfast.providers.outbound.guarded import Origin

CONTENT_TYPES: Mapping[str, str] = {
    ".png": "image/png",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".webm": "video/webm",
}

Prompt = Annotated[str, msgspec.Meta(max_length=4000, pattern=r"\S")]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BadInput(ValueError):
    """The input cannot be rendered; the message is for its sender."""


def new_seed() -> int:
    """Return the seed of an input that has none."""
    return random.SystemRandom().randrange(2**31)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A finished file and its measures, in bytes, pixels and seconds."""

    path: Path
    bytes: int
    sha256: str
    width: int | None
    height: int | None
    duration_s: float | None

    @property
    def content_type(self) -> str:
        """Its media type."""
        return content_type_of(self.path)


def content_type_of(path: Path) -> str:
    """Return the media type of one of the studio's files."""
    return CONTENT_TYPES.get(path.suffix, "application/octet-stream")


class RenderContext:
    """A directory for a job's files, and how to report its progress.

    ``report`` is called in the rendering thread with a percentage (0 to 99) and a stage. It may raise to stop the
    work; the caller then removes the files written so far. ``service`` is the origin of the service that takes the
    job's callbacks: what inputs refer to may be fetched from there, also at a private address.
    """

    def __init__(
        self, directory: Path, report: Callable[[int, str], None], *, service: frozenset[Origin] = frozenset()
    ) -> None:
        self.directory = directory
        self.service = service
        self.files: list[Path] = []
        self._report = report

    def new_file(self, suffix: str) -> Path:
        """Return a new path; its name cannot be guessed."""
        path = self.directory / f"{uuid.uuid4().hex}{suffix}"
        self.files.append(path)
        return path

    def step(self, done: float, stage: str) -> None:
        """Report that the share ``done`` (0 to 1) of the work is complete; raises if the job was canceled."""
        self._report(min(99, int(done * 100)), stage)


def finished(
    path: Path, *, width: int | None = None, height: int | None = None, duration_s: float | None = None
) -> OutputFile:
    """Return a written file with its hash; blocking."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return OutputFile(path, path.stat().st_size, sha256, width, height, duration_s)


class CheckedInput(Protocol):
    """An input that can be rendered."""

    def render(self, context: RenderContext) -> list[OutputFile]:
        """Render, in a thread of the trio run. Raises :class:`BadInput` for faults that only rendering finds."""


Prepare = Callable[[Mapping[str, object]], CheckedInput]
"""Check an input. Raises ``msgspec.ValidationError``."""
