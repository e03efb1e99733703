"""What adapters of servers whose jobs are predictions share: polls, cancels, probes, and the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec

from holdfast.ledger.tasks.provider_update import CancelOutcome, ProviderUpdate
from holdfast.providers.media.base import Ambiguous, NotSent, PollFault, Rejected, job_id
from holdfast.providers.media.client import ProviderClient, ProviderResponse, detail_of
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.media.predictions import TERMINAL, PredictionFault, read_prediction, update_of

_INPUT_REFUSED = frozenset({400, 413, 422})
_NO_SUCH_METHOD = frozenset({405, 501})

Polling = Literal["always", "until_unsupported", "never"]
"""``always``: the server retains every job, so one that it does not know is lost, and is submitted again.
``until_unsupported``: that it does not know a job proves nothing, and a server without the method is not polled
again."""


class PredictionProvider:
    """A server at ``url``, called with a bearer ``token`` if there is one.

    Without ``secrets`` no webhook is requested. ``submit_timeout_s`` and ``ask_timeout_s`` bound a whole request.
    """

    cancels = True
    path: ClassVar[str]
    """The path of the jobs."""
    probe_path: ClassVar[str]
    takes_job_ids: ClassVar[bool]
    """Whether the server gives a job the id it is submitted with; otherwise it chooses one."""

    def __init__(
        self,
        name: str,
        url: str,
        secrets: Sequence[str] = (),
        *,
        token: str | None = None,
        polling: Polling = "always",
        submit_timeout_s: float = 15.0,
        ask_timeout_s: float = 10.0,
    ) -> None:
        self.name = name
        self.callback_secrets = tuple(secret for secret in secrets if secret.strip())
        self.polls = polling != "never"
        self._retains_jobs = polling == "always"
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._client = ProviderClient(name, url, token=token, timeout_s=max(submit_timeout_s, ask_timeout_s))

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Read the job's status. Raises :class:`PollFault`."""
        name = self._named(request_id, attempt, provider_ref)
        answer = await self._client.ask_about("poll", self._path_of(name), self._ask_timeout_s)
        if answer.status in (404, 410) and self._retains_jobs:
            return None
        if answer.status in _NO_SUCH_METHOD and not self._retains_jobs:
            self.polls = False
        if answer.status != 200:
            raise PollFault(f"the provider answered {answer.status}")
        try:
            prediction = read_prediction(answer.body)
            # Another job's results must not reach this task's owner.
            if prediction.id != name and not (self.takes_job_ids and prediction.id is None):
                raise PollFault("the response is about another job")
            return update_of(
                prediction,
                source="poll",
                provider=self.name,
                request_id=request_id,
                attempt=attempt,
                provider_ref=name,
            )
        except PredictionFault as fault:
            raise PollFault(str(fault)) from fault

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask the server to stop the job. Raises :class:`PollFault`."""
        path = f"{self._path_of(self._named(request_id, attempt, provider_ref))}/cancel"
        answer = await self._client.ask_about("cancel", path, self._ask_timeout_s)
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

    @property
    def health(self) -> ProviderHealth:
        """Whether the provider responds, according to the calls so far."""
        return self._client.health

    async def probe(self) -> None:
        """Make a call that costs nothing; any response shows that the server is up."""
        await self._client.probe(self.probe_path)

    async def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _named(self, request_id: str, attempt: int, provider_ref: str | None) -> str:
        if provider_ref is not None:
            return provider_ref
        if not self.takes_job_ids:
            raise PollFault("the provider's name for the job is not known")
        return job_id(request_id, attempt)

    def _path_of(self, name: str) -> str:
        return f"{self.path}/{quote(name, safe='')}"

    async def _send(
        self, method: str, path: str, order: Mapping[str, object], headers: Mapping[str, str]
    ) -> ProviderResponse | NotSent | Ambiguous:
        """Submit a job; without a response, return whether the server may have it."""
        body = msgspec.json.encode(order)
        sent = {"Content-Type": "application/json", **headers}
        return await self._client.submit(method, path, self._submit_timeout_s, body, sent)


def rejected(answer: ProviderResponse) -> Rejected:
    """Return the outcome of a submission whose response says that the job will never be taken."""
    code = "invalid_upstream_input" if answer.status in _INPUT_REFUSED else "provider_error"
    return Rejected(code, f"the provider answered {answer.status}: {detail_of(answer.body)}")
