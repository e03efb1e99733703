"""Predictions: create, list, read, cancel, follow.

The clients resend what may have been accepted after some responses and after a broken connection, so:

- once a task exists the response is its prediction, whatever happens while it is waited for;
- an outcome that is not known has a status after which none of them resends;
- of a client that resends after a broken connection, the resend gets the first request's prediction.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
import trio

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import Bearer
from holdfast.http.kit.listing import CURSOR, LIMIT, Position, list_of_account
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, BodyResponse, Outcome, Parameter, RouteTable
from holdfast.http.kit.stored_content import link_parameters, refuse_link
from holdfast.http.kit.values import invalid_parameter, shown
from holdfast.http.kit.waiting import WAIT_MAX_S, preferred_wait_s, stream_media
from holdfast.http.schemas.tasks import DEADLINE_MAX_S, CreateTaskRequest, WantedTask
from holdfast.http.services.following import follow_task
from holdfast.http.services.tasks import (
    CREATE_ERRORS,
    accepted_task,
    canceled_task,
    end_of_created,
    own_task,
)
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE
from holdfast.ledger.catalog.pricing import some_models
from holdfast.ledger.links import sign_link
from holdfast.ledger.public_types import FreeForm
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, WebhookFormat
from holdfast.ledger.values import PLACE_DIGITS, format_time
from holdfast.persistence.queries.tasks import tasks_of_account
from holdfast_compat.attempts import RequestAttempts, group_of
from holdfast_compat.model_words import SentInput, as_sent
from holdfast_compat.replicate.inputs import BELOW, native_input
from holdfast_compat.replicate.models import model_of_version, path_model_id
from holdfast_compat.replicate.schemas import (
    BASE,
    EVENT_KINDS,
    PredictionBody,
    PredictionList,
    PredictionRequest,
    VersionPredictionRequest,
    log_lines,
    prediction,
    prediction_urls,
    with_next_address,
)

route = RouteTable("Replicate", auth=Auth.API_KEY)

WAIT_USED: Final = 0.95
"""The part of a wait that is used: the client gives up half a second after it."""

PREFER: Final = Parameter(
    name="Prefer",
    location="header",
    description="`wait` responds when the prediction has ended, or after 60 seconds; `wait=5` after 5 at most. "
    "A prediction that has not ended by then is `starting`, whatever it does.",
    schema={"type": "string", "pattern": "^wait(=[0-9]{1,2})?$"},
)

CANCEL_AFTER_MIN_S: Final = 5
CANCEL_AFTER: Final = Parameter(
    name="Cancel-After",
    location="header",
    description="Cancels the prediction if it has not ended so long after its creation: `90s`, `1m30s`, `2h`, or a "
    "number of seconds; at least 5 seconds.",
    schema={"type": "string", "pattern": "^([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,7}s?)?$"},
)
MAX_CREDITS: Final = Parameter(
    name="Max-Credits",
    location="header",
    description="Creates no prediction for which more credit would be held, which is the most that it can cost.",
    schema={"type": "string", "pattern": r"^(0|[1-9][0-9]*)(\.[0-9]{1,6})?$"},
)

_RESENDING: Final = re.compile(r"\b(?:replicate-javascript|ai-sdk)/", re.ASCII)
"""The User-Agent of clients that send a request again when its connection breaks; those in Python do not."""

_OUTCOME_UNKNOWN: Final = Refusal(
    code="outcome_unknown",
    message="There was no result in time, and the prediction may have been created. Look for it in the list.",
)
_DURATION: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s?)?", re.ASCII)
_LINK_EXPIRED: Final = Refusal(
    code="invalid_link", message="The link to the stream has expired: read the prediction again."
)


_creates: Final = functools.partial(
    route,
    "POST",
    is_kept=False,
    scope=TASKS_WRITE,
    takes_input=True,
    reply=PredictionBody,
    statuses=(201,),
    parameters=(PREFER, CANCEL_AFTER, MAX_CREDITS, IDEMPOTENCY_KEY),
    errors=(*CREATE_ERRORS, "outcome_unknown"),
)


@_creates(
    f"{BASE}/models/{{owner}}/{{name}}/predictions",
    summary="Create a prediction; its credit is held and the work starts",
    body=PredictionRequest,
)
async def create_prediction(call: Call) -> Outcome:
    """The task is created as by `POST /v2/task/create`. The input may use the clients' own words for what the model
    takes by another name: `num_outputs`, `size` (as 768x512) and `duration`; a data URI may stand for base64.
    """
    return await _create(call, path_model_id(call), call.body(PredictionRequest))


@_creates(
    f"{BASE}/predictions", summary="Create a prediction of a version of a model", body=VersionPredictionRequest
)
async def create_prediction_of_version(call: Call) -> Outcome:
    """As a prediction of a model is created; the model is that of the version."""
    wanted = call.body(VersionPredictionRequest)
    model_id = model_of_version(call.deps.registry.catalog, wanted.version)
    if model_id is None:
        return await call.refuse_authenticated(
            Refusal(
                code="model_not_found",
                message=f"No model has the version {shown(wanted.version)}. "
                + some_models(wanted.version, call.deps.registry.catalog.models),
                param="version",
            )
        )
    return await _create(call, model_id, wanted)


async def _create(call: Call, model_id: str, wanted: PredictionRequest) -> Outcome:
    """Create the task, under an Idempotency-Key of its own if the client may resend the request without one."""
    until = trio.current_time() + _wait_s(call)
    idempotency = call.idempotency()
    if isinstance(idempotency, Refusal):
        return await call.refuse_authenticated(idempotency)
    native = await call.compute(_native, call, model_id, wanted)
    if isinstance(native, Refusal):
        return await call.refuse_authenticated(native)
    created = functools.partial(_created, call, native, wanted.input, until)
    try:
        if idempotency is not None or not _RESENDING.search(" ".join(call.request.sent.get(b"user-agent", []))):
            return await created(idempotency)
        group = group_of(call, f"{call.request.path}\n".encode() + call.raw)
        return await call.deps.state(RequestAttempts).answer(
            group,
            lambda key: created(IdempotencyKey(route=call.route.name, key=key, fingerprint=group.encode())),
            call.request.undelivered,
        )
    except OutcomeUnknown:
        return _OUTCOME_UNKNOWN


def _wait_s(call: Call) -> float:
    """Return how long to wait for the end of the prediction."""
    wait_s = preferred_wait_s(call.request.sent.get(b"prefer", []), bare_s=WAIT_MAX_S)
    return 0.0 if wait_s is None else WAIT_USED * min(wait_s, WAIT_MAX_S)


def _deadline_s(sent: Sequence[str]) -> int | Refusal | None:
    """Return the seconds of ``Cancel-After``; None without it. Refuses with ``invalid_parameter``."""
    if not sent:
        return None
    match = _DURATION.fullmatch(sent[0].strip())
    hours, minutes, seconds = (0, 0, 0) if match is None else (int(part or 0) for part in match.groups())
    deadline_s = hours * 3600 + minutes * 60 + seconds
    if len(sent) == 1 and CANCEL_AFTER_MIN_S <= deadline_s <= DEADLINE_MAX_S:
        return deadline_s
    rule = f"must be a time from {CANCEL_AFTER_MIN_S}s to {DEADLINE_MAX_S // 3600}h, such as 90s, 1m30s or 90"
    return invalid_parameter("Cancel-After", rule, sent[0])


def _native(call: Call, model_id: str, wanted: PredictionRequest) -> WantedTask | Refusal:
    """Return the request as the native endpoint takes it."""
    model = call.deps.registry.catalog.models.get(model_id)
    given = SentInput(wanted.input, {}) if model is None else native_input(model, wanted.input)
    if isinstance(given, Refusal):
        return given
    deadline_s = _deadline_s(call.request.sent.get(b"cancel-after", []))
    if isinstance(deadline_s, Refusal):
        return deadline_s
    max_credits = next(iter(call.request.sent.get(b"max-credits", [])), None)
    native = CreateTaskRequest(
        model_id, given.input, metadata=wanted.metadata, max_credits=max_credits, deadline_s=deadline_s
    )
    url, chosen = wanted.webhook or wanted.webhook_completed, wanted.webhook_events_filter
    if chosen is None or wanted.webhook is None:
        chosen = ["completed"]
    kinds = list(dict.fromkeys(kind for each in chosen for kind in EVENT_KINDS[each]))
    if url is not None and kinds:
        native = msgspec.structs.replace(native, webhook_url=url, webhook_events=kinds)
    return WantedTask(native, given.sent_as)


async def _created(
    call: Call, wanted: WantedTask, given: FreeForm, until: float, idempotency: IdempotencyKey | None
) -> Outcome:
    """Create the task, and return its prediction as of its end, or as it has begun."""
    native, sent_as = wanted
    webhook_format: WebhookFormat | None = "prediction" if native.webhook_url else None
    reply = await accepted_task(call, native, idempotency, webhook_format=webhook_format)
    accepted = call.take_reply(reply)
    if isinstance(accepted, Refusal):
        return _as_sent(accepted, sent_as)
    task = await end_of_created(call, accepted.request_id, until)
    if task is None or not task.is_terminal:
        body = _started(call, accepted.request_id, native.model, given)
    else:
        body = msgspec.structs.replace(_body(call, task), input=given)
    return BodyResponse(body, status=201)


def _as_sent(refusal: Refusal, sent_as: Mapping[str, str]) -> Refusal:
    """Return a refusal of a field of the input, or of a webhook's address, under the name that the client sent."""
    if refusal.param != "webhook_url":
        return as_sent(refusal, sent_as, below=BELOW)
    message = refusal.message.replace("webhook_url", "webhook")
    return msgspec.structs.replace(refusal, param="webhook", message=message)


