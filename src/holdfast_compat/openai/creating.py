"""Creating a task for OpenAI's clients, once however often they send the request, and waiting for its end.

These clients number their attempts at a request in the header ``x-stainless-retry-count``, from 0
(:mod:`holdfast_compat.openai.resent_creates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import trio

from holdfast.actors.runtime.faults import AskFault, OutcomeUnknown
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import BodyResponse, Outcome, Parameter
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.kit.waiting_calls import Wait
from holdfast.http.services.tasks import CREATE_ERRORS, accepted_task, end_of_task, own_task
from holdfast.ledger.catalog.models import Modality
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast_compat.attempts import RequestAttempts
from holdfast_compat.model_words import as_sent
from holdfast_compat.openai.inputs import wanted_of
from holdfast_compat.openai.resent_creates import (
    CLIENT_TIMEOUT_S,
    create_once,
    note_refused,
)

HELD_MAX_S: Final = 570.0
"""How long a request is held open: less than the ten minutes after which these clients give up."""
TIMEOUT_SHARE: Final = 0.9
"""The share of its client's own time-out after which a request is answered."""
RETRY_COUNT: Final = Parameter(
    name="X-Stainless-Retry-Count",
    location="header",
    description="The number of the attempt at this request, from 0; from 1 on it joins the task of an earlier one. "
    "Anything but a number counts as none.",
)
LAYER_ERRORS: Final = (*CREATE_ERRORS, "outcome_unknown")
"""The codes of a create, beside those that a route's other fields imply."""
HELD_ERRORS: Final = (
    *LAYER_ERRORS,
    "task_not_found",
    "task_not_ended",
    "task_failed",
    "content_policy_violation",
    "overloaded",
    "asset_expired",
)
"""Those of a create whose response is its result."""

TASK_ID: Final = "X-Task-Id"
"""The header that names the task in a response."""

NoResult: TypeAlias = Refusal | BodyResponse
"""Why there is no result."""

_OUTCOME_UNKNOWN: Final = Refusal(
    code="outcome_unknown",
    message="No result in time; the task may exist. List the account's tasks before you create it again.",
)
"""The response to a client whose resend would not be recognized."""
_CODES: Final = {"content_policy": "content_policy_violation", "invalid_upstream_input": "invalid_input"}
"""The codes of responses about tasks that would fail again, by the tasks' own."""


def own_fields(call: Call, *names: str) -> dict[str, object]:
    """Return the fields of the body but for those of the layer."""
    return {name: value for name, value in call.json.items() if name not in names}


