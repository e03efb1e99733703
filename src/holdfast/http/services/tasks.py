"""Media tasks: creates, retries, reads, waits and cancels of a caller's tasks.

Creating is the hot path: with a cached key it reads no row. The account's actor checks that the key is still live
and may write; the command carries the claim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

import msgspec
import structlog
import trio
from prometheus_client import Counter
from sqlalchemy import Connection

from holdfast.actors.account.messages import CreateTask, RefuseTask, RequestAttempt, TaskAccepted
from holdfast.actors.account.replies import STORED_REFUSALS
from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.actors.task.messages import CancelTask, DeleteResults
from holdfast.http.kit.calls import Call
from holdfast.http.kit.credentials import KnownKey
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import refusal_of_fault
from holdfast.http.kit.other_cells import Elsewhere
from holdfast.http.kit.values import invalid_parameter, read_amount, shown
from holdfast.http.kit.waiting import CHECK_S
from holdfast.http.schemas.common import credit_path
from holdfast.http.schemas.tasks import CreateTaskRequest, TaskBounds
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.ledger.catalog.seals import SealedQuote, quote_matches, unseal_quote
from holdfast.ledger.refusals import Refusal, param_of
from holdfast.ledger.tasks.events import CHOSEN_BY_DEFAULT, EVENT_KINDS, chosen_kinds
from holdfast.ledger.tasks.inputs import INPUT_SMALL_BYTES_MAX, input_until
from holdfast.ledger.tasks.task import TERMINAL, EventKind, Task, TaskRequest, WebhookFormat, accept_task
from holdfast.ledger.values import format_amount, is_id, new_id
from holdfast.persistence.claims.files import claim_files, release_claims
from holdfast.persistence.journal.changes import Extent, Watch
from holdfast.persistence.queries.tasks import find_tasks, stored_input_bytes, task_by_id
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.lookups import Lookup
from holdfast.providers.outbound.urls import is_public_url
from holdfast.providers.outbound.webhook_post import URL_MAX_CHARS, can_be_posted_to
from holdfast.telemetry import metrics
from holdfast.telemetry.costs import costs
from holdfast.telemetry.traces import other_request_id, traceparent

log = structlog.get_logger(__name__)

T = TypeVar("T")

METADATA_MAX_PAIRS: Final = 16
METADATA_KEY_MAX_CHARS: Final = 64
METADATA_VALUE_MAX_CHARS: Final = 512

CREATE_ERRORS: Final = (
    "insufficient_credit",
    "key_limit_exceeded",
    "account_limit_exceeded",
    "model_not_allowed",
    "model_not_found",
    "model_not_available",
    "model_not_async",
    "model_paused",
    "invalid_input",
    "quote_unavailable",
    "concurrency_limit_exceeded",
    "rate_limit_exceeded",
    "stored_input_limit_reached",
    "file_not_found",
    "account_disabled",
    "invalid_amount",
    "max_credits_exceeded",
)


CreateReply: TypeAlias = TaskAccepted | Replayed[TaskAccepted] | Refusal
"""The reply to a create."""


async def created_task(call: Call, wanted: CreateTaskRequest, idempotency: IdempotencyKey | None) -> Task | Refusal:
    """Create a task, and return it, or that of an earlier request with this key, as it was when it was created."""
    command = await _priced(call, wanted, idempotency)
    return await _created(call, command, await _ask_account(call, call.known_key, command, idempotency))


async def without_results(call: Call) -> Task | Refusal:
    """Delete the results of the path's task, and return it.

    Refuses: 1. as :func:`own_task`; 2. ``task_not_terminal``.
    """
    found = await own_task(call)
    if isinstance(found, Refusal):
        return found
    reply = await call.ask(call.deps.tasks.ref(found.request_id), DeleteResults())
    return reply if isinstance(reply, Refusal) else reply.task


async def retried_task(call: Call, bounds: TaskBounds, idempotency: IdempotencyKey | None) -> Task | Refusal:
    """Create a task with the input of the path's, at the current price, and return it as a create does.

    Its deadline is that of the ``bounds``, not the original's.

    Refuses: 1. as :func:`own_task`; 2. ``task_not_terminal``, ``task_input_expired``; 3. as a create.
    """
    found = await own_task(call)
    if isinstance(found, Refusal):
        return found
    key = call.known_key
    original = await call.read(lambda rows: task_by_id(rows, call.path["request_id"]))
    assert original is not None, "a task is never deleted"
    # The stored input may be large although this request is small, so it is priced in a thread.
    command = await call.compute(
        _retry_command, call, original, bounds, key.key_id, idempotency, caller=original.account_id
    )
    if input_until(original) is not None:
        command = await _refuse_stored_inputs(call, original.account_id) or command
    reply = await _ask_account(call, key, command, idempotency)
    return await _created(call, command, reply)


async def accepted_task(
    call: Call,
    wanted: CreateTaskRequest,
    idempotency: IdempotencyKey | None,
    *,
    webhook_format: WebhookFormat | None = None,
    after: RequestAttempt | None = None,
) -> CreateReply:
    """Price the input, then ask the account for a task; the call's key is known.

    With ``after`` it refuses as :class:`CreateTask` does.
    """
    command = await _priced(call, wanted, idempotency, webhook_format=webhook_format, after=after)
    return await _ask_account(call, call.known_key, command, idempotency)


async def _priced(
    call: Call,
    wanted: CreateTaskRequest,
    idempotency: IdempotencyKey | None,
    *,
    webhook_format: WebhookFormat | None = None,
    after: RequestAttempt | None = None,
) -> CreateTask | Refusal:
    command = await call.compute(_command, call, wanted, idempotency, webhook_format, after)
    if call.body_bytes > INPUT_SMALL_BYTES_MAX:
        command = await _refuse_stored_inputs(call, call.known_key.account_id) or command
    return command


async def _refuse_stored_inputs(call: Call, account_id: str) -> Refusal | None:
    """Refuse another large input while those of the account's failed tasks, stored for a retry, take too much."""
    most = call.deps.settings.stored_input_bytes_max
    stored = await call.read(lambda rows: stored_input_bytes(rows, account_id))
    if stored <= most:
        return None
    return Refusal(
        code="stored_input_limit_reached",
        message=f"Large inputs of failed tasks take {stored} bytes; at most {most} are stored. They are deleted "
        f"a week after the end of their task; inputs up to {INPUT_SMALL_BYTES_MAX} bytes are accepted meanwhile.",
    )