def _started(call: Call, request_id: str, model_id: str, given: FreeForm) -> PredictionBody:
    """Return the prediction of a task that was just created, without a read of it."""
    now = call.deps.now()
    return PredictionBody(
        id=request_id,
        model=model_id,
        input=given,
        created_at=format_time(now),
        urls=prediction_urls(call.deps.urls, request_id, _stream_link(call, request_id, now)),
    )


@route(
    "GET",
    f"{BASE}/predictions",
    summary="List the account's predictions; newest first",
    scope=TASKS_READ,
    reply=PredictionList,
    parameters=(CURSOR, LIMIT),
    errors=("invalid_cursor",),
)
async def list_predictions(call: Call) -> Outcome:
    """All tasks of the account are in it, whichever way they were created."""
    urls, now = call.deps.urls, call.deps.now()
    page = await list_of_account(
        call,
        tasks_of_account,
        lambda task: prediction(urls, task, now=now),
        lambda task: Position(task.created_at, task.request_id),
    )
    return with_next_address(call, page)


@route(
    "GET",
    f"{BASE}/predictions/{{request_id}}",
    summary="Retrieve a prediction; the links to its results are signed for this response",
    scope=TASKS_READ,
    reply=PredictionBody,
    errors=("task_not_found",),
)
async def read_prediction(call: Call) -> Outcome:
    """Any task of the account can be read as a prediction."""
    found = await own_task(call)
    return found if isinstance(found, Refusal) else _body(call, found)


