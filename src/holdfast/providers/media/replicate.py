"""The adapter for the hosted service that runs published models as predictions.

``POST /v1/predictions`` starts a version, ``POST /v1/models/{owner}/{name}/predictions`` the current version of a
model. The service names the job, so submitting a job again would start and charge a second one: a submission that
may have arrived is never repeated. The webhook's URL contains our task and attempt, so the first webhook resolves a
submission without a response.

The meaning of a response to a submission:

========================================= ==================================================================
response                                  outcome
========================================= ==================================================================
201, 200, 202 with a prediction           accepted
400, 413, 422                             rejected, ``invalid_upstream_input``: the model does not take it
401, 402, 403, a redirect                 not sent: our token, bill or URL is wrong. That is neither the
                                          customer's fault nor permanent, so the task waits for an operator
                                          until its dispatch deadline, and then its credit is released
404, 405, 409, 410 and other 4xx          rejected, ``provider_error``: there is no such model or version
408, 425, 429                             not sent: busy, or the request did not arrive whole
503 with ``Retry-After``                  not sent: a server that names a retry time has not begun
other 5xx, no response or no prediction   ambiguous: the job may have begun before the response was lost
========================================= ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from holdfast.ledger.catalog.entries import KindRules
from holdfast.providers.media.base import (
    Accepted,
    Ambiguous,
    Job,
    NotSent,
    ProviderKind,
    ProviderSetup,
    Rejected,
    Submission,
    tidy,
)
from holdfast.providers.media.client import ProviderResponse, detail_of
from holdfast.providers.media.predictions import (
    REF_MAX_CHARS,
    PredictionFault,
    PredictionProvider,
    read_prediction,
    rejected,
)

EVENTS = ("start", "completed")
"""``completed`` contains everything; events in between would repeat input, logs and outputs twice a second."""

RETRY_AFTER_DEFAULT_S = 10

_MODEL = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(?::(?P<version>[\w.-]+))?", re.ASCII)
_VERSION = re.compile(r"[0-9a-f]{64}")
_OUR_FAULT = frozenset({401, 402, 403})
_BUSY = frozenset({408, 425, 429})

log = structlog.get_logger(__name__)


class ReplicateProvider(PredictionProvider):
    """The hosted service. ``seal_callback_url`` is that of :class:`ProviderSetup`."""

    idempotent_submit = False
    probes_when_idle = False
    path = "/v1/predictions"
    probe_path = "/v1/account"
    takes_job_ids = False

    def __init__(
        self,
        name: str,
        url: str,
        secrets: Sequence[str] = (),
        *,
        token: str,
        seal_callback_url: Callable[[str, str, int], str],
        submit_timeout_s: float = 15.0,
    ) -> None:
        super().__init__(name, url, secrets, token=token, submit_timeout_s=submit_timeout_s)
        self._seal_callback_url = seal_callback_url

    async def submit(self, job: Job) -> Submission:
        """Start the job. Never call this twice for a job that may have arrived."""
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
            webhook = self._seal_callback_url(job.callback_url, job.request_id, job.attempt)
            order |= {"webhook": webhook, "webhook_events_filter": EVENTS}
        answer = await self._send("POST", path, order, {})
        return self._submission(answer) if isinstance(answer, ProviderResponse) else answer

    def _submission(self, answer: ProviderResponse) -> Submission:
        """Return the outcome of a submission; see the table above."""
        status = answer.status
        if 200 <= status < 300:
            try:
                prediction = read_prediction(answer.body)
            except PredictionFault:
                return Ambiguous("the response to the submission is not a prediction")
            ref = tidy(prediction.id, REF_MAX_CHARS)
            if ref is None:
                return Ambiguous("the response to the submission is a prediction without an id")
            return Accepted(ref, prediction.known_status or "queued")
        wait_s = answer.retry_after_s
        if status in _OUR_FAULT or 300 <= status < 400:
            log.error("provider refuses us", provider=self.name, status=status, reason=detail_of(answer.body))
            return NotSent(f"the provider answered {status}", wait_s or RETRY_AFTER_DEFAULT_S, answered=True)
        if status in _BUSY or (status == 503 and wait_s is not None):
            return NotSent(f"provider busy: {status}", wait_s, answered=True)
        if status >= 500:
            return Ambiguous(f"the provider answered {status}")
        return rejected(answer)


def target_of(upstream_model: str) -> tuple[str, str | None] | None:
    """Return the path to submit a job for this model to, and its version; None if the name is not valid."""
    if _VERSION.fullmatch(upstream_model):
        return "/v1/predictions", upstream_model
    found = _MODEL.fullmatch(upstream_model)
    if found is None or {".", ".."} & {found["owner"], found["name"]}:
        return None
    if found["version"] is not None:
        return "/v1/predictions", found["version"]
    return f"/v1/models/{found['owner']}/{found['name']}/predictions", None


def _create(setup: ProviderSetup) -> ReplicateProvider:
    # The catalog requires a token.
    assert setup.token is not None
    return ReplicateProvider(
        setup.config.name,
        setup.url,
        setup.config.own_secrets,
        token=setup.token,
        seal_callback_url=setup.seal_callback_url,
        submit_timeout_s=setup.config.submit_timeout_s,
    )


REPLICATE: Final = ProviderKind(
    KindRules(
        # A webhook contains the whole input and log; outputs are URLs.
        defaults={
            "concurrency": 16,
            "polls": True,
            "callback_bytes_max": 1024 * 1024,
            "url": "https://api.replicate.com",
        },
        required=("token",),
        forbidden=("polls",),
        webhooks="standard",
        missing={"token": "; the hosted service requires one"},
    ),
    _create,
)
