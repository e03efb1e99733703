"""The adapter for the hosted service that runs published models as predictions.

``POST /v1/predictions`` starts a version, ``POST /v1/models/{owner}/{name}/predictions`` whatever version of a
model is current. The service names the job, so a job handed in again would be a second job, and a charge for us:
whatever may have arrived is never handed in again. The webhook's address names our task and attempt, so the first
webhook tells what became of a submission that was never answered.

What an answer to a submission means:

========================================= ==================================================================
answer                                    outcome
========================================= ==================================================================
201, 200, 202 with a prediction           accepted
400, 413, 422                             rejected, ``invalid_upstream_input``: the model does not take it
401, 402, 403, a redirect                 not sent: our token, our bill or our address is wrong. That is
                                          neither the customer's fault nor for good, so the job waits for
                                          an operator until its dispatch deadline, and then gives its credit
                                          back
404, 405, 409, 410 and other 4xx          rejected, ``provider_error``: there is no such model or version
408, 425, 429                             not sent: busy, or the request never came in whole
503 with ``Retry-After``                  not sent: a server that says when to come back has not begun
other 5xx, no answer, no prediction in it ambiguous: the job may have begun before the answer was lost
========================================= ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

import msgspec
import structlog

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
)
from holdfast.providers.media.client import Answer, Line, detail_of
from holdfast.providers.media.cog import cancel_outcome
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.media.predictions import REF_MAX_CHARS, PredictionFault, polled_update, read_prediction
from holdfast.providers.media.text import tidy

EVENTS = ("start", "completed")
"""The end carries everything; what comes between would repeat input, logs and outputs up to twice a second."""

RETRY_AFTER_DEFAULT_S = 10

_MODEL = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(?::(?P<version>[\w.-]+))?", re.ASCII)
_VERSION = re.compile(r"[0-9a-f]{64}")
_OURS_TO_MEND = frozenset({401, 402, 403})
_BUSY = frozenset({408, 425, 429})
_INPUT_REFUSED = frozenset({400, 413, 422})

log = structlog.get_logger(__name__)


class ReplicateProvider:
    """The service at ``url``, asked with ``token``.

    ``address`` makes the webhook's address of one attempt from the callback URL, the task and the attempt. Without
    ``secrets`` no webhooks are asked for. Times in seconds, as for model containers.
    """

    idempotent_submit = False
    polls = True
    cancels = True
    probes_when_idle = False

    def __init__(
        self,
        name: str,
        url: str,
        secrets: Sequence[str] = (),
        *,
        token: str,
        address: Callable[[str, str, int], str],
        submit_timeout_s: float = 15.0,
        ask_timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        connections_max_count: int = 32,
    ) -> None:
        self.name = name
        self.callback_secrets = tuple(secret for secret in secrets if secret.strip())
        self._address = address
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
        """Start the job. Never call it twice for one job that may have arrived."""
        target = target_of(job.upstream_model)
        if target is None:
            return Rejected(
                "provider_error", "the upstream model is not owner/name, owner/name:version or a version"
            )
        path, version = target
        order: dict[str, object] = {"input": dict(job.input)}
        if version is not None:
            order["version"] = version
        if self.callback_secrets:
            webhook = self._address(job.callback_url, job.request_id, job.attempt)
            order |= {"webhook": webhook, "webhook_events_filter": EVENTS}
        body = msgspec.json.encode(order)
        headers = {"Content-Type": "application/json"}
        answer = await self._line.hand_in("POST", path, self._submit_timeout_s, body, headers)
        return self._submission(answer) if isinstance(answer, Answer) else answer

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Ask how the job is. Raises :class:`PollFault`."""
        if provider_ref is None:
            raise PollFault("the provider's name for the job is not known")
        answer = await self._line.ask_known("GET", _path(provider_ref), self._ask_timeout_s)
        if answer.status in (404, 410):
            return None
        return polled_update(
            answer,
            provider=self.name,
            request_id=request_id,
            attempt=attempt,
            provider_ref=provider_ref,
            may_be_nameless=False,
        )

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask for the job to be stopped, under the service's name for it. Raises :class:`PollFault`."""
        del request_id, attempt
        if provider_ref is None:
            raise PollFault("the provider's name for the job is not known")
        answer = await self._line.ask_known("POST", f"{_path(provider_ref)}/cancel", self._ask_timeout_s)
        return cancel_outcome(answer)

    @property
    def health(self) -> ProviderHealth:
        """Whether it answers, as calls to it have shown."""
        return self._line.health

    async def probe(self) -> None:
        """Ask for the account that the token belongs to."""
        await self._line.probe("/v1/account")

    async def close(self) -> None:
        """Give back connections."""
        await self._line.close()

    def _submission(self, answer: Answer) -> Submission:
        """What an answer to a submission means; see the table above."""
        status = answer.status
        if 200 <= status < 300:
            try:
                told = read_prediction(answer.body)
            except PredictionFault:
                return Ambiguous("the submission was answered with what is not a prediction")
            ref = tidy(told.id, REF_MAX_CHARS)
            if ref is None:
                return Ambiguous("the submission was answered with a prediction without an id")
            return Accepted(ref, told.known_status or "queued")
        wait_s = answer.retry_after_s
        if status in _OURS_TO_MEND or 300 <= status < 400:
            log.error("provider refuses us", provider=self.name, status=status, reason=detail_of(answer.body))
            return NotSent(f"the provider answered {status}", wait_s or RETRY_AFTER_DEFAULT_S, answered=True)
        if status in _BUSY or (status == 503 and wait_s is not None):
            return NotSent(f"provider busy: {status}", wait_s, answered=True)
        if status >= 500:
            return Ambiguous(f"the provider answered {status}")
        code = "invalid_upstream_input" if status in _INPUT_REFUSED else "provider_error"
        return Rejected(code, f"the provider answered {status}: {detail_of(answer.body)}")


def target_of(upstream_model: str) -> tuple[str, str | None] | None:
    """Where a job for this model is posted, and the version to name there; None for what names no model."""
    if _VERSION.fullmatch(upstream_model):
        return "/v1/predictions", upstream_model
    found = _MODEL.fullmatch(upstream_model)
    if found is None or {".", ".."} & {found["owner"], found["name"]}:
        return None
    if found["version"] is not None:
        return "/v1/predictions", found["version"]
    return f"/v1/models/{found['owner']}/{found['name']}/predictions", None


def _path(prediction_id: str) -> str:
    return f"/v1/predictions/{quote(prediction_id, safe='')}"