@route(
    "POST",
    f"{BASE}/predictions/{{request_id}}/cancel",
    summary="Cancel a prediction and release its whole hold; one that has ended is returned as it is",
    scope=TASKS_WRITE,
    reply=PredictionBody,
    errors=("task_not_found",),
)
async def cancel_prediction(call: Call) -> Outcome:
    """If the prediction ends at the same time, the response shows which of the two won."""
    task = await canceled_task(call)
    if not isinstance(task, Refusal):
        return _body(call, task)
    if task.code != "task_already_terminal":
        return task
    found = await own_task(call)
    return found if isinstance(found, Refusal) else _body(call, found)


def _body(call: Call, task: Task) -> PredictionBody:
    now = call.deps.now()
    return prediction(call.deps.urls, task, now=now, stream=_stream_link(call, task.request_id, now))


@route(
    "GET",
    f"{BASE}/predictions/{{request_id}}/stream",
    summary="Follow a prediction until it has ended, by the link in its urls",
    auth=Auth.NONE,
    scope=TASKS_READ,
    media=(
        stream_media(
            "`logs` for each new line of the logs, `output` for each link to a result, then `done`; instead of "
            "`done` an `error` if the prediction has failed.",
            "event: output\nid: 1\ndata: https://holdfast.example/…\n\nevent: done\nid: 2\ndata: {}\n\n",
        ),
    ),
    parameters=(
        Parameter(name="key", location="query", description="The API key that the link stands for.", required=True),
        *link_parameters(required=True),
    ),
    errors=("invalid_link", "invalid_api_key", "task_not_found", "rate_limit_exceeded", "overloaded"),
)
async def stream_prediction(call: Call) -> Outcome:
    """The link stands for the API key that it was made for: the clients in JavaScript send no credential here.

    Each event has an `id`, a number within the stream. A stream ends after 15 minutes, and sends a comment at least
    every 15 seconds.
    """
    [key] = call.query().get("key", [""])[:1]
    refusal = refuse_link(call, _streamed(call.path["request_id"], key), _LINK_EXPIRED)
    if refusal is not None:
        return refusal
    digits = call.path["request_id"][-PLACE_DIGITS:]
    call.bearer = Bearer("api_key", base64.urlsafe_b64decode(key + "="), digits)
    return await follow_task(call, None, PredictionEvents(call).of)


def _stream_link(call: Call, request_id: str, now: datetime) -> str:
    """Return the link to the stream of a task, which reads it as the call's API key does."""
    assert call.bearer is not None
    urls = call.deps.urls
    key = base64.urlsafe_b64encode(call.bearer.sha256).decode().rstrip("=")
    query = sign_link(_streamed(request_id, key), urls.link_expiry(now, None), urls.link_keys[0])
    return f"{urls.base}{BASE}/predictions/{request_id}/stream?key={key}&{query}"


def _streamed(request_id: str, key: str) -> str:
    return f"stream {request_id} {key}"


class PredictionEvents:
    """The events of one stream: of each state of its task, those that were not sent yet."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lines: list[str] = []
        self._sent_count = 0

    def of(self, task: Task) -> bytes:
        """Return the events of a state."""
        lines, sent = log_lines(task), self._lines
        # The newest entries may have been merged into one: what is equal at the start was sent.
        same = next(
            (i for i, (a, b) in enumerate(zip(lines, sent, strict=False)) if a != b), min(len(lines), len(sent))
        )
        self._lines = lines
        events = [self._event("logs", line) for line in lines[same:]]
        match task.status:
            case "succeeded":
                body = _body(self._call, task)
                links = body.output if isinstance(body.output, list) else [body.output or ""]
                events += [self._event("output", link) for link in links if link]
                events.append(self._event("done", "{}"))
            case "failed":
                events.append(self._event("error", task.state.error or "failed"))
            case "canceled":
                events.append(self._event("done", '{"reason": "canceled"}'))
        return b"".join(events)

    def _event(self, kind: str, data: str) -> bytes:
        self._sent_count += 1
        return f"event: {kind}\nid: {self._sent_count}\ndata: {data}\n\n".encode()
