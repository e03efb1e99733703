"""A job at the studio: its order, its progress, its results, and the callbacks that tell of them.

Progress is sent once, at most every ``progress_every_s``; the result is retried until it is accepted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec
import structlog
import trio

from holdfast.ledger.values import Now, format_time, utc_now
from holdfast_emulators.serving import RETRY_DELAYS_S, SignedSender
from holdfast_emulators.studio.model import CheckedInput, OutputFile

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]
TERMINAL: frozenset[Status] = frozenset({"succeeded", "failed", "canceled"})

NAME = "studio"
SIGNATURE_HEADER = "X-Callback-Signature"
PROGRESS_EVERY_S = 0.2
OVERTAKE_S = 1.0
"""The result follows the last progress, but does not wait longer than this for the receiver's answer to that."""
_PUBLIC_STATUS = {"starting": "queued"}
_log = structlog.get_logger(__name__)


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


class CallbackSender:
    """Sends signed callbacks about jobs. ``link`` returns the URL of a file."""

    def __init__(
        self,
        secret: str,
        link: Callable[[OutputFile], str],
        *,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        progress_every_s: float = PROGRESS_EVERY_S,
    ) -> None:
        self._link = link
        self._now = now
        self._retry_delays_s = tuple(retry_delays_s)
        self._progress_every_s = progress_every_s
        self._sender = SignedSender(NAME, secret, header=SIGNATURE_HEADER, key_name=NAME, now=now)

    async def close(self) -> None:
        """Close connections."""
        await self._sender.close()

    async def follow(self, job: Job) -> None:
        """Send callbacks about one job until its result is accepted or given up."""
        if job.order.webhook is None:
            return
        async with trio.open_nursery() as nursery:
            is_done = trio.Event()
            nursery.start_soon(self._send_progress, job, job.order.webhook, is_done)
            await job.ended.wait()
            with trio.move_on_after(OVERTAKE_S):
                await is_done.wait()
            if "completed" in job.order.webhook_events_filter:
                await self._send_result(job, job.order.webhook)

    async def _send_progress(self, job: Job, webhook: str, is_done: trio.Event) -> None:
        """Send progress until the job has ended and the last message is answered: a receiver is not hung up on."""
        sent = 0
        while not job.is_over:
            if job.sequence == sent:
                await job.changed.wait()
                continue
            event = "start" if sent == 0 else "logs"
            sent = job.sequence
            if event in job.order.webhook_events_filter:
                await self._sender.send(webhook, self._message(job))
                with trio.move_on_after(self._progress_every_s):
                    await job.ended.wait()
        is_done.set()

    async def _send_result(self, job: Job, webhook: str) -> None:
        message = self._message(job)
        for delay_s in self._retry_delays_s:
            await trio.sleep(delay_s)
            if await self._sender.send(webhook, message):
                return
        _log.warning("callback given up", job=job.id, tries=len(self._retry_delays_s))

    def _message(self, job: Job) -> bytes:
        """Return a callback's body: the state of the job now."""
        client = job.order.client
        message: dict[str, object] = {
            "event_id": f"evt_{uuid.uuid4().hex}",
            "provider": NAME,
            "request_id": client.request_id if client else job.id,
            "attempt": client.attempt if client else 1,
            "provider_ref": job.id,
            "sequence": job.sequence,
            "occurred_at": format_time(self._now()),
            "status": _PUBLIC_STATUS.get(job.status, job.status),
            "raw_status": job.status,
            "stage": job.stage,
            "percent": job.percent,
        }
        if job.status == "succeeded":
            message["outputs"] = [
                {**describe(file, self._link(file)), "index": index} for index, file in enumerate(job.results)
            ]
            message["usage"] = usage(job)
        if job.status == "failed":
            retryable = job.error_code != "invalid_upstream_input"
            message["error"] = {"code": job.error_code, "message": job.error, "retryable": retryable}
        return msgspec.json.encode(message)


def usage(job: Job) -> dict[str, object]:
    """Return what a job used: its files and its time."""
    spent_ms = 0
    if job.started_at is not None and job.ended_at is not None:
        spent_ms = max(0, int((job.ended_at - job.started_at).total_seconds() * 1000))
    return {"units": len(job.results), "unit": "file", "provider_ms": spent_ms}
