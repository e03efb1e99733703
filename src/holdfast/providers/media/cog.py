"""The adapter for servers that implement the prediction protocol of self-hosted model containers.

``PUT /predictions/{id}`` starts a job under our name and is idempotent while it runs; ``POST …/cancel`` stops it. A
plain container has no endpoint for a job's status and reports it by webhooks alone. Servers that add ``GET`` on the
same path are polled. The meaning of a ``GET`` that finds no job depends on the server, hence ``polls``:

- True: the server retains every job, so an unknown job is lost and is submitted again;
- None: unknown. A response about the job counts, its absence proves nothing, and a server without that method is
  not polled again;
- False: the server is never polled.

A submission contains the model's input and the webhook, and also the model's name and ``client`` with the task and
attempt, which plain containers ignore. Without a secret no webhook is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from holdfast.ledger.tasks.provider_update import CancelOutcome, ProviderUpdate
from holdfast.providers.media.base import (
    Accepted,
    Ambiguous,
    Job,
    NotSent,
    PollFault,
    Rejected,
    Submission,
    job_id,
)
from holdfast.providers.media.client import ProviderClient, ProviderResponse, detail_of
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.media.predictions import (
    REF_MAX_CHARS,
    TERMINAL,
    PredictionFault,
    polled_update,
    read_prediction,
)
from holdfast.providers.media.text import tidy

EVENTS = ("start", "output", "logs", "completed")
PLAIN_EVENTS = ("start", "logs", "completed")
"""The events requested of a plain container: ``output`` would contain whole files, which ``completed`` repeats."""

_BUSY = frozenset({408, 409, 425, 429, 503})
_INPUT_REFUSED = frozenset({400, 413, 422})
_NO_SUCH_METHOD = frozenset({405, 501})


class CogProvider:
    """A server at ``url`` that implements the prediction protocol.

    A ``token`` is sent as a bearer token. Times in seconds: ``connect_timeout_s`` bounds connecting,
    ``submit_timeout_s`` and ``ask_timeout_s`` a whole request.
    """

    idempotent_submit = True
    cancels = True
    probes_when_idle = True

    def __init__(
        self,
        name: str,
        url: str,
        secrets: Sequence[str] = (),
        *,
        token: str | None = None,
        polls: bool | None = True,
        events: Sequence[str] = EVENTS,
        submit_timeout_s: float = 15.0,
        ask_timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        connections_max_count: int = 32,
    ) -> None:
        self.name = name
        self.callback_secrets = tuple(secret for secret in secrets if secret.strip())
        self.polls = polls is not False
        self._retains_jobs = polls is True
        self._events = tuple(events)
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._client = ProviderClient(
            name,
            url,
            token=token,
            timeout_s=max(submit_timeout_s, ask_timeout_s),
            connect_timeout_s=connect_timeout_s,
            connections_max_count=connections_max_count,
        )

    async def submit(self, job: Job) -> Submission:
        """Start the job, or find it running."""
        name = job_id(job.request_id, job.attempt)
        order: dict[str, object] = {
            "input": dict(job.input),
            "model": job.upstream_model,
            "client": {"request_id": job.request_id, "attempt": job.attempt},
        }
        if self.callback_secrets:
            order |= {"webhook": job.callback_url, "webhook_events_filter": self._events}
        body = msgspec.json.encode(order)
        headers = {"Content-Type": "application/json", "Prefer": "respond-async"}
        answer = await self._client.submit("PUT", _path(name), self._submit_timeout_s, body, headers)
        return _submission(answer, name) if isinstance(answer, ProviderResponse) else answer

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Read the job's status. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._client.ask_about("poll", _path(name), self._ask_timeout_s)
        if answer.status in (404, 410) and self._retains_jobs:
            return None
        if answer.status in _NO_SUCH_METHOD and not self._retains_jobs:
            self.polls = False
        return polled_update(
            answer,
            provider=self.name,
            request_id=request_id,
            attempt=attempt,
            provider_ref=name,
            may_be_nameless=True,
        )

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask the server to stop the job. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._client.ask_about("cancel", f"{_path(name)}/cancel", self._ask_timeout_s)
        return cancel_outcome(answer)

    @property
    def health(self) -> ProviderHealth:
        """Whether the provider responds, according to the calls so far."""
        return self._client.health

    async def probe(self) -> None:
        """Request the server's health; a server without that path responds too."""
        await self._client.probe("/health-check")

    async def close(self) -> None:
        """Close connections."""
        self._client.close()


def cancel_outcome(answer: ProviderResponse) -> CancelOutcome:
    """Return the outcome of a cancel from its response. Raises :class:`PollFault`."""
    if answer.status in (404, 410):
        return "too_late"
    if answer.status in _NO_SUCH_METHOD:
        return "unsupported"
    if not 200 <= answer.status < 300:
        raise PollFault(f"the provider answered {answer.status}")
    try:
        status = read_prediction(answer.body).known_status
    except PredictionFault:
        return "requested"
    if status == "canceled":
        return "confirmed"
    return "too_late" if status in TERMINAL else "requested"


def _path(name: str) -> str:
    return f"/predictions/{quote(name, safe='')}"


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
    code = "invalid_upstream_input" if status in _INPUT_REFUSED else "provider_error"
    return Rejected(code, f"the provider answered {status}: {detail_of(answer.body)}")
