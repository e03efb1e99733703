"""The public form of a task: what its owner reads, and what webhooks carry."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import msgspec

from holdfast.ledger.links import PublicUrls
from holdfast.ledger.public_types import Amount, TaskId, Time
from holdfast.ledger.tasks.task import (
    AssetsReadyState,
    EventKind,
    HostingMode,
    HostingSource,
    HostingStatus,
    OutputItem,
    ReviewDecision,
    ReviewReason,
    Task,
    TaskStatus,
    between_ms,
)
from holdfast.ledger.values import format_amount, format_time, time_or_none


class EstimatedCost(msgspec.Struct, frozen=True):
    """What the task is expected to cost, and how that was computed."""

    credits: Amount
    """The expected cost."""
    basis: str
    """How it was computed, such as `per_image: 1 x 0.012`."""


class OutputBody(msgspec.Struct, frozen=True):
    """One output."""

    index: int
    """Its number among the outputs, from 0."""
    url: str | None
    """A signed link, new at each read, that works until `expires_at`; null before the task has succeeded and after
    the output has expired.
    """
    content_type: str | None
    """The media type, found from the bytes; null if it is not known."""
    bytes: int | None
    """The size in bytes; null if it is not known."""
    sha256: str | None
    """The SHA-256 of the bytes, in hex; null if the output is not stored here."""
    width: int | None
    """The width of a picture or clip in pixels; null if there is none or it is not known."""
    height: int | None
    """The height of a picture or clip in pixels; null if there is none or it is not known."""
    duration_s: float | None
    """The duration of a sound or clip in seconds; null if there is none or it is not known."""
    expires_at: Time | None
    """Until when `url` works; null if it is not known."""


class HostingBody(msgspec.Struct, frozen=True):
    """The state of copying the outputs to the service's own storage."""

    status: HostingStatus
    """How far the copying is; `skipped` if nothing is copied."""
    mode: HostingMode
    """`rehost` copies outputs from the provider, `inline` stores those sent by it, `passthrough` returns the
    provider's URLs.
    """
    source: HostingSource
    """Where the outputs are from."""
    final_url_ready: bool
    """Whether every output can be fetched by its `url`."""
    assets_ready_event: AssetsReadyState
    """Whether the event `task.assets_ready` was sent."""
    error: str | None
    """Why outputs could not be stored, `code: text`; null if nothing failed."""


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What was charged for an ended task and how long it took; without any field before that."""

    billable_units: int | msgspec.UnsetType = msgspec.UNSET
    """Units charged, such as images or seconds."""
    unit: str | msgspec.UnsetType = msgspec.UNSET
    """What is counted, such as `image` or `second`."""
    tokens_in: int | msgspec.UnsetType = msgspec.UNSET
    """Input tokens charged; 0 for a model that is not priced by tokens."""
    tokens_out: int | msgspec.UnsetType = msgspec.UNSET
    """Output tokens charged; 0 for a model that is not priced by tokens."""
    cost_credits: Amount | msgspec.UnsetType = msgspec.UNSET
    """The charge."""
    queue_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """From the task's creation to the beginning of the work, in milliseconds; null if it never began."""
    run_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """How long the provider worked, in milliseconds; null if it did not finish."""
    hosting_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """From the provider's result to the task's end, in milliseconds; null without a result."""
    total_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """From the task's creation to its end, in milliseconds."""


class PublicTask(msgspec.Struct, frozen=True):
    """A media task without its progress."""

    request_id: TaskId
    quote_id: str
    """The quote that the task is charged by, `quo_…`."""
    status: TaskStatus
    """`succeeded`, `failed` and `canceled` are final; `review` waits for an operator."""
    model: str
    """The id of the model."""
    api_key_id: str | None
    """The API key that created the task, `key_…`; null if none is recorded."""
    created_at: Time
    """When the task was created."""
    updated_at: Time
    """When the task changed last."""
    completed_at: Time | None
    """When the task succeeded or failed; null before that, and if it was canceled."""
    canceled_at: Time | None
    """When the task was canceled; null if it was not."""
    deadline_at: Time | None
    """When the task is canceled if it has not ended; null if no deadline was given."""
    retry_of: str | None
    """The task that this one retries, `task_…`; null if it is no retry."""
    estimated_cost: EstimatedCost
    """What the task was expected to cost when it was created."""
    usage: TaskUsage
    """What was charged and how long it took; empty until the task has ended."""
    output: list[OutputBody]
    """The outputs; empty until there are any."""
    hosting: HostingBody
    """The state of copying the outputs to the service's own storage."""
    review_case_id: str | None
    """The review's id, `rev_…`; null if there was none."""
    review_reason: ReviewReason | None
    """Why an operator has to decide; null without a review."""
    review_hold_decision: ReviewDecision | None
    """What was decided about the hold, `capture_blocked` before that; null without a review."""
    error: str | None
    """Why the task failed, or which outputs are missing, `code: text`; null without an error."""
    metadata: dict[str, str]
    """The texts given at creation."""
    urls: dict[str, str]
    """Absolute URLs of the task's calls: `get`, `cancel`, `retry`."""