async def _ask_account(
    call: Call, key: KnownKey, command: CreateTask | Refusal, idempotency: IdempotencyKey | None
) -> CreateReply:
    reply: CreateReply
    account = call.deps.accounts.ref(key.account_id)
    if isinstance(command, CreateTask):
        costs.add_each(("model", "provider"), (command.request.terms.model, command.request.terms.provider))
    if isinstance(command, CreateTask) and command.request.files:
        command = await _claim_files(call, key.account_id, command)
    if isinstance(command, Refusal):
        if idempotency is None or command.code not in STORED_REFUSALS:
            reply = await call.refuse(command, idempotency, TaskAccepted)
        else:
            reply = await call.ask(account, RefuseTask(command, key.key_id, TASKS_WRITE, idempotency))
    else:
        reply = await call.ask(account, command)
        if isinstance(reply, Refusal) and reply.code == "rate_limit_exceeded":
            # Decided without the rows, where the reply to an earlier request with this key may be.
            reply = await call.refuse(reply, idempotency, TaskAccepted)
        if command.request.files and not isinstance(reply, TaskAccepted):
            await call.deps.write_record(_claims(release_claims, key.account_id, command.request))
        if isinstance(reply, TaskAccepted):
            _created_of(command.request.terms.provider).inc()
            return reply
    return _with_credit_address(call, reply)


