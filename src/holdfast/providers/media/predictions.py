"""Parse predictions: the object by which model containers, and the hosted service, report a job.

It is the body of a response and of a webhook, with the same meaning in both. Unknown fields are ignored; an unknown
status or malformed outputs are a :class:`PredictionFault`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import quote

import msgspec

from holdfast.ledger.tasks.provider_update import (
    CancelOutcome,
    Output,
    ProviderUpdate,
    ReportedError,
    ReportedUsage,
    UpdateStatus,
)
from holdfast.providers.media.base import (
    MESSAGE_MAX_CHARS,
    WORD_MAX_CHARS,
    Ambiguous,
    JobCallFault,
    NotSent,
    Rejected,
    job_id,
    tidy,
)
from holdfast.providers.media.callbacks import OUTPUTS_MAX_COUNT, split_data_url
from holdfast.providers.media.client import ProviderClient, ProviderResponse, detail_of
from holdfast.providers.media.health import ProviderHealth

REF_MAX_CHARS = 200
LOGS_READ_CHARS = 4000
"""How much of the end of a job's log is searched for a percentage."""

STATUSES: Final[Mapping[str, UpdateStatus]] = {
    "starting": "queued",
    "queued": "queued",
    "processing": "processing",
    "succeeded": "succeeded",
    "failed": "failed",
    "canceled": "canceled",
    "cancelled": "canceled",
    "aborted": "canceled",
}
TERMINAL: Final = frozenset({"succeeded", "failed", "canceled"})

_PERCENT = re.compile(r"(?<![\d.])(100|[1-9]?\d)(?:\.\d+)?%")
_NESTED_MAX: Final = 4

_INPUT_REFUSED = frozenset({400, 413, 422})
_NO_SUCH_METHOD = frozenset({405, 501})
Polling = Literal["always", "until_unsupported", "never"]
"""``always``: the server retains every job, so one that it does not know is lost, and is submitted again.
``until_unsupported``: that it does not know a job proves nothing, and a server without the method is not polled
again."""


class PredictionFault(Exception):
    """The body is not a prediction, or one that cannot be used."""


class PredictionProgress(msgspec.Struct, frozen=True):
    """A job's progress, as far as its server reports it."""

    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    stage: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class Prediction(msgspec.Struct, frozen=True):
    """The fields of a prediction that are used."""

    status: str
    id: str | None = None
    output: Any = None
    error: Any = None
    error_code: str | None = None
    progress: PredictionProgress | None = None
    metrics: dict[str, Any] | None = None
    logs: str | None = None
    webhook: str | None = None

    @property
    def known_status(self) -> UpdateStatus | None:
        """The corresponding status of ours, or None."""
        return STATUSES.get(self.status)


_PREDICTION = msgspec.json.Decoder(Prediction)


def read_prediction(body: bytes) -> Prediction:
    """Parse a prediction. Raises :class:`PredictionFault`."""
    try:
        return _PREDICTION.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise PredictionFault("the body is not a prediction") from fault


def update_of(
    prediction: Prediction,
    *,
    source: Literal["callback", "poll"],
    provider: str,
    request_id: str,
    attempt: int,
    provider_ref: str,
    event_id: str | None = None,
) -> ProviderUpdate:
    """Return a prediction as an update of one attempt. Without an ``event_id`` the id is derived from the content.

    ``provider_ref`` is used if the prediction has no id. Raises :class:`PredictionFault`.
    """
    status = prediction.known_status
    if status is None:
        raise PredictionFault("the prediction's status is unknown")
    progress = prediction.progress or PredictionProgress()
    percent = progress.percent if prediction.progress is not None else percent_of(prediction.logs)
    stage = tidy(progress.stage, WORD_MAX_CHARS)
    if event_id is None:
        event_id = f"{'poll' if source == 'poll' else 'hook'}:{provider_ref}:{status}"
        if status not in TERMINAL:
            event_id += f":{progress.sequence}:{percent}:{stage}"
    return ProviderUpdate(
        source=source,
        provider=provider,
        event_id=event_id,
        request_id=request_id,
        attempt=attempt,
        status=status,
        provider_ref=tidy(prediction.id, REF_MAX_CHARS) or provider_ref,
        sequence=progress.sequence,
        raw_status=tidy(prediction.status, WORD_MAX_CHARS),
        stage=stage,
        percent=100 if status == "succeeded" else percent,
        outputs=tuple(_outputs(prediction.output)) if status == "succeeded" else (),
        usage=_usage(prediction.metrics) if status == "succeeded" else None,
        error=_error(prediction) if status == "failed" else None,
    )


def percent_of(logs: str | None) -> int | None:
    """Return the last percentage in a job's log, as progress bars write it."""
    if not logs:
        return None
    found = _PERCENT.findall(logs[-LOGS_READ_CHARS:])
    return int(found[-1]) if found else None


