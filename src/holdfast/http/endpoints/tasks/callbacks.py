"""Signed callbacks of media providers. The signature is verified over the raw bytes before they are parsed."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from holdfast.actors.task.messages import ReceiveProviderUpdate
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.other_cells import require_here, require_place
from holdfast.http.kit.refused_callbacks import (
    SENDER_ERRORS,
    count_refused,
    known_media_provider,
    refused_signature,
)
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.http.services.tasks import task_not_found
from holdfast.ledger.catalog.models import CALLBACK_BYTES_MOST, ProviderConfig
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.values import is_id, place_carried_by
from holdfast.persistence.queries.tasks import task_by_id
from holdfast.providers.media.callbacks import (
    BODY_MAX_BYTES,
    PURPOSE,
    invalid_event,
    names_same_job,
    parse_callback,
    read_hook_query,
)
from holdfast.providers.media.kinds import PROVIDER_KINDS
from holdfast.providers.media.predictions import TERMINAL, PredictionFault, read_prediction, update_of
from holdfast.providers.media.provider_check import CHECK_PREFIX
from holdfast.providers.signatures import (
    STANDARD_ID_HEADER,
    STANDARD_SIGNATURE_HEADER,
    key_name,
    verify_signature,
    verify_standard,
)


class CheckCallbackReceived(msgspec.Struct, frozen=True):
    """The callback is about the job of a provider check, not about a task."""

    check_id: str
    """The check's id, `check_…`."""


def is_of_check(request_id: str) -> bool:
    """Whether a callback's task is the job of a provider check."""
    return request_id.startswith(CHECK_PREFIX)


async def receive_for_check(call: Call, update: ProviderUpdate) -> CheckCallbackReceived:
    """Record a verified update."""
    await call.deps.operating.provider_checks.record_callback(update.request_id, update=update, refused=None)
    return CheckCallbackReceived(update.request_id)


async def record_refused_callback(call: Call, refusal: Refusal) -> None:
    """Record a refused callback for the check that our own seal in the address names.

    Anyone may send a callback that is refused, so only the seal makes it worth a row.
    """
    sealed = sealed_check(call)
    if sealed is not None:
        await call.deps.operating.provider_checks.record_callback(sealed[1], update=None, refused=refusal.code)


def sealed_check(call: Call) -> tuple[str, str] | None:
    """Return the provider and the id of the check that the address names with our seal, if any."""
    query = call.request.query_string.decode("ascii", "replace")
    if not query:
        return None
    keys = call.deps.settings.derived_keys(PURPOSE)
    for provider in call.deps.registry.catalog.providers:
        job = read_hook_query(query, keys, provider)
        if job is not None and is_of_check(job[0]):
            return provider, job[0]
    return None


route = RouteTable("Callbacks")

SIGNATURE_HEADER: Final = "X-Callback-Signature"
_SIGNATURE_HEADER: Final = SIGNATURE_HEADER.lower().encode()


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
            location="header",
            description="[k=<provider>,]t=<unix>,v1=<hex HMAC-SHA256 of t.body>[,v1=…]",
            required=True,
        ),
    ),
    errors=(*SENDER_ERRORS, "task_not_found"),
)
async def receive_callback(call: Call) -> Outcome:
    """Applied, duplicate, stale and late updates get the task in response, so that retries stop."""
    outcome = await receive_signed(call)
    if isinstance(outcome, Refusal):
        key = key_name(",".join(call.request.headers.getlist(SIGNATURE_HEADER)))
        provider = known_media_provider(call, _named_in_body(call.raw) if key is None else key)
        count_refused(call, provider, outcome, claimed_by="body" if key is None else "signature's key")
        await record_refused_callback(call, outcome)
    return outcome


