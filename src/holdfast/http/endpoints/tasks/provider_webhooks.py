"""Webhooks in the providers' own formats, from hosted predictions and from model containers.

Hosted predictions sign by Standard Webhooks. The signature does not cover the address, so the address carries our
seal, and the body must be about the same job: if it repeats the webhook's address, that must name the same task and
attempt; if the task knows its job's id, the body's id must be that one (the task's actor checks it).

Containers do not sign; they send a fixed token, and their body has the job id that we gave them. They may send our
own signature instead.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from holdfast.http.endpoints.tasks.callbacks import SIGNATURE_HEADER, apply_update, receive_signed
from holdfast.http.endpoints.tasks.check_callbacks import CheckCallbackReceived, record_refused
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.refused_callbacks import (
    SENDER_ERRORS,
    count_refused,
    known_media_provider,
    refused_signature,
)
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.shown import shown
from holdfast.http.schemas.tasks import TaskBody
from holdfast.ledger.catalog.models import CALLBACK_BYTES_MOST, ProviderConfig
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.providers.media.callbacks import BODY_MAX_BYTES, PURPOSE, names_same_job, read_hook_query
from holdfast.providers.media.kinds import KINDS
from holdfast.providers.media.predictions import TERMINAL, PredictionFault, read_prediction, update_of
from holdfast.providers.signatures import STANDARD_ID_HEADER, STANDARD_SIGNATURE_HEADER, verify_standard

route = RouteTable("Callbacks")

_NOT_CONFIGURED: Final = Refusal(code="provider_not_configured", message="This provider has no secret configured.")


def _bytes_max(call: Call) -> int:
    """Return the body limit of a provider; without the right token a container has the common limit."""
    config = call.deps.catalog().providers.get(call.path["provider"])
    if config is None or (KINDS[config.kind].rules.webhooks == "token" and not _shows_token(call, config)):
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
        Parameter(name=STANDARD_ID_HEADER, place="header", description="The message's id (Standard Webhooks)."),
        Parameter(
            name="webhook-timestamp",
            place="header",
            description="The message's time, unix seconds (Standard Webhooks).",
        ),
        Parameter(name="request_id", place="query", description="The task, as in the webhook's address."),
        Parameter(name="attempt", place="query", description="The attempt, as in the webhook's address."),
        Parameter(name="seal", place="query", description="The address's seal over both."),
    ),
    errors=(*SENDER_ERRORS, "task_not_found"),
)
async def receive_provider_webhook(call: Call) -> Outcome:
    """As for our own callbacks, applied, duplicate, stale and late updates get the task in response."""
    provider = known_media_provider(call, call.path["provider"])
    return await record_refused(call, count_refused(call, provider, await _receive(call)))


async def _receive(call: Call) -> Outcome:
    config = call.deps.catalog().providers.get(call.path["provider"])
    if config is None:
        return refused_signature("invalid", SIGNATURE_HEADER)
    proof = KINDS[config.kind].rules.webhooks
    if proof == "signature" or (proof == "token" and SIGNATURE_HEADER in call.request.headers):
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
    key = call.deps.settings.derived_key(PURPOSE)
    job = read_hook_query(call.request.query_string.decode("ascii", "replace"), key, config.name)
    if job is None:
        return Refusal(code="task_not_found", message="The webhook's address names no task.")
    try:
        prediction = read_prediction(call.raw)
        if not prediction.id:
            return _invalid("The prediction has no id.", "id")
        if prediction.webhook is not None and not names_same_job(prediction.webhook, job, key, config.name):
            return _invalid("The prediction names another webhook than this one.", "webhook")
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
        return _invalid(f"The webhook cannot be read: {fault}.")


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
            return _invalid(
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
        return _invalid(f"The webhook cannot be read: {fault}.")
    if update.status in TERMINAL:
        return update
    # Containers send no event ids: updates of a running job are identified by their content.
    digest = hashlib.sha256(call.raw).hexdigest()[:32]
    return msgspec.structs.replace(update, event_id=f"hook:{prediction.id}:{update.status}:{digest}")


def _shows_token(call: Call, config: ProviderConfig) -> bool:
    """Whether the request's token is one of the provider's own secrets; the common secret is not accepted."""
    given = call.request.headers.getlist("Authorization")
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    matched = False
    for secret in config.own_secrets:
        matched |= hmac.compare_digest(token.strip().encode("utf-8", "surrogatepass"), secret.encode())
    return matched and scheme.lower() == "bearer"


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(code="invalid_event", message=message, param=param)