def _outputs(raw: object) -> list[Output]:
    """Parse outputs: a URL, a data URL, text, an object, or a list or map of those.

    A map with links has other values too (a seed, the prompt); then only the links are outputs.
    """
    if raw is None:
        return []
    if isinstance(raw, dict) and not ({"url", "data"} & raw.keys()):
        leaves = list(_leaves(raw, 0))
        links = [leaf for leaf in leaves if isinstance(leaf, dict) or (isinstance(leaf, str) and _is_link(leaf))]
        items = links or leaves
    else:
        items = raw if isinstance(raw, list) else [raw]
    if len(items) > OUTPUTS_MAX_COUNT:
        raise PredictionFault("the prediction has too many outputs")
    return [_output(item, index) for index, item in enumerate(items)]


def _leaves(raw: object, depth: int) -> Iterator[object]:
    """Yield the values inside lists and maps; an object with a ``url`` or ``data`` is a value."""
    if depth > _NESTED_MAX:
        raise PredictionFault("the prediction's outputs are nested too deeply")
    if isinstance(raw, dict) and not ({"url", "data"} & raw.keys()):
        raw = list(raw.values())
    if isinstance(raw, list):
        for item in raw:
            yield from _leaves(item, depth + 1)
    elif raw is not None:
        yield raw


def _is_link(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://", "data:"))


def _output(item: object, index: int) -> Output:
    if isinstance(item, str):
        item = {"url": item}
    if not isinstance(item, dict):
        raise PredictionFault("an output of the prediction is neither text nor an object")
    try:
        claim = msgspec.convert({**item, "index": index}, Output)
    except msgspec.ValidationError as fault:
        raise PredictionFault("an output of the prediction is malformed") from fault
    url = claim.url
    if url is None or url.lower().startswith(("http://", "https://")):
        return claim
    split = split_data_url(url)
    if split is not None:
        return msgspec.structs.replace(claim, url=None, data=split[1], content_type=claim.content_type or split[0])
    text = base64.b64encode(url.encode("utf-8", "replace")).decode("ascii")
    return msgspec.structs.replace(claim, url=None, data=text, content_type="text/plain")


def _usage(metrics: Mapping[str, object] | None) -> ReportedUsage | None:
    if not metrics:
        return None
    spent_ms = metrics.get("provider_ms")
    predict_time = metrics.get("predict_time")
    if spent_ms is None and isinstance(predict_time, int | float) and 0 <= predict_time < 1e9:
        spent_ms = round(predict_time * 1000)
    units, unit = metrics.get("units"), metrics.get("unit")
    return ReportedUsage(
        units=units if isinstance(units, int) and units >= 0 else None,
        unit=tidy(unit, WORD_MAX_CHARS) if isinstance(unit, str) else None,
        provider_ms=spent_ms if isinstance(spent_ms, int) and spent_ms >= 0 else None,
    )


def _error(prediction: Prediction) -> ReportedError:
    message = prediction.error if isinstance(prediction.error, str) else None
    code = tidy(prediction.error_code, WORD_MAX_CHARS)
    return ReportedError(
        code=code, message=tidy(message, MESSAGE_MAX_CHARS), retryable=code not in ("invalid_upstream_input",)
    )


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
        self._client = ProviderClient(name, url, token=token)

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Read the job's status. Raises :class:`JobCallFault`."""
        name = self._named(request_id, attempt, provider_ref)
        answer = await self._client.ask_about("poll", self._path_of(name), self._ask_timeout_s)
        if answer.status in (404, 410) and self._retains_jobs:
            return None
        if answer.status in _NO_SUCH_METHOD and not self._retains_jobs:
            self.polls = False
        if answer.status != 200:
            raise JobCallFault(f"the provider answered {answer.status}")
        try:
            prediction = read_prediction(answer.body)
            # Another job's results must not reach this task's owner.
            if prediction.id != name and not (self.takes_job_ids and prediction.id is None):
                raise JobCallFault("the response is about another job")
            return update_of(
                prediction,
                source="poll",
                provider=self.name,
                request_id=request_id,
                attempt=attempt,
                provider_ref=name,
            )
        except PredictionFault as fault:
            raise JobCallFault(str(fault)) from fault

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask the server to stop the job. Raises :class:`JobCallFault`."""
        path = f"{self._path_of(self._named(request_id, attempt, provider_ref))}/cancel"
        answer = await self._client.ask_about("cancel", path, self._ask_timeout_s)
        if answer.status in (404, 410):
            return "too_late"
        if answer.status in _NO_SUCH_METHOD:
            return "unsupported"
        if not 200 <= answer.status < 300:
            raise JobCallFault(f"the provider answered {answer.status}")
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
            raise JobCallFault("the provider's name for the job is not known")
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
