"""A job at the studio: what was ordered, how far it is, what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
import trio

from holdfast.standins.studio.craft import Ready, Rendered

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]
TERMINAL: frozenset[Status] = frozenset({"succeeded", "failed", "canceled"})


@dataclass(frozen=True, slots=True)
class StudioFaults:
    """Ways to misbehave, for tests of those who depend on the studio; none can be asked for from outside."""

    fail: str | None = None
    """End every job as failed with this message."""
    stall: bool = False
    """Begin jobs and never end them."""
    drop: bool = False
    """Send no callback at all."""
    duplicate: bool = False
    """Send every callback twice."""
    reorder: bool = False
    """Send a job's first progress again, as a new event, after its last word."""
    wrong_signature: bool = False
    """Sign with a secret nobody knows."""


class Client(msgspec.Struct, frozen=True):
    """Whom a job is for, in the customer's own words; repeated in callbacks."""

    request_id: str
    attempt: int


class Order(msgspec.Struct, frozen=True):
    """The body of ``PUT /predictions/{id}``."""

    input: dict[str, object]
    model: str
    webhook: str | None = None
    webhook_events_filter: tuple[Literal["start", "output", "logs", "completed"], ...] = (
        "start",
        "output",
        "logs",
        "completed",
    )
    client: Client | None = None

    def digest(self) -> bytes:
        """What makes two orders the same: everything in them."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).digest()


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished file with what is told of it."""

    name: str
    path: Path
    content_type: str
    size_bytes: int
    sha256: str
    width: int | None
    height: int | None
    duration_s: float | None


@dataclass(eq=False, slots=True)
class Job:
    """One order at work. Changed only in the studio's event loop."""

    id: str
    order: Order
    order_digest: bytes
    ready: Ready
    created_at: datetime
    status: Status = "starting"
    percent: int = 0
    stage: str = "queue"
    error: str | None = None
    error_code: str | None = None
    results: tuple[Kept, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    sequence: int = 0
    changed: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    work: trio.CancelScope = field(default_factory=trio.CancelScope)
    telling: trio.CancelScope = field(default_factory=trio.CancelScope)
    """The scope of all that is sent for this job, so that forgetting the job ends it."""

    @property
    def over(self) -> bool:
        """True once nothing more can happen to it."""
        return self.status in TERMINAL

    def begin(self, at: datetime) -> None:
        """The job has a place to work at."""
        if not self.over:
            self.status, self.started_at, self.stage = "processing", at, "render"
            self._note()

    def advance(self, percent: int, stage: str) -> None:
        """The work got on; percent never falls."""
        if not self.over and (percent > self.percent or stage != self.stage):
            self.percent, self.stage = max(percent, self.percent), stage
            self._note()

    def succeed(self, results: tuple[Kept, ...], at: datetime) -> None:
        """All files are there."""
        if not self.over:
            self.results, self.percent, self.stage = results, 100, "done"
            self._end("succeeded", at)

    def fail(self, code: str, message: str, at: datetime) -> None:
        """The work could not be done."""
        if not self.over:
            self.error_code, self.error = code, message
            self._end("failed", at)

    def cancel(self, at: datetime) -> None:
        """Stop the work at its next step."""
        if not self.over:
            self._end("canceled", at)
            self.work.cancel()

    def _end(self, status: Status, at: datetime) -> None:
        self.status, self.ended_at = status, at
        self._note()
        self.ended.set()

    def _note(self) -> None:
        self.sequence += 1
        self.changed.set()
        self.changed = trio.Event()


def keep(rendered: Rendered) -> Kept:
    """Measure a finished file; blocking."""
    digest = hashlib.sha256()
    size_bytes = 0
    with rendered.path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size_bytes += len(block)
    return Kept(
        name=rendered.path.name,
        path=rendered.path,
        content_type=rendered.content_type,
        size_bytes=size_bytes,
        sha256=digest.hexdigest(),
        width=rendered.width,
        height=rendered.height,
        duration_s=rendered.duration_s,
    )


def describe(kept: Kept, url: str) -> Mapping[str, object]:
    """A result as the protocol shows it."""
    told: dict[str, object] = {
        "url": url,
        "content_type": kept.content_type,
        "bytes": kept.size_bytes,
        "sha256": kept.sha256,
        "width": kept.width,
        "height": kept.height,
        "duration_s": kept.duration_s,
    }
    return {name: value for name, value in told.items() if value is not None}