P = TypeVar("P", bound=PublicTask)


class TaskEvent(msgspec.Struct, frozen=True):
    """The payload of a webhook."""

    id: str
    """The event's id, the same as in the header `webhook-id`."""
    type: EventKind
    """What happened."""
    timestamp: Time
    """When it happened."""
    data: PublicTask
    """The task as it was then."""


def public_task(
    shape: type[P], urls: PublicUrls, task: Task, *more: object, now: datetime, for_operators: bool = False
) -> P:
    """Render a task as a ``shape``, whose last fields are ``more``, its links signed as of ``now``."""
    request, state = task.request, task.state
    review, hosting = state.review, state.hosting
    output = public_output(urls, task, now=now, for_operators=for_operators)
    created_at = format_time(task.created_at)
    # The fields by their positions, which takes a third of the time: a list has many tasks.
    return shape(
        task.request_id,
        request.quote_id,
        task.status,
        task.model,
        request.api_key_id,
        created_at,
        created_at if task.updated_at == task.created_at else format_time(task.updated_at),
        time_or_none(state.completed_at),
        time_or_none(state.canceled_at),
        time_or_none(task.deadline_at),
        request.retry_of,
        _estimated_cost(request.terms.estimate_micro, request.terms.basis),
        _usage(task),
        output,
        HostingBody(
            hosting.status,
            hosting.mode,
            hosting.source,
            _has_final_urls(task, output),
            hosting.assets_ready_event,
            hosting.error,
        ),
        review.case_id if review else None,
        review.reason if review else None,
        review.decision if review else None,
        state.error,
        request.metadata,
        task_urls(urls, task.request_id),
        *more,
    )


@lru_cache(maxsize=1_000)
def _estimated_cost(estimate_micro: int, basis: str) -> EstimatedCost:
    return EstimatedCost(credits=format_amount(estimate_micro), basis=basis)


def public_output(urls: PublicUrls, task: Task, *, now: datetime, for_operators: bool = False) -> list[OutputBody]:
    """Render a task's outputs, their links signed as of ``now``; before success only ``for_operators``."""
    is_open = (for_operators or task.status == "succeeded") and task.state.hosting.status != "expired"
    return [_output(urls, item, now, is_open=is_open) for item in task.state.output]


def _has_final_urls(task: Task, output: list[OutputBody]) -> bool:
    """Whether every output can be fetched; the provider's own URLs are final if they are passed through."""
    hosting = task.state.hosting
    passed_through = task.status == "succeeded" and hosting.mode == "passthrough"
    # An output may have expired before the sweeper has recorded it.
    return (hosting.final_url_ready or passed_through) and all(each.url is not None for each in output)


def task_urls(urls: PublicUrls, request_id: str) -> dict[str, str]:
    """Return the URLs of a task's calls, by name."""
    base = f"{urls.base}/v2/task/{request_id}"
    return {"get": base, "cancel": f"{base}/cancel", "retry": f"{base}/retry"}


def _usage(task: Task) -> TaskUsage:
    if not task.is_terminal:
        return TaskUsage()
    state = task.state
    return TaskUsage(
        billable_units=state.billable_units,
        unit=task.request.terms.rate.unit,
        tokens_in=state.tokens_in,
        tokens_out=state.tokens_out,
        cost_credits=format_amount(state.cost_micro),
        queue_ms=between_ms(task.created_at, state.run_started_at),
        run_ms=between_ms(state.run_started_at, state.provider_done_at),
        hosting_ms=between_ms(state.provider_done_at, task.ended_at),
        total_ms=task.latency_ms,
    )


def _output(urls: PublicUrls, item: OutputItem, now: datetime, *, is_open: bool) -> OutputBody:
    url, expires_at = item.url, item.expires_at
    if item.asset_id is not None and not is_open:
        url = None
    elif item.asset_id is not None:
        expires_at = urls.link_expiry(now, expires_at)
        url = urls.asset_url(item.asset_id, expires_at) if expires_at > now else None
    return OutputBody(
        index=item.index,
        url=url,
        content_type=item.content_type,
        bytes=item.bytes,
        sha256=item.sha256,
        width=item.width,
        height=item.height,
        duration_s=item.duration_s,
        expires_at=time_or_none(expires_at),
    )


def event_payload(
    urls: PublicUrls, event_id: str, kind: EventKind, created_at: datetime, task: Task, *, now: datetime
) -> bytes:
    """Encode the body of a webhook: the task as it was at the event, its links signed as of ``now``."""
    data = public_task(PublicTask, urls, task, now=now)
    return msgspec.json.encode(TaskEvent(id=event_id, type=kind, timestamp=format_time(created_at), data=data))
