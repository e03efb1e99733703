"""News in the providers' own words: webhooks of hosted predictions and of model containers, each by its own proof.

Hosted predictions sign by Standard Webhooks. The signature does not cover the address, so the address carries a
seal of ours, and the body must not speak of another job: if it repeats the webhook's address, that must name the
same task and attempt; if the task knows its job's id, the body's must be that one (the task itself sees to it).

Containers sign nothing and show a fixed token; their body names the job as we named it. They may sign in our own
way instead.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from holdfast.actors.task.messages import ReceiveProviderUpdate
from holdfast.http.endpoints.tasks.callbacks import REFUSED, SIGNATURE_HEADER, receive_signed, task_of_update
from holdfast.http.endpoints.tasks.media_tasks import TASK_NOT_FOUND, read_back
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.schemas.tasks import TaskBody
from holdfast.ledger.catalog.entries import CALLBACK_BYTES_MOST
from holdfast.ledger.catalog.models import ProviderConfig
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.providers.media.callback_address import PURPOSE, names_same_job, read_hook_query
from holdfast.providers.media.callbacks import BODY_MAX_BYTES
from holdfast.providers.media.predictions import TERMINAL, PredictionFault, read_prediction, update_of
from holdfast.providers.standard_webhooks import ID_HEADER, verify_standard
from holdfast.providers.standard_webhooks import SIGNATURE_HEADER as STANDARD_HEADER

route = RouteTable("Callbacks")

_NOT_CONFIGURED: Final = Refusal(code="provider_not_configured", message="This provider has no secret here.")


def _bytes_max(call: Call) -> int:
    """What a provider may send; to a container that does not show its token, no more than anybody may."""
    config = call.deps.catalog().providers.get(call.path["provider"])
    if config is None or (config.kind == "cog" and not _shows_token(call, config)):
        return BODY_MAX_BYTES
    return config.callback_bytes_max


@route(
    "POST",
    "/v2/callback/{provider}",
    summary="Tell news of a task, as its provider's own webhook",
    auth=Auth.PROVIDER_WEBHOOK,
    raw_body_bytes_max=CALLBACK_BYTES_MOST,
    raw_body_example={"id": "task_01935f6c2b7d7c3e8a4d5e6f70819203.1", "status": "processing"},
    raw_body_limit=_bytes_max,
    reply=TaskBody,
    parameters=(
        Parameter(name=ID_HEADER, place="header", description="Standard Webhooks: the message's id."),
        Parameter(name="webhook-timestamp", place="header", description="Standard Webhooks: unix seconds."),
        Parameter(name="request_id", place="query", description="The task, as in the address we gave."),
        Parameter(name="attempt", place="query", description="The attempt, as in the address we gave."),
        Parameter(name="seal", place="query", description="Our seal over both."),
    ),
    errors=(
        "missing_signature",
        "invalid_signature",
        "signature_expired",
        "provider_not_configured",
        "invalid_event",
        "task_not_found",
    ),
)
async def receive_provider_webhook(call: Call) -> Outcome:
    """As for callbacks in our own form: applied, duplicate, stale and late news are answered with the task."""
    config = call.deps.catalog().providers.get(call.path["provider"])
    if config is None:
        return REFUSED["invalid"]
    if config.kind == "studio" or (config.kind == "cog" and SIGNATURE_HEADER in call.request.headers):
        return await receive_signed(call, config.name)
    read = _hosted_update(call, config) if config.kind == "replicate" else _container_update(call, config)
    if isinstance(read, Refusal):
        return read
    task = await task_of_update(call.deps, read.request_id)
    if task is None or task.provider != config.name:
        return TASK_NOT_FOUND
    body = call.raw
    if len(body) > BODY_MAX_BYTES:
        # Files came inside: it is kept without them, as the news that was read from it.
        outputs = tuple(msgspec.structs.replace(output, data=None) for output in read.outputs)
        body = msgspec.json.encode(msgspec.structs.replace(read, outputs=outputs))
    done = await call.ask(call.deps.tasks.ref(task.request_id), ReceiveProviderUpdate(update=read, body=body))
    if isinstance(done, Refusal):
        return done
    return await read_back(call.deps, task.account_id, task.request_id)


def _hosted_update(call: Call, config: ProviderConfig) -> ProviderUpdate | Refusal:
    """A signed prediction as news of the task that its address names."""
    secrets = config.own_secrets
    if not secrets:
        return _NOT_CONFIGURED
    # A header given twice is two answers to one question: joined, it fits no signature.
    headers = {name.lower(): ",".join(call.request.headers.getlist(name)) for name, _ in call.request.headers}
    verdict = verify_standard(headers, call.raw, secrets, now=call.deps.now())
    if verdict == "missing":
        return Refusal(code="missing_signature", message=f"Send the signature in {STANDARD_HEADER}.")
    if verdict != "valid":
        return REFUSED[verdict]
    key = call.deps.settings.derived_key(PURPOSE)
    job = read_hook_query(call.request.query_string.decode("ascii", "replace"), key, config.name)
    if job is None:
        return TASK_NOT_FOUND
    try:
        told = read_prediction(call.raw)
        if not told.id:
            return _invalid("The prediction has no id.", "id")
        if told.webhook is not None and not names_same_job(told.webhook, job, key, config.name):
            return _invalid("The prediction names another webhook than the one it came by.", "webhook")
        return update_of(
            told,
            source="callback",
            provider=config.name,
            request_id=job[0],
            attempt=job[1],
            provider_ref=told.id,
            event_id=headers[ID_HEADER],
        )
    except PredictionFault as fault:
        return _invalid(f"The webhook cannot be read: {fault}.")


def _container_update(call: Call, config: ProviderConfig) -> ProviderUpdate | Refusal:
    """A container's prediction as news of the task by whose attempt it is named."""
    if not config.own_secrets:
        return _NOT_CONFIGURED
    if "Authorization" not in call.request.headers:
        return Refusal(code="missing_signature", message="Send the provider's token in Authorization.")
    if not _shows_token(call, config):
        return Refusal(code="invalid_signature", message="This is not the provider's token.")
    try:
        told = read_prediction(call.raw)
        request_id, _, attempt = (told.id or "").rpartition(".")
        if not request_id or not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
            return _invalid("The prediction's id is not one that we gave.", "id")
        news = update_of(
            told,
            source="callback",
            provider=config.name,
            request_id=request_id,
            attempt=int(attempt),
            provider_ref=told.id or "",
        )
    except PredictionFault as fault:
        return _invalid(f"The webhook cannot be read: {fault}.")
    if news.status in TERMINAL:
        return news
    # Containers number nothing: what is told while a job runs is known by its content.
    digest = hashlib.sha256(call.raw).hexdigest()[:32]
    return msgspec.structs.replace(news, event_id=f"hook:{told.id}:{news.status}:{digest}")


def _shows_token(call: Call, config: ProviderConfig) -> bool:
    """Whether the call shows one of the provider's own secrets. The house's common secret is never shown about."""
    given = call.request.headers.getlist("Authorization")
    scheme, _, shown = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    matched = False
    for secret in config.own_secrets:
        matched |= hmac.compare_digest(shown.strip().encode("utf-8", "surrogatepass"), secret.encode())
    return matched and scheme.lower() == "bearer"


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(code="invalid_event", message=message, param=param)
