"""The public form of a task: what its owner reads, and what webhooks carry."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.ledger.clock import format_time
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.money import format_amount
from holdfast.ledger.public_types import Amount, FreeForm, Time, time_or_none
from holdfast.ledger.tasks.task import EventKind, OutputItem, Task, between_ms


class EstimatedCost(msgspec.Struct, frozen=True):
    """What the task is expected to cost, and how that was computed."""

    credits: Amount
    basis: str


class OutputBody(msgspec.Struct, frozen=True):
    """One output. ``url`` is signed at each read and works until ``expires_at``.

    It is null before the task has succeeded and after the output has expired.
    """

    index: int
    url: str | None
    content_type: str | None
    bytes: int | None
    sha256: str | None
    width: int | None
    height: int | None
    duration_s: float | None
    expires_at: Time | None


class HostingBody(msgspec.Struct, frozen=True):
    """The state of copying the outputs to the service's own storage."""

    status: str
    mode: str
    source: str
    final_url_ready: bool
    assets_ready_event: str
    error: str | None


class PublicTask(msgspec.Struct, frozen=True):
    """A media task without its progress. ``usage`` is empty until the task has ended."""

    request_id: str
    quote_id: str
    status: str
    model: str
    created_at: Time
    updated_at: Time
    completed_at: Time | None
    canceled_at: Time | None
    retry_of: str | None
    estimated_cost: EstimatedCost
    usage: FreeForm
    output: list[OutputBody]
    hosting: HostingBody
    review_case_id: str | None
    review_reason: str | None
    review_hold_decision: str | None
    error: str | None
    metadata: dict[str, str]
    urls: dict[str, str]


class TaskEvent(msgspec.Struct, frozen=True):
    """The payload of a webhook: ``data`` is the task as it was at ``timestamp``."""

    id: str
    type: EventKind
    timestamp: Time
    data: PublicTask


def public_task(urls: PublicUrls, task: Task, *, now: datetime, for_operators: bool = False) -> PublicTask:
    """Render a task without its progress, its links signed as of ``now``."""
    request, state = task.request, task.state
    review, hosting = state.review, state.hosting
    is_open = for_operators or task.status == "succeeded"
    output = [_output(urls, item, now, is_open=is_open and hosting.status != "expired") for item in state.output]
    return PublicTask(
        request_id=task.request_id,
        quote_id=request.quote_id,
        status=task.status,
        model=task.model,
        created_at=format_time(task.created_at),
        updated_at=format_time(task.updated_at),
        completed_at=time_or_none(state.completed_at),
        canceled_at=time_or_none(state.canceled_at),
        retry_of=request.retry_of,
        estimated_cost=EstimatedCost(
            credits=format_amount(request.terms.estimate_micro), basis=request.terms.basis
        ),
        usage=_usage(task),
        output=output,
        hosting=HostingBody(
            status=hosting.status,
            mode=hosting.mode,
            source=hosting.source,
            final_url_ready=_has_final_urls(task, output),
            assets_ready_event=hosting.assets_ready_event,
            error=hosting.error,
        ),
        review_case_id=review.case_id if review else None,
        review_reason=review.reason if review else None,
        review_hold_decision=review.decision if review else None,
        error=state.error,
        metadata=request.metadata,
        urls=task_urls(urls, task.request_id),
    )


def _has_final_urls(task: Task, output: list[OutputBody]) -> bool:
    """Whether every output can be fetched; the provider's own URLs are final if they are passed through."""
    hosting = task.state.hosting
    passed_through = task.status == "succeeded" and hosting.mode == "passthrough"
    # An output may have expired before the sweeper has recorded it.
    return (hosting.final_url_ready or passed_through) and all(each.url is not None for each in output)


def task_urls(urls: PublicUrls, request_id: str) -> dict[str, str]:
    """Return the URLs of a task's calls, by name."""
    base = urls.url(f"/v2/task/{request_id}")
    return {"get": base, "cancel": f"{base}/cancel", "retry": f"{base}/retry"}


def _usage(task: Task) -> FreeForm:
    if not task.is_terminal:
        return {}
    state = task.state
    return {
        "billable_units": state.billable_units,
        "unit": task.request.terms.rate.unit,
        "tokens_in": state.tokens_in,
        "tokens_out": state.tokens_out,
        "cost_credits": format_amount(state.cost_micro),
        "queue_ms": between_ms(task.created_at, state.run_started_at),
        "run_ms": between_ms(state.run_started_at, state.provider_done_at),
        "hosting_ms": between_ms(state.provider_done_at, task.ended_at),
        "total_ms": task.latency_ms,
    }


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
    data = public_task(urls, task, now=now)
    return msgspec.json.encode(TaskEvent(id=event_id, type=kind, timestamp=format_time(created_at), data=data))
