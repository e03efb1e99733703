"""A job at the studio: its order, its progress and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec
import trio

from holdfast.emulators.studio.model import CheckedInput, OutputFile

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]
TERMINAL: frozenset[Status] = frozenset({"succeeded", "failed", "canceled"})


class Client(msgspec.Struct, frozen=True):
    """The task and attempt that a job is for; repeated in callbacks."""

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


@dataclass(eq=False, slots=True)
class Job:
    """An order and its progress. Changed only in the studio's event loop."""

    id: str
    order: Order
    checked: CheckedInput
    status: Status = "starting"
    percent: int = 0
    stage: str = "queue"
    error: str | None = None
    error_code: str | None = None
    results: tuple[OutputFile, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    sequence: int = 0
    """How often the job has changed."""
    changed: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    rendering: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status in TERMINAL

    def begin(self, at: datetime) -> None:
        """Record that rendering has begun."""
        if not self.is_over:
            self.status, self.started_at, self.stage = "processing", at, "render"
            self._notify()

    def advance(self, percent: int, stage: str) -> None:
        """Record progress; the percentage never falls."""
        if not self.is_over and (percent > self.percent or stage != self.stage):
            self.percent, self.stage = max(percent, self.percent), stage
            self._notify()

    def succeed(self, results: tuple[OutputFile, ...], at: datetime) -> None:
        """End the job with its results."""
        if not self.is_over:
            self.results, self.percent, self.stage = results, 100, "done"
            self._end("succeeded", at)

    def fail(self, code: str, message: str, at: datetime) -> None:
        """End the job with an error."""
        if not self.is_over:
            self.error_code, self.error = code, message
            self._end("failed", at)

    def cancel(self, at: datetime) -> None:
        """End the job and stop its rendering at the next step."""
        if not self.is_over:
            self._end("canceled", at)
            self.rendering.cancel()

    def _end(self, status: Status, at: datetime) -> None:
        self.status, self.ended_at = status, at
        self._notify()
        self.ended.set()

    def _notify(self) -> None:
        self.sequence += 1
        self.changed.set()
        self.changed = trio.Event()


def describe(file: OutputFile, url: str) -> Mapping[str, object]:
    """Return a result as callbacks and polls show it: without the fields that have no value."""
    fields: dict[str, object] = {
        "url": url,
        "content_type": file.content_type,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "width": file.width,
        "height": file.height,
        "duration_s": file.duration_s,
    }
    return {name: value for name, value in fields.items() if value is not None}