def _with_credit_address(call: Call, reply: CreateReply) -> CreateReply:
    """Return the reply, with the address where credit is added if there is too little."""
    refusal = reply.reply if isinstance(reply, Replayed) else reply
    if not isinstance(refusal, Refusal) or refusal.code != "insufficient_credit":
        return reply
    path = credit_path(call.deps)
    if path is None:
        return reply
    message = f"{refusal.message} Credit is added by POST {call.deps.urls.base}{path}."
    refusal = msgspec.structs.replace(refusal, message=message)
    return Replayed(refusal) if isinstance(reply, Replayed) else refusal


async def _created(call: Call, command: CreateTask | Refusal, reply: CreateReply) -> Task | Refusal:
    """Return the task that ``command`` has created, or that an earlier one had, as it was when it was created."""
    accepted = call.take_reply(reply)
    if isinstance(accepted, Refusal):
        return accepted
    request_id, created_at = accepted.request_id, accepted.created_at
    if isinstance(command, CreateTask) and created_at is not None and not call.is_replay:
        request = command.request
    else:
        # An earlier request may have come with another key, or at another price.
        stored = await call.read(lambda rows: find_tasks(rows, [request_id]))
        if request_id not in stored:
            raise AccountAway("the account has replied from memory, and was moved away")
        _, found = stored[request_id]
        if isinstance(found, UnreadableRow):
            raise found
        request, created_at = found.request, found.created_at
    return accept_task(call.known_key.account_id, request_id, request, created_at)


async def _claim_files(call: Call, account_id: str, command: CreateTask) -> CreateTask | Refusal:
    """Have the files of an input stored until the task ends. Refuses with ``file_not_found``."""
    request = command.request
    missing = await call.write(account_id, _claims(claim_files, account_id, request, at=call.deps.now()))
    if not missing:
        return command
    path, file_id = next((each.path, each.file_id) for each in request.files if each.file_id in missing)
    return Refusal(
        code="file_not_found",
        message=f"The file '{file_id}' does not exist, or has expired.",
        param=".".join(("input", *map(str, path))),
    )


def _claims(
    change: Callable[..., T], account_id: str, request: TaskRequest, **how: datetime
) -> Callable[[Connection], T]:
    file_ids = {each.file_id for each in request.files}
    return lambda rows: change(rows, account_id, file_ids, hold_id=request.hold_id, **how)


@functools.cache
def _created_of(provider: str) -> Counter:
    return metrics.TASKS_CREATED.labels(provider)


def _command(
    call: Call,
    wanted: CreateTaskRequest,
    idempotency: IdempotencyKey | None,
    webhook_format: WebhookFormat | None,
    after: RequestAttempt | None,
) -> CreateTask | Refusal:
    deps, key, metadata = call.deps, call.known_key, wanted.metadata or {}
    refusal = _refuse_metadata(metadata) if metadata else None
    events = refusal or _webhook_events(deps, wanted.webhook_url, wanted.webhook_events)
    if isinstance(events, Refusal):
        return events
    quoted = (
        None if wanted.quote_id is None else unseal_quote(wanted.quote_id, deps.settings.quote_keys, deps.now())
    )
    if isinstance(quoted, Refusal):
        return quoted
    priced = _price(deps, wanted.model, wanted.input, quoted)
    if isinstance(priced, Refusal):
        return priced
    terms, quote_id = priced.terms, wanted.quote_id or new_id("quo")
    if quoted is not None:
        mismatch = quote_matches(quoted, model=terms.model, input_hash=terms.input_hash, account_id=key.account_id)
        if mismatch is not None:
            return mismatch
        terms = quoted.terms
    refusal = _refuse_cost(terms.hold_micro, wanted.max_credits)
    if refusal is not None:
        return refusal
    request = TaskRequest(
        input=priced.input,
        files=priced.files,
        terms=terms,
        quote_id=quote_id,
        api_key_id=key.key_id or None,
        hold_id=new_id("hold"),
        hold_micro=terms.hold_micro,
        metadata=metadata,
        webhook_url=wanted.webhook_url,
        webhook_events=events,
        webhook_format=webhook_format,
        traceparent=traceparent.get(),
        http_request_id=other_request_id(),
        deadline_s=wanted.deadline_s,
    )
    return CreateTask(request, TASKS_WRITE, idempotency, after)


