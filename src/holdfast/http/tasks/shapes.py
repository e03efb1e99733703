"""What task calls take and answer, and the usage log: the interface's fields, all present, null where unset."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.actors.account_messages import TaskAccepted
from holdfast.http.front import Front
from holdfast.http.shapes import Amount, FreeForm, Time, time_or_none
from holdfast.ledger.clock import format_time
from holdfast.ledger.money import format_amount
from holdfast.ledger.tasks import EventKind, OutputItem, Progress, Task, UsageEntry, latency_of
from holdfast.providers.links import sign_link


class CreateTaskRequest(msgspec.Struct, frozen=True):
    """The task to run. With ``quote_id`` it is charged by that quote's terms.

    ``webhook_events`` chooses what is told to ``webhook_url``; without it that is all but ``task.processing``.
    """

    model: str
    input: FreeForm
    quote_id: str | None = None
    metadata: dict[str, str] | None = None
    webhook_url: str | None = None
    webhook_events: list[EventKind] | None = None


class EstimatedCost(msgspec.Struct, frozen=True):
    """What the task is expected to cost, and how that was reckoned."""

    credits: Amount
    basis: str


class TaskCreated(msgspec.Struct, frozen=True):
    """A task was accepted and its credit is held."""

    request_id: str
    quote_id: str
    status: str
    retry_of: str | None
    estimated_cost: EstimatedCost
    urls: dict[str, str]


class OutputBody(msgspec.Struct, frozen=True):
    """One result. ``url`` is signed anew at each read and works until ``expires_at``.

    It is null once it is gone, and until the task has succeeded: nobody fetches what has not been charged for.
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
    """How far the results have been copied to our own storage."""

    status: str
    mode: str
    source: str
    final_url_ready: bool
    assets_ready_event: str
    error: str | None


class ProgressBody(msgspec.Struct, frozen=True):
    """One line of what happened while the task ran."""

    ts: Time
    status: str
    source_ref: str
    percent: int | None
    stage: str | None
    message: str | None
    raw_status: str | None


class TaskPicture(msgspec.Struct, frozen=True):
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


class TaskBody(TaskPicture, frozen=True):
    """A media task. ``usage`` is empty until the task has ended."""

    provider_progress: list[ProgressBody]


class TaskList(msgspec.Struct, frozen=True):
    """A page of tasks, newest first."""

    data: list[TaskBody]
    next_cursor: str | None


class UsageStatus(msgspec.Struct, frozen=True):
    """One change of a task's status, with what had been charged by then."""

    status: str
    ts: Time
    cost_credits: Amount
    error: str | None


class UsageBody(msgspec.Struct, frozen=True):
    """The usage of one request. ``cost_credits`` is what has been charged so far."""

    request_id: str
    model: str
    api_key_id: str | None
    status: str
    modality: str
    ts: Time
    billable_units: int
    tokens_in: int
    tokens_out: int
    latency_ms: int | None
    cost_credits: Amount
    error: str | None
    operation_id: str | None
    status_history: list[UsageStatus]


class UsageList(msgspec.Struct, frozen=True):
    """A page of the usage log, newest first."""

    data: list[UsageBody]
    next_cursor: str | None


def task_created(front: Front, accepted: TaskAccepted) -> TaskCreated:
    """Write that a task was accepted."""
    return TaskCreated(
        request_id=accepted.request_id,
        quote_id=accepted.quote_id,
        status=accepted.status,
        retry_of=accepted.retry_of,
        estimated_cost=EstimatedCost(credits=format_amount(accepted.estimated_micro), basis=accepted.basis),
        urls=_urls(front, accepted.request_id),
    )


def task_body(front: Front, task: Task, *, for_operators: bool = False) -> TaskBody:
    """Write a task, its links signed as of now; operators get them for what is stored before it has succeeded."""
    picture = msgspec.structs.asdict(task_picture(front, task, for_operators=for_operators))
    return TaskBody(**picture, provider_progress=[_progress(line) for line in task.state.progress])


def task_picture(front: Front, task: Task, *, for_operators: bool = False) -> TaskPicture:
    """Write a task but for its progress, its links signed as of now."""
    request, state = task.request, task.state
    review, hosting = state.review, state.hosting
    now = front.now()
    is_open = for_operators or task.status == "succeeded"
    output = [_output(front, item, now, is_open=is_open and hosting.status != "expired") for item in state.output]
    return TaskPicture(
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
        urls=_urls(front, task.request_id),
    )


def _has_final_urls(task: Task, output: list[OutputBody]) -> bool:
    """Whether every result can be fetched where the task says; the provider's own URLs are final when handed on."""
    hosting = task.state.hosting
    handed_on = task.status == "succeeded" and hosting.mode == "passthrough"
    # The first result's time may be over before the sweeper has come by.
    return (hosting.final_url_ready or handed_on) and all(each.url is not None for each in output)


def usage_body(entry: UsageEntry) -> UsageBody:
    """Write a line of the usage log."""
    return UsageBody(
        request_id=entry.request_id,
        model=entry.model,
        api_key_id=entry.api_key_id,
        status=entry.status,
        modality=entry.modality,
        ts=format_time(entry.ts),
        billable_units=entry.billable_units,
        tokens_in=entry.tokens_in,
        tokens_out=entry.tokens_out,
        latency_ms=entry.latency_ms,
        cost_credits=format_amount(entry.cost_micro),
        error=entry.error,
        operation_id=entry.operation_id,
        status_history=[
            UsageStatus(
                status=change.status,
                ts=format_time(change.ts),
                cost_credits=format_amount(change.cost_micro),
                error=change.error,
            )
            for change in entry.status_history
        ],
    )


def _urls(front: Front, request_id: str) -> dict[str, str]:
    base = front.url(f"/v2/task/{request_id}")
    return {"get": base, "cancel": f"{base}/cancel", "retry": f"{base}/retry"}


def _usage(task: Task) -> FreeForm:
    if not task.is_terminal:
        return {}
    state, latency = task.state, latency_of(task)
    return {
        "billable_units": state.billable_units,
        "unit": task.request.terms.rate.unit,
        "tokens_in": state.tokens_in,
        "tokens_out": state.tokens_out,
        "cost_credits": format_amount(state.cost_micro),
        "queue_ms": latency.queue_ms,
        "run_ms": latency.run_ms,
        "hosting_ms": latency.hosting_ms,
        "total_ms": latency.total_ms,
    }


def _output(front: Front, item: OutputItem, now: datetime, *, is_open: bool) -> OutputBody:
    url, expires_at = item.url, item.expires_at
    if item.asset_id is not None and not is_open:
        url = None
    elif item.asset_id is not None:
        link_end = now + timedelta(seconds=front.settings.asset_link_ttl_s)
        expires_at = link_end if expires_at is None else min(link_end, expires_at)
        url = None
        if expires_at > now:
            query = sign_link(item.asset_id, expires_at, front.link_key)
            url = front.url(f"/v2/assets/{item.asset_id}?{query}")
    return OutputBody(
        index=item.position,
        url=url,
        content_type=item.content_type,
        bytes=item.bytes,
        sha256=item.sha256,
        width=item.width,
        height=item.height,
        duration_s=item.duration_s,
        expires_at=time_or_none(expires_at),
    )


def _progress(line: Progress) -> ProgressBody:
    return ProgressBody(
        ts=format_time(line.ts),
        status=line.status,
        source_ref=line.source_ref,
        percent=line.percent,
        stage=line.stage,
        message=line.message,
        raw_status=line.raw_status,
    )