def task_headers(request_id: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a response about a task."""
    return ((TASK_ID, request_id),)


async def accept(call: Call, model_id: str, makes: Modality, fields: Mapping[str, object]) -> str | Refusal:
    """Create the task of the request's fields and files, unless an earlier attempt has; return its id.

    The model must be one that ``makes`` what the endpoint returns. An Idempotency-Key of the caller's own is used
    as it is anywhere else. Refuses as a native create does.
    """
    model = call.deps.registry.catalog.models.get(model_id)
    if model is not None and model.modality != makes:
        return await call.refuse_authenticated(
            invalid_parameter("model", f"must be a model of the modality {makes}", model.id)
        )
    found = await call.compute(wanted_of, model, model_id, fields, call.files)
    if isinstance(found, Refusal):
        return await call.refuse_authenticated(found)
    wanted, sent_as = found
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return await call.refuse_authenticated(idempotency)
    attempt = _attempt(call)
    try:
        if idempotency is not None:
            accepted = call.take_reply(await accepted_task(call, wanted, idempotency))
            created = accepted if isinstance(accepted, Refusal) else accepted.request_id
        else:
            created = await create_once(call, wanted, attempt, _timeout_s(call))
    except OutcomeUnknown:
        if idempotency is None and attempt is None:
            # Nothing would recognize this client's resend.
            return _OUTCOME_UNKNOWN
        raise
    return as_sent(created, sent_as) if isinstance(created, Refusal) else created


async def finish(call: Call, model_id: str, makes: Modality, fields: Mapping[str, object]) -> Task | NoResult:
    """Create the task as :func:`accept` does, and return it once it has succeeded.

    If it still runs after a time the refusal asks the client to send the request again, which joins the task. A
    client that does not number its attempts is asked not to.
    """
    until = trio.current_time() + min(HELD_MAX_S, TIMEOUT_SHARE * _timeout_s(call))
    deps, attempt = call.deps, _attempt(call)
    with deps.following.waiting.counted(call.known_key.account_id, call.origin()) as wait:
        if isinstance(wait, Refusal):
            note_refused(call, attempt)
            return wait
        request_id = await accept(call, model_id, makes, fields)
        if isinstance(request_id, Refusal):
            return request_id
        del fields
        call.drop_body()
        task = await created_task(call, request_id, until, wait)
    if isinstance(task, Refusal):
        return task
    if not task.is_terminal:
        deps.state(RequestAttempts).lose(request_id)
    return _result(task, is_resent=attempt is not None)


async def created_task(call: Call, request_id: str, until: float = 0.0, wait: Wait | None = None) -> Task | Refusal:
    """Return a task that this request created, or joined, once it, the time (trio's) or the wait has ended.

    A client that does not number its attempts is answered ``outcome_unknown`` where others get a 503: it could not
    send the request again without creating another task.
    """
    try:
        watch_of = call.deps.following.changes.watch
        with watch_of(request_id) as watch, call.deps.state(RequestAttempts).served(request_id):
            if wait is not None:
                wait.end_with(watch)
            found = await own_task(call, request_id)
            if until and not isinstance(found, Refusal) and not found.is_terminal:
                del found
                found = await end_of_task(call, request_id, watch, until)
    except (AskFault, DatabaseAway, UnreadableRow):
        if _attempt(call) is None:
            return _OUTCOME_UNKNOWN
        raise
    return found


def delivered(call: Call, outcome: Outcome) -> Outcome:
    """Return the response with a result; if it cannot be sent now it is refused as by :func:`created_task`."""
    return _OUTCOME_UNKNOWN if isinstance(outcome, Refusal) and _attempt(call) is None else outcome


def _result(task: Task, *, is_resent: bool) -> Task | NoResult:
    if task.status == "succeeded":
        return task
    headers = task_headers(task.request_id)
    if task.is_terminal:
        error = task.state.error or task.status
        code = _CODES.get(error.partition(":")[0], "task_failed")
        message = f"The task {task.request_id} {task.status}, and nothing was charged: {error}."
        return BodyResponse(Refusal(code=code, message=message, final=True), headers=headers)
    asks_again = is_resent and task.status != "review"
    refusal = Refusal(
        code="task_not_ended",
        message=f"The task {task.request_id} is {task.status}. Its result can be retrieved from /v2/task later; "
        "another request would create, and cost, another task.",
        retry_after_s=1 if asks_again else None,
        final=not asks_again,
    )
    return BodyResponse(refusal, headers=(*headers, *((("X-Should-Retry", "true"),) if asks_again else ())))


def _attempt(call: Call) -> int | None:
    """Return the number of the client's attempt at this request, None if it does not number them."""
    sent = next(iter(call.request.sent.get(b"x-stainless-retry-count", [])), "")
    return int(sent) if sent.isascii() and sent.isdigit() and len(sent) <= 4 else None


def _timeout_s(call: Call) -> float:
    """Return after how long the client gives up."""
    for name in (b"x-stainless-read-timeout", b"x-stainless-timeout"):
        sent = next(iter(call.request.sent.get(name, [])), "")
        whole, _, decimals = sent.partition(".")
        if sent.isascii() and whole.isdigit() and len(sent) <= 20 and (not decimals or decimals.isdigit()):
            return max(1.0, float(sent))
    return CLIENT_TIMEOUT_S
