"""The adapter for servers that implement the prediction protocol of self-hosted model containers.

``PUT /predictions/{id}`` starts a job under our name and is idempotent while it runs; ``POST …/cancel`` stops it. A
plain container has no endpoint for a job's status and reports it by webhooks alone. Servers that add ``GET`` on the
same path are polled, as the catalog's ``polls`` says: see :data:`~.prediction_provider.Polling`.

A submission contains the model's input and the webhook, and also the model's name and ``client`` with the task and
attempt, which plain containers ignore. Without a secret no webhook is requested.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.ledger.catalog.entries import KindRules
from holdfast.providers.media.base import (
    Accepted,
    Ambiguous,
    Job,
    NotSent,
    ProviderKind,
    ProviderSetup,
    Submission,
    job_id,
    tidy,
)
from holdfast.providers.media.client import ProviderResponse
from holdfast.providers.media.predictions import (
    REF_MAX_CHARS,
    Polling,
    PredictionFault,
    PredictionProvider,
    read_prediction,
    rejected,
)

_BUSY = frozenset({408, 409, 425, 429, 503})


class CogProvider(PredictionProvider):
    """A server that implements the prediction protocol; every event is requested."""

    idempotent_submit = True
    probes_when_idle = True
    path = "/predictions"
    probe_path = "/health-check"
    takes_job_ids = True
    events: tuple[str, ...] = ("start", "output", "logs", "completed")

    async def submit(self, job: Job) -> Submission:
        """Start the job, or find it running."""
        name = job_id(job.request_id, job.attempt)
        order: dict[str, object] = {
            "input": dict(job.input),
            "model": job.upstream_model,
            "client": {"request_id": job.request_id, "attempt": job.attempt},
        }
        if self.callback_secrets:
            order |= {"webhook": job.callback_url, "webhook_events_filter": self.events}
        answer = await self._send("PUT", self._path_of(name), order, {"Prefer": "respond-async"})
        return _submission(answer, name) if isinstance(answer, ProviderResponse) else answer


class PlainCogProvider(CogProvider):
    """A plain container: ``output`` events would contain whole files, which ``completed`` repeats."""

    events = ("start", "logs", "completed")


def _submission(answer: ProviderResponse, name: str) -> Submission:
    status = answer.status
    if 200 <= status < 300:
        try:
            prediction = read_prediction(answer.body)
        except PredictionFault:
            return Ambiguous("the response to the submission is not a prediction")
        return Accepted(tidy(prediction.id, REF_MAX_CHARS) or name, prediction.known_status or "queued")
    if status in _BUSY:
        return NotSent(f"provider busy: {status}", answer.retry_after_s, answered=True)
    if status >= 500:
        return Ambiguous(f"the provider answered {status}")
    return rejected(answer)


def _create(provider: type[CogProvider], setup: ProviderSetup) -> CogProvider:
    polling: dict[bool | None, Polling] = {True: "always", None: "until_unsupported", False: "never"}
    return provider(
        setup.config.name,
        setup.url,
        setup.secrets,
        token=setup.token,
        polling=polling[setup.config.polls],
        submit_timeout_s=setup.config.submit_timeout_s,
    )


STUDIO: Final = ProviderKind(
    KindRules(
        defaults={"concurrency": 4, "polls": True, "callback_bytes_max": 256 * 1024},
        required=(),
        forbidden=("token", "polls", "callback_bytes_max"),
    ),
    partial(_create, CogProvider),
)

CONTAINER: Final = ProviderKind(
    # Without an upload address a container sends its files inside its webhooks.
    KindRules(defaults={"concurrency": 16, "callback_bytes_max": 8 * 1024 * 1024}, webhooks="token"),
    partial(_create, PlainCogProvider),
)