async def receive_signed(call: Call, provider: str | None = None) -> Outcome:
    """Receive an update with our own signature; ``provider`` is the one named in the path, if any."""
    deps = call.deps
    sent = call.request.sent.get(_SIGNATURE_HEADER, [])
    header = sent[0] if len(sent) == 1 else ",".join(sent)
    named = key_name(header)
    if provider is not None and named is None:
        named = provider
    if provider is not None and named != provider:
        return refused_signature("invalid", SIGNATURE_HEADER)
    secrets = deps.registry.callback_secrets(named)
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
        verdict = verify_signature(header, call.raw, deps.registry.callback_secrets(provider), now=deps.wall())
        if verdict != "valid":
            return refused_signature(verdict, SIGNATURE_HEADER)
        update = msgspec.structs.replace(update, provider=provider)
    return await apply_update(call, update, call.raw)


async def apply_update(call: Call, update: ProviderUpdate, body: bytes) -> Outcome:
    """Ask the task to apply a verified update of its ``provider``; ``body`` is stored."""
    place = place_carried_by(update.request_id)
    require_place(call.deps, call.request, place)
    if is_of_check(update.request_id):
        return await receive_for_check(call, update)
    if not is_id(update.request_id):
        return task_not_found(update.request_id)
    command = ReceiveProviderUpdate(update=update, body=body)
    done = await call.ask(call.deps.tasks.ref(update.request_id), command)
    if isinstance(done, Refusal) and done.code == "task_not_found":
        await require_here(call.deps, call.request, place)
    return done if isinstance(done, Refusal) else task_body(call.deps, done.task)


async def _provider_of(call: Call, request_id: str) -> str | None:
    place = place_carried_by(request_id)
    require_place(call.deps, call.request, place)
    if is_of_check(request_id):
        sealed = sealed_check(call)
        return None if sealed is None else sealed[0]
    task = await call.deps.find_by_id(task_by_id, request_id)
    if task is None:
        await require_here(call.deps, call.request, place)
    return None if task is None else task.provider


def _named_in_body(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=_Sender).provider
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_NOT_CONFIGURED: Final = Refusal(code="provider_not_configured", message="This provider has no secret configured.")


def _bytes_max(call: Call) -> int:
    """Return the body limit of a provider; without the right token a container has the common limit."""
    config = call.deps.registry.catalog.providers.get(call.path["provider"])
    if config is None or (PROVIDER_KINDS[config.kind].rules.webhooks == "token" and not _shows_token(call, config)):
        return BODY_MAX_BYTES
    return config.callback_bytes_max


@route(
    "POST",
    "/v2/callback/{provider}",
    summary="Receive a media provider's own webhook about a task",
    auth=Auth.PROVIDER_WEBHOOK,
    raw_body_bytes_max=CALLBACK_BYTES_MOST,
    raw_body_example={"id": "task_01935f6c2b7d7c3e8a4d5e6f70819203.1", "status": "processing"},
    raw_body_limit=_bytes_max,
    reply=TaskBody,
    other_reply=CheckCallbackReceived,
    parameters=(
        Parameter(name=STANDARD_ID_HEADER, location="header", description="The message's id (Standard Webhooks)."),
        Parameter(
            name="webhook-timestamp",
            location="header",
            description="The message's time, unix seconds (Standard Webhooks).",
        ),
        Parameter(name="request_id", location="query", description="The task, as in the webhook's address."),
        Parameter(name="attempt", location="query", description="The attempt, as in the webhook's address."),
        Parameter(name="seal", location="query", description="The address's seal over both."),
    ),
    errors=(*SENDER_ERRORS, "task_not_found"),
)
async def receive_provider_webhook(call: Call) -> Outcome:
    """Applied, duplicate, stale and late updates get the task in response, so that retries stop."""
    provider = known_media_provider(call, call.path["provider"])
    outcome = await _receive_own_format(call)
    if isinstance(outcome, Refusal):
        count_refused(call, provider, outcome)
        await record_refused_callback(call, outcome)
    return outcome