async def ended_task(call: Call, request_id: str, wait_s: float) -> Task | Refusal:
    """Return as :func:`own_task`, but once the task has ended, the wait has, or the watch is ending."""
    until = trio.current_time() + wait_s
    with call.deps.following.changes.watch(request_id) as watch:
        found = await own_task(call, request_id)
        if isinstance(found, Refusal) or found.is_terminal:
            return found
        with call.deps.following.waiting.counted(found.account_id, call.origin()) as wait:
            if isinstance(wait, Refusal):
                return wait
            wait.end_with(watch)
            del found  # it may have megabytes
            return await end_of_task(call, request_id, watch, until)


async def end_of_created(call: Call, request_id: str, until: float) -> Task | None:
    """Return a task that this call has created as :func:`ended_task` does, by a time (trio's).

    None if that has passed, if the key may not read tasks, or if the task cannot be read or waited for: it exists,
    and after an error some clients would create another one.
    """
    wait_s = until - trio.current_time()
    if wait_s <= 0 or TASKS_READ not in call.known_key.scopes:
        return None
    try:
        found = await ended_task(call, request_id, wait_s)
    except Elsewhere:
        return None
    except Exception as fault:
        if refusal_of_fault(fault) is None:
            log.error("unexpected fault", exc_info=fault)
        return None
    # The scopes above may be of a cached key, those here are of its row.
    return None if isinstance(found, Refusal) or TASKS_READ not in call.known_key.scopes else found


async def end_of_task(call: Call, request_id: str, watch: Watch, until: float) -> Task | Refusal:
    """Return as :func:`own_task`, once a watched task has ended, the time is over, or the watch is ending."""
    while True:
        # The account may be moved to another cell meanwhile, which no notice says.
        await watch.wait(min(until, trio.current_time() + CHECK_S), Extent.END)
        watch.take()
        found = await own_task(call, request_id)
        if isinstance(found, Refusal) or found.is_terminal:
            return found
        if trio.current_time() >= until or watch.is_ending:
            return found
        del found


def _retry_command(
    call: Call, original: Task, bounds: TaskBounds, key_id: str, idempotency: IdempotencyKey | None
) -> CreateTask | Refusal:
    if original.status not in TERMINAL:
        return Refusal(
            code="task_not_terminal",
            message=f"The task {shown(original.request_id)} is {original.status}; only ended tasks can be retried.",
            final=True,
        )
    if original.request.input_dropped:
        return Refusal(
            code="task_input_expired",
            message=f"The input of the task {shown(original.request_id)} was large and is no longer stored.",
            final=True,
        )
    priced = _price(call.deps, original.model, original.request.input)
    if isinstance(priced, Refusal):
        return priced
    refusal = _refuse_cost(priced.terms.hold_micro, bounds.max_credits)
    if refusal is not None:
        return refusal
    request = msgspec.structs.replace(
        original.request,
        input=priced.input,
        files=priced.files,
        terms=priced.terms,
        quote_id=new_id("quo"),
        api_key_id=key_id or None,
        hold_id=new_id("hold"),
        hold_micro=priced.terms.hold_micro,
        retry_of=original.request_id,
        deadline_s=bounds.deadline_s,
        traceparent=traceparent.get(),
        http_request_id=other_request_id(),
    )
    return CreateTask(request, TASKS_WRITE, idempotency)


async def canceled_task(call: Call, request_id: str | None = None) -> Task | Refusal:
    """Cancel a task, by default the path's, and return it.

    Refuses: 1. as :func:`own_task`; 2. ``task_already_terminal``.
    """
    found = await own_task(call, request_id)
    if isinstance(found, Refusal):
        return found
    done = await call.ask(call.deps.tasks.ref(found.request_id), CancelTask())
    return done if isinstance(done, Refusal) else done.task


def task_not_found(request_id: str) -> Refusal:
    """Return the refusal of a task id that the caller has no task for."""
    return Refusal(code="task_not_found", message=f"The task {shown(request_id)} does not exist.")


