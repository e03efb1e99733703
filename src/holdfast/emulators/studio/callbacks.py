"""Send a job's progress and result to its webhook.

Progress is sent once, at most every ``progress_every_s``; the result is retried until it is accepted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from holdfast.emulators.signed_sender import RETRY_DELAYS_S, SignedSender
from holdfast.emulators.studio.jobs import Job, describe
from holdfast.emulators.studio.model import OutputFile
from holdfast.ledger.clock import Now, format_time, utc_now

NAME = "studio"
SIGNATURE_HEADER = "X-Callback-Signature"
PROGRESS_EVERY_S = 0.2
OVERTAKE_S = 1.0
"""The result follows the last progress, but does not wait longer than this for the receiver's answer to that."""

_PUBLIC_STATUS = {"starting": "queued"}
_log = structlog.get_logger(__name__)


class CallbackSender:
    """Sends signed callbacks about jobs. ``link`` returns a URL of a file that expires."""

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
        event_id = _new_event_id()
        for delay_s in self._retry_delays_s:
            await trio.sleep(delay_s)
            # A new message for each attempt: the links inside it expire.
            if await self._sender.send(webhook, self._message(job, event_id)):
                return
        _log.warning("callback given up", job=job.id, tries=len(self._retry_delays_s))

    def _message(self, job: Job, event_id: str | None = None) -> bytes:
        """Return a callback's body: the state of the job now."""
        client = job.order.client
        message: dict[str, object] = {
            "event_id": event_id or _new_event_id(),
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


def _new_event_id() -> str:
    return f"evt_{uuid.uuid4().hex}"
