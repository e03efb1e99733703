"""The adapter for every server that speaks the prediction protocol of self-hosted model containers.

``PUT /predictions/{id}`` starts a job under our name for it and is idempotent while it runs; ``POST …/cancel``
stops it. A plain container cannot be asked how a job stands: its webhooks tell all. Servers that add ``GET`` on the
same path are polled. What a ``GET`` that finds nothing means depends on who answers, hence ``polls``:

- True: the server keeps every job, so a job it does not know is lost and given to it anew;
- None: nobody knows. An answer that tells of the job is believed, its absence proves nothing, and a server that
  has no such method is not asked again;
- False: it is never asked.

What is sent is the model's input, the webhook, and besides them the model's name and ``client`` with our two
numbers to repeat, which plain containers pass over. Without a secret no webhooks are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.providers.media.base import (
    Accepted,
    Ambiguous,
    CancelOutcome,
    Job,
    NotSent,
    PollFault,
    Rejected,
    Submission,
    job_id,
)
from holdfast.providers.media.client import Answer, Line, detail_of
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
"""What a plain container is asked to tell of: ``output`` would bring whole files that come again with the end."""

_BUSY = frozenset({408, 409, 425, 429, 503})
_INPUT_REFUSED = frozenset({400, 413, 422})
_NO_SUCH_METHOD = frozenset({405, 501})


class CogProvider:
    """A server at ``url`` speaking the prediction protocol.

    ``token``, where given, is sent as a bearer. Times in seconds: ``connect_timeout_s`` for reaching the server,
    ``submit_timeout_s`` and ``ask_timeout_s`` for a whole exchange.
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
        self._keeps_jobs = polls is True
        self._events = tuple(events)
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._line = Line(
            name,
            url,
            token=token,
            timeout_s=max(submit_timeout_s, ask_timeout_s),
            connect_timeout_s=connect_timeout_s,
            connections_max_count=connections_max_count,
        )

    async def submit(self, job: Job) -> Submission:
        """Start the job, or find it started."""
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
        answer = await self._line.hand_in("PUT", _path(name), self._submit_timeout_s, body, headers)
        return _submission(answer, name) if isinstance(answer, Answer) else answer

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Ask how the job is. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._line.ask_known("GET", _path(name), self._ask_timeout_s)
        if answer.status in (404, 410) and self._keeps_jobs:
            return None
        if answer.status in _NO_SUCH_METHOD and not self._keeps_jobs:
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
        """Ask for the job to be stopped. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._line.ask_known("POST", f"{_path(name)}/cancel", self._ask_timeout_s)
        return cancel_outcome(answer)

    @property
    def health(self) -> ProviderHealth:
        """Whether it answers, as calls to it have shown."""
        return self._line.health

    async def probe(self) -> None:
        """Ask for its health; a server without such a path answers too."""
        await self._line.probe("/health-check")

    async def close(self) -> None:
        """Give back connections."""
        await self._line.close()


def cancel_outcome(answer: Answer) -> CancelOutcome:
    """What an answer to a cancel says. Raises :class:`PollFault`."""
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


def _submission(answer: Answer, name: str) -> Submission:
    status = answer.status
    if 200 <= status < 300:
        try:
            told = read_prediction(answer.body)
        except PredictionFault:
            return Ambiguous("the submission was answered with what is not a prediction")
        return Accepted(tidy(told.id, REF_MAX_CHARS) or name, told.known_status or "queued")
    if status in _BUSY:
        return NotSent(f"provider busy: {status}", answer.retry_after_s, answered=True)
    if status >= 500:
        return Ambiguous(f"the provider answered {status}")
    code = "invalid_upstream_input" if status in _INPUT_REFUSED else "provider_error"
    return Rejected(code, f"the provider answered {status}: {detail_of(answer.body)}")
