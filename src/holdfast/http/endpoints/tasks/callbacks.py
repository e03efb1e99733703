"""Signed callbacks of media providers. The signature is verified over the raw bytes before they are parsed."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.actors.task.messages import ReceiveProviderUpdate
from holdfast.http.endpoints.tasks.check_callbacks import (
    CheckCallbackReceived,
    is_of_check,
    receive_for_check,
    record_refused,
    sealed_check,
)
from holdfast.http.endpoints.tasks.media_tasks import task_not_found
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.refused_callbacks import (
    SENDER_ERRORS,
    count_refused,
    known_media_provider,
    refused_signature,
)
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.ledger.ids import is_id
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.persistence.queries.tasks import task_by_id
from holdfast.providers.media.callbacks import BODY_MAX_BYTES, parse_callback
from holdfast.providers.signatures import key_name, verify_signature

route = RouteTable("Callbacks")

SIGNATURE_HEADER: Final = "X-Callback-Signature"


class _Sender(msgspec.Struct):
    provider: str | None = None


@route(
    "POST",
    "/v2/callback",
    summary="Receive a media provider's callback about a task",
    auth=Auth.CALLBACK_SIGNATURE,
    raw_body_bytes_max=BODY_MAX_BYTES,
    raw_body_example={
        "event_id": "evt_1",
        "request_id": "task_01935f6c2b7d7c3e8a4d5e6f70819203",
        "attempt": 1,
        "status": "processing",
    },
    reply=TaskBody,
    other_reply=CheckCallbackReceived,
    parameters=(
        Parameter(
            name=SIGNATURE_HEADER,
            place="header",
            description="[k=<provider>,]t=<unix>,v1=<hex HMAC-SHA256 of t.body>[,v1=…]",
            required=True,
        ),
    ),
    errors=(*SENDER_ERRORS, "task_not_found"),
)
async def receive_callback(call: Call) -> Outcome:
    """Respond with the task to applied, duplicate, stale and late updates, so that retries stop."""
    outcome = await receive_signed(call)
    if isinstance(outcome, Refusal):
        key = key_name(",".join(call.request.headers.getlist(SIGNATURE_HEADER)))
        provider = known_media_provider(call, _named_in_body(call.raw) if key is None else key)
        outcome = count_refused(call, provider, outcome, claimed_by="body" if key is None else "signature's key")
    return await record_refused(call, outcome)


async def receive_signed(call: Call, provider: str | None = None) -> Outcome:
    """Receive an update with our own signature; ``provider`` is the one named in the path, if any."""
    deps = call.deps
    sent = call.request.headers.getlist(SIGNATURE_HEADER)
    header = sent[0] if len(sent) == 1 else ",".join(sent)
    named = key_name(header)
    if provider is not None and named is None:
        named = provider
    if provider is not None and named != provider:
        return refused_signature("invalid", SIGNATURE_HEADER)
    secrets = deps.callback_secrets(named)
    if not sent or not header.strip():
        return refused_signature("missing", SIGNATURE_HEADER)
    if named is None and not any(secrets):
        return Refusal(code="provider_not_configured", message="No callback secret is configured.")
    verdict = verify_signature(header, call.raw, secrets, now=deps.wall())
    if verdict != "valid":
        return refused_signature(verdict, SIGNATURE_HEADER)
    # A sender that names no key may name itself in the body.
    sender = named or _named_in_body(call.raw)
    update = parse_callback(sender or "", call.raw)
    if isinstance(update, Refusal):
        return update
    if named is None:
        # Any provider's secret was accepted so far; the task's own provider must have signed.
        provider = await _provider_of(call, update.request_id)
        if provider is None or (sender is not None and sender != provider):
            return task_not_found(update.request_id)
        verdict = verify_signature(header, call.raw, deps.callback_secrets(provider), now=deps.wall())
        if verdict != "valid":
            return refused_signature(verdict, SIGNATURE_HEADER)
        update = msgspec.structs.replace(update, provider=provider)
    return await apply_update(call, update, call.raw)


async def apply_update(call: Call, update: ProviderUpdate, body: bytes) -> Outcome:
    """Ask the task to apply a verified update of its ``provider``; ``body`` is stored."""
    if is_of_check(update.request_id):
        return await receive_for_check(call, update)
    if not is_id(update.request_id):
        return task_not_found(update.request_id)
    command = ReceiveProviderUpdate(update=update, body=body)
    done = await call.ask(call.deps.tasks.ref(update.request_id), command)
    return done if isinstance(done, Refusal) else task_body(call.deps, done.task)


async def _provider_of(call: Call, request_id: str) -> str | None:
    if is_of_check(request_id):
        sealed = sealed_check(call)
        return None if sealed is None else sealed[0]
    if not is_id(request_id):
        return None
    task = await call.deps.database.read(lambda rows: task_by_id(rows, request_id))
    return None if task is None else task.provider


def _named_in_body(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=_Sender).provider
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