async def own_task(call: Call, request_id: str | None = None) -> Task | Refusal:
    """Authenticate the caller and return the account's task, by default the path's, without its input.

    Another account's task does not exist. Refuses: 1. as the credential is refused; 2. ``task_not_found``. Raises
    :class:`UnreadableRow`.
    """
    request_id = call.path["request_id"] if request_id is None else request_id
    lookup = Lookup(find_tasks, request_id)
    caller_id = await call.verify_caller(*([lookup] if is_id(request_id) else []))
    if isinstance(caller_id, Refusal):
        return caller_id
    account_id, task = lookup.found or (None, None)
    if task is None or account_id != caller_id:
        return task_not_found(request_id)
    if isinstance(task, UnreadableRow):
        raise task
    return task


def _price(
    deps: Dependencies, model_id: str, given: dict[str, object], quoted: SealedQuote | None = None
) -> PricedInput | Refusal:
    """Price an input for a model that can run as a task.

    With a quote for the model the input is priced by the quote's version of the catalog, so that a later change of
    a default or a tier does not void it. A model that is disabled now is refused, and one that is paused if its
    new tasks do not wait.
    """
    catalog = deps.registry.catalog
    model = catalog.models.get(model_id)
    if quoted is not None and quoted.terms.model == model_id and (model is None or model.status != "disabled"):
        catalog = deps.registry.catalog_of(quoted.terms.catalog_version) or catalog
        model = catalog.models.get(model_id)
    if model is not None and model.type == "sync":
        return Refusal(
            code="model_not_async",
            message=f"The model '{model.id}' is priced only: it does not run as a task.",
            param="model",
        )
    priced = quote_input(catalog, model_id, given, base_url=deps.urls.base, is_public=is_public_url)
    if isinstance(priced, Refusal):
        return priced
    return deps.operating.overrides.refuse_new(priced.terms.model, priced.terms.provider) or priced


def _refuse_cost(hold_micro: int, max_credits: str | None) -> Refusal | None:
    """Refuse a task that could cost more than the caller allows."""
    if max_credits is None:
        return None
    max_micro = read_amount(max_credits, param="max_credits")
    if isinstance(max_micro, Refusal) or hold_micro <= max_micro:
        return max_micro if isinstance(max_micro, Refusal) else None
    return Refusal(
        code="max_credits_exceeded",
        message=f"The task can cost {format_amount(hold_micro)} credits; max_credits is {max_credits}.",
        param="max_credits",
        required_micro=hold_micro,
    )


def _refuse_metadata(metadata: dict[str, str]) -> Refusal | None:
    if len(metadata) > METADATA_MAX_PAIRS:
        return invalid_parameter("metadata", f"has {len(metadata)} pairs; the maximum is {METADATA_MAX_PAIRS}")
    for key, value in metadata.items():
        if not 1 <= len(key) <= METADATA_KEY_MAX_CHARS:
            rule = f"has {len(key)} characters in its name; a name has 1 to {METADATA_KEY_MAX_CHARS}"
            return invalid_parameter(param_of(("metadata", key)), rule)
        if len(value) > METADATA_VALUE_MAX_CHARS:
            rule = f"has {len(value)} characters; the maximum is {METADATA_VALUE_MAX_CHARS}"
            return invalid_parameter(param_of(("metadata", key)), rule)
    return None


def _webhook_events(
    deps: Dependencies, url: str | None, kinds: Sequence[str] | None
) -> tuple[EventKind, ...] | Refusal | None:
    """Return the event kinds to send. The default is stored, so that a later default does not change the task.

    Refuses an address that can never be called. Where its name resolves to is checked at each delivery.
    """
    if url is None:
        return None if kinds is None else invalid_parameter("webhook_events", "requires webhook_url")
    if not can_be_posted_to(url, local_allowed=deps.settings.webhook_local_allowed):
        return invalid_parameter(
            "webhook_url", f"must be an https address of a public host, at most {URL_MAX_CHARS} characters"
        )
    chosen = CHOSEN_BY_DEFAULT if kinds is None else chosen_kinds(kinds)
    return chosen or invalid_parameter("webhook_events", f"must name one or more of {', '.join(EVENT_KINDS)}")