async def _receive_own_format(call: Call) -> Outcome:
    config = call.deps.registry.catalog.providers.get(call.path["provider"])
    if config is None:
        return refused_signature("invalid", SIGNATURE_HEADER)
    proof = PROVIDER_KINDS[config.kind].rules.webhooks
    if proof == "signature" or (proof == "token" and call.request.sent.get(_SIGNATURE_HEADER)):
        return await receive_signed(call, config.name)
    read = _hosted_update(call, config) if proof == "standard" else _container_update(call, config)
    if isinstance(read, Refusal):
        return read
    body = call.raw
    if len(body) > BODY_MAX_BYTES:
        # The body embeds files: what is stored is the update read from it, without the files.
        outputs = tuple(msgspec.structs.replace(output, data=None) for output in read.outputs)
        body = msgspec.json.encode(msgspec.structs.replace(read, outputs=outputs))
    return await apply_update(call, read, body)


def _hosted_update(call: Call, config: ProviderConfig) -> ProviderUpdate | Refusal:
    """Read a signed prediction as an update of the task that its address names."""
    secrets = config.own_secrets
    if not secrets:
        return _NOT_CONFIGURED
    # A header sent twice is ambiguous: joined, it matches no signature.
    headers = {name.lower(): ",".join(call.request.headers.getlist(name)) for name, _ in call.request.headers}
    verdict = verify_standard(headers, call.raw, secrets, now=call.deps.wall())
    if verdict != "valid":
        return refused_signature(verdict, STANDARD_SIGNATURE_HEADER)
    keys = call.deps.settings.derived_keys(PURPOSE)
    job = read_hook_query(call.request.query_string.decode("ascii", "replace"), keys, config.name)
    if job is None:
        return Refusal(code="task_not_found", message="The webhook's address names no task.")
    try:
        prediction = read_prediction(call.raw)
        if not prediction.id:
            return invalid_event("The prediction has no id.", "id")
        if prediction.webhook is not None and not names_same_job(prediction.webhook, job, keys, config.name):
            return invalid_event("The prediction names another webhook than this one.", "webhook")
        return update_of(
            prediction,
            source="callback",
            provider=config.name,
            request_id=job[0],
            attempt=job[1],
            provider_ref=prediction.id,
            event_id=headers[STANDARD_ID_HEADER],
        )
    except PredictionFault as fault:
        return invalid_event(f"The webhook cannot be read: {fault}.")


def _container_update(call: Call, config: ProviderConfig) -> ProviderUpdate | Refusal:
    """Read a container's prediction as an update of the task in its id."""
    if not config.own_secrets:
        return _NOT_CONFIGURED
    if "Authorization" not in call.request.headers:
        return Refusal(
            code="missing_signature", message="The header Authorization with the provider's token is missing."
        )
    if not _shows_token(call, config):
        return Refusal(code="invalid_signature", message="The token is not the provider's.")
    try:
        prediction = read_prediction(call.raw)
        request_id, _, attempt = (prediction.id or "").rpartition(".")
        if not request_id or not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
            return invalid_event(
                f"The prediction's id {shown(prediction.id or '')} was not issued by this service.", "id"
            )
        update = update_of(
            prediction,
            source="callback",
            provider=config.name,
            request_id=request_id,
            attempt=int(attempt),
            provider_ref=prediction.id or "",
        )
    except PredictionFault as fault:
        return invalid_event(f"The webhook cannot be read: {fault}.")
    if update.status in TERMINAL:
        return update
    # Containers send no event ids: updates of a running job are identified by their content.
    digest = hashlib.sha256(call.raw).hexdigest()[:32]
    return msgspec.structs.replace(update, event_id=f"hook:{prediction.id}:{update.status}:{digest}")


def _shows_token(call: Call, config: ProviderConfig) -> bool:
    """Whether the request's token is one of the provider's own secrets; the common secret is not accepted."""
    given = call.request.sent.get(b"authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    matched = False
    for secret in config.own_secrets:
        matched |= hmac.compare_digest(token.strip().encode("utf-8", "surrogatepass"), secret.encode())
    return matched and scheme.lower() == "bearer"
