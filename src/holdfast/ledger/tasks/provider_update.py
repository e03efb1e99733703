"""What a media provider reports of a job: an update, by callback or poll, and its answer to a cancel."""

from __future__ import annotations

from typing import Literal

import msgspec

UpdateStatus = Literal["queued", "processing", "succeeded", "failed", "canceled"]
CancelOutcome = Literal["requested", "confirmed", "too_late", "unsupported"]
"""``requested``: it will be tried; ``confirmed``: it stopped; ``too_late``: the job has ended or is unknown."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One output of a job: at a ``url``, or inline as base64 ``data``. The rest is stated by the provider."""

    index: int
    url: str | None = None
    data: str | None = None
    content_type: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None


class ReportedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The work done as the provider reports it."""

    units: int | None = None
    unit: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    provider_cost: str | None = None
    provider_ms: int | None = None


class ReportedError(msgspec.Struct, frozen=True, kw_only=True):
    """Why the job failed at the provider."""

    code: str | None = None
    message: str | None = None
    retryable: bool = False


class Moderation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the provider's moderation."""

    flagged: bool
    categories: tuple[str, ...] = ()


class ProviderUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One update about one attempt of a task.

    ``event_id`` is unique within a task and the same on every redelivery. ``attempt`` distinguishes updates of
    earlier attempts. ``sequence`` orders the updates of one job; ``percent`` is 0 to 100.
    """

    source: Literal["callback", "poll"]
    provider: str
    event_id: str
    request_id: str
    attempt: int
    status: UpdateStatus
    provider_ref: str | None = None
    sequence: int | None = None
    raw_status: str | None = None
    stage: str | None = None
    message: str | None = None
    percent: int | None = None
    outputs: tuple[Output, ...] = ()
    usage: ReportedUsage | None = None
    error: ReportedError | None = None
    moderation: Moderation | None = None
