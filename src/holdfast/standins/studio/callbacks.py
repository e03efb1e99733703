"""Telling a webhook how its job goes: progress twice a second at most and once only, the last word until heard."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog
import trio

from holdfast.ledger.clock import Now, format_time, utc_now
from holdfast.standins.posting import RETRY_DELAYS_S, SignedPost
from holdfast.standins.studio.jobs import Job, Kept, StudioFaults, describe

SIGNATURE_HEADER = "X-Callback-Signature"
PROGRESS_EVERY_S = 0.2
PROGRESS_TIMEOUT_S = 5.0
LAST_WORD_TIMEOUT_S = 15.0

_PUBLIC_STATUS = {"starting": "queued"}
_log = structlog.get_logger(__name__)


class CallbackSender:
    """Carries news of jobs to their webhooks, signed, over HTTP.

    ``link`` makes a fetchable URL of a finished file anew for each message, since links are short-lived.
    """

    def __init__(
        self,
        name: str,
        secret: str,
        link: Callable[[Kept], str],
        *,
        faults: StudioFaults,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        progress_every_s: float = PROGRESS_EVERY_S,
    ) -> None:
        self._name = name
        self._link = link
        self._faults = faults
        self._now = now
        self._retry_delays_s = tuple(retry_delays_s)
        self._progress_every_s = progress_every_s
        key = f"not {secret}" if faults.wrong_signature else secret
        self._mail = SignedPost(name, key, header=SIGNATURE_HEADER, key_name=name, now=now)

    async def close(self) -> None:
        """Give back connections."""
        await self._mail.close()

    async def follow(self, job: Job) -> None:
        """Tell of one job until its last word is heard, given up, or the job forgotten."""
        if job.order.webhook is None or self._faults.drop:
            return
        with job.telling:
            first = await self._tell_progress(job, job.order.webhook)
            if "completed" in job.order.webhook_events_filter:
                await self._tell_last(job, job.order.webhook)
            if self._faults.reorder and first is not None:
                await self._post(job.order.webhook, {**first, "event_id": _event_id()}, PROGRESS_TIMEOUT_S)

    async def _tell_progress(self, job: Job, webhook: str) -> Mapping[str, object] | None:
        told, first = 0, None
        while not job.over:
            changed = job.changed
            wanted = "start" if told == 0 else "logs"
            if job.sequence == told:
                await changed.wait()
                continue
            told = job.sequence
            if wanted in job.order.webhook_events_filter:
                message = self._message(job)
                first = first or message
                await self._until_over(job, webhook, message)
                with trio.move_on_after(self._progress_every_s):
                    await job.ended.wait()
        return first

    async def _until_over(self, job: Job, webhook: str, message: Mapping[str, object]) -> None:
        """Post progress, but let go of it when the job ends: the last word must not wait behind it."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await job.ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self._post(webhook, message, PROGRESS_TIMEOUT_S)
            nursery.cancel_scope.cancel()

    async def _tell_last(self, job: Job, webhook: str) -> None:
        event_id = _event_id()
        for delay_s in self._retry_delays_s:
            await trio.sleep(delay_s)
            if await self._post(webhook, {**self._message(job), "event_id": event_id}, LAST_WORD_TIMEOUT_S):
                return
        _log.warning("studio_callback_given_up", job=job.id, tries=len(self._retry_delays_s))

    def _message(self, job: Job) -> dict[str, object]:
        """The callback's body: the state of the job at this moment."""
        client = job.order.client
        message: dict[str, object] = {
            "event_id": _event_id(),
            "provider": self._name,
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
                {**describe(kept, self._link(kept)), "index": index} for index, kept in enumerate(job.results)
            ]
            message["usage"] = usage(job)
        if job.status == "failed":
            retryable = job.error_code != "invalid_upstream_input"
            message["error"] = {"code": job.error_code, "message": job.error, "retryable": retryable}
        return message

    async def _post(self, webhook: str, message: Mapping[str, object], timeout_s: float) -> bool:
        """Send one message, twice where duplicates are wanted; True where the receiver took it."""
        body = msgspec.json.encode(message)
        heard = False
        for _ in range(2 if self._faults.duplicate else 1):
            heard = await self._mail.send(webhook, body, timeout_s=timeout_s) or heard
        return heard


def usage(job: Job) -> dict[str, object]:
    """What the work amounted to."""
    spent_ms = 0
    if job.started_at is not None and job.ended_at is not None:
        spent_ms = max(0, int((job.ended_at - job.started_at).total_seconds() * 1000))
    return {"units": len(job.results), "unit": "file", "provider_ms": spent_ms}


def _event_id() -> str:
    return f"evt_{uuid.uuid4().hex}"
