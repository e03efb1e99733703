"""The adapter for every server that speaks the prediction protocol of self-hosted model containers.

``PUT /predictions/{id}`` starts a job under our name for it and is idempotent; ``GET`` on the same path tells of
it; ``POST …/cancel`` stops it. Its callbacks are ours (:mod:`holdfast.providers.media.callbacks`), signed with one
of the configured secrets; without a secret none are asked for, and polling tells all.

What is sent is the model's input, the model's name, the webhook, and ``client`` with our two numbers to repeat.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import msgspec
import trio

from holdfast.ledger.news import NewsStatus, Output, ProviderNews, ReportedError, ReportedUsage
from holdfast.providers.bounded import BodyTooLarge, drain
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
from holdfast.providers.media.callbacks import (
    MESSAGE_MAX_CHARS,
    OUTPUTS_MAX_COUNT,
    WORD_MAX_CHARS,
    split_data_url,
    tidy,
)

ANSWER_MAX_BYTES = 16 * 1024 * 1024
RETRY_AFTER_MAX_S = 3600
EVENTS = ("start", "output", "logs", "completed")

_STATUSES: Mapping[str, NewsStatus] = {
    "starting": "queued",
    "queued": "queued",
    "processing": "processing",
    "succeeded": "succeeded",
    "failed": "failed",
    "canceled": "canceled",
    "cancelled": "canceled",
    "aborted": "canceled",
}
_BUSY = frozenset({408, 409, 425, 429, 503})
_INPUT_REFUSED = frozenset({400, 413, 422})
_TERMINAL = frozenset({"succeeded", "failed", "canceled"})


class _Progress(msgspec.Struct, frozen=True):
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    stage: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class _Prediction(msgspec.Struct, frozen=True):
    status: str
    id: str | None = None
    output: Any = None
    error: Any = None
    error_code: str | None = None
    progress: _Progress | None = None
    metrics: dict[str, Any] | None = None


_PREDICTION = msgspec.json.Decoder(_Prediction)


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class CogProvider:
    """A server at ``url`` speaking the prediction protocol.

    ``token``, where given, is sent as a bearer. Times in seconds: ``connect_timeout_s`` for reaching the server,
    ``submit_timeout_s`` and ``ask_timeout_s`` for a whole exchange.
    """

    idempotent_submit = True
    polls = True
    cancels = True

    def __init__(
        self,
        name: str,
        url: str,
        secrets: Sequence[str] = (),
        *,
        token: str | None = None,
        submit_timeout_s: float = 15.0,
        ask_timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        connections_max_count: int = 32,
    ) -> None:
        base = httpx.URL(url)
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(f"the url of provider {name} is not an http or https URL")
        self.name = name
        self.callback_secrets = tuple(secret for secret in secrets if secret.strip())
        self._base = str(base).rstrip("/")
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            headers={"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
            timeout=httpx.Timeout(max(submit_timeout_s, ask_timeout_s), connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=connections_max_count, keepalive_expiry=5),
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
            order |= {"webhook": job.callback_url, "webhook_events_filter": EVENTS}
        body = msgspec.json.encode(order)
        headers = {"Content-Type": "application/json", "Prefer": "respond-async"}
        try:
            answer = await self._ask("PUT", self._path(name), self._submit_timeout_s, body, headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as fault:
            return NotSent(f"provider unreachable: {type(fault).__name__}")
        except (httpx.HTTPError, trio.TooSlowError, BodyTooLarge) as fault:
            return Ambiguous(f"no answer to the submission: {type(fault).__name__}")
        return _submission(answer, name)

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderNews | None:
        """Ask how the job is. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._ask_known("GET", self._path(name))
        if answer.status in (404, 410):
            return None
        if answer.status != 200:
            raise PollFault(f"the provider answered {answer.status}")
        return self._news(_read(answer.body), request_id, attempt, name)

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask for the job to be stopped. Raises :class:`PollFault`."""
        name = provider_ref or job_id(request_id, attempt)
        answer = await self._ask_known("POST", f"{self._path(name)}/cancel")
        if answer.status in (404, 410):
            return "too_late"
        if answer.status in (405, 501):
            return "unsupported"
        if not 200 <= answer.status < 300:
            raise PollFault(f"the provider answered {answer.status}")
        try:
            status = _STATUSES.get(_PREDICTION.decode(answer.body).status)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return "requested"
        if status == "canceled":
            return "confirmed"
        return "too_late" if status in _TERMINAL else "requested"

    async def close(self) -> None:
        """Give back connections."""
        await self._http.aclose()

    def _path(self, name: str) -> str:
        return f"{self._base}/predictions/{quote(name, safe='')}"

    async def _ask_known(self, method: str, url: str) -> _Answer:
        try:
            return await self._ask(method, url, self._ask_timeout_s)
        except (httpx.HTTPError, trio.TooSlowError, BodyTooLarge) as fault:
            raise PollFault(f"the provider cannot be asked: {type(fault).__name__}") from fault

    async def _ask(
        self,
        method: str,
        url: str,
        within_s: float,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Answer:
        """One exchange, bounded in time and size."""
        with trio.fail_after(within_s):
            async with self._http.stream(method, url, content=content, headers=headers) as response:
                body = await drain(response.aiter_bytes(), ANSWER_MAX_BYTES)
                return _Answer(response.status_code, dict(response.headers), body)

    def _news(self, told: _Prediction, request_id: str, attempt: int, name: str) -> ProviderNews:
        status = _STATUSES.get(told.status)
        if status is None:
            raise PollFault("the provider told of a status that has no meaning here")
        progress = told.progress or _Progress()
        event_id = f"poll:{name}:{status}"
        if status not in _TERMINAL:
            event_id += f":{progress.sequence}:{progress.percent}:{tidy(progress.stage, WORD_MAX_CHARS)}"
        outputs = tuple(_outputs(told.output)) if status == "succeeded" else ()
        return ProviderNews(
            source="poll",
            provider=self.name,
            event_id=event_id,
            request_id=request_id,
            attempt=attempt,
            status=status,
            provider_ref=tidy(told.id, 200) or name,
            sequence=progress.sequence,
            raw_status=tidy(told.status, WORD_MAX_CHARS),
            stage=tidy(progress.stage, WORD_MAX_CHARS),
            percent=100 if status == "succeeded" else progress.percent,
            outputs=outputs,
            usage=_usage(told.metrics) if status == "succeeded" else None,
            error=_error(told) if status == "failed" else None,
        )


def _submission(answer: _Answer, name: str) -> Submission:
    status = answer.status
    if 200 <= status < 300:
        try:
            told = _PREDICTION.decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Ambiguous("the submission was answered with what is not a prediction")
        return Accepted(tidy(told.id, 200) or name, _STATUSES.get(told.status, "queued"))
    if status in _BUSY:
        return NotSent(f"provider busy: {status}", _retry_after_s(answer.headers.get("retry-after")))
    if status >= 500:
        return Ambiguous(f"the provider answered {status}")
    code = "invalid_upstream_input" if status in _INPUT_REFUSED else "provider_error"
    return Rejected(code, f"the provider answered {status}: {_detail(answer.body)}")


def _read(body: bytes) -> _Prediction:
    try:
        return _PREDICTION.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise PollFault("the provider's answer is not a prediction") from fault


def _detail(body: bytes) -> str:
    """The reason inside an error's body, for operators."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "no reason given"
    reason = told.get("detail", told.get("error")) if isinstance(told, dict) else None
    return tidy(reason if isinstance(reason, str) else None, MESSAGE_MAX_CHARS - 50) or "no reason given"


def _retry_after_s(value: str | None) -> int | None:
    """Seconds from a ``Retry-After`` that is a number or a date; None where it is neither."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(int(value.strip()[:9]), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(0, round((at - datetime.now(UTC)).total_seconds())), RETRY_AFTER_MAX_S)


def _outputs(raw: Any) -> list[Output]:
    """Results in the forms such servers use: a URL, a data URL, text, an object, or a list or map of those."""
    if raw is None:
        return []
    if isinstance(raw, dict) and not ({"url", "data"} & raw.keys()):
        items = list(raw.values())
    else:
        items = raw if isinstance(raw, list) else [raw]
    if len(items) > OUTPUTS_MAX_COUNT:
        raise PollFault("the provider told of too many outputs")
    return [_output(item, index) for index, item in enumerate(items)]


def _output(item: Any, index: int) -> Output:
    if isinstance(item, str):
        item = {"url": item}
    if not isinstance(item, dict):
        raise PollFault("the provider told of an output that is neither text nor object")
    try:
        claim = msgspec.convert({**item, "index": index}, Output)
    except msgspec.ValidationError as fault:
        raise PollFault("the provider told of an output out of shape") from fault
    url = claim.url
    if url is None or url.lower().startswith(("http://", "https://")):
        return claim
    split = split_data_url(url)
    if split is not None:
        return msgspec.structs.replace(claim, url=None, data=split[1], content_type=claim.content_type or split[0])
    text = base64.b64encode(url.encode("utf-8", "replace")).decode("ascii")
    return msgspec.structs.replace(claim, url=None, data=text, content_type="text/plain")


def _usage(metrics: Mapping[str, Any] | None) -> ReportedUsage | None:
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


def _error(told: _Prediction) -> ReportedError:
    message = told.error if isinstance(told.error, str) else None
    code = tidy(told.error_code, WORD_MAX_CHARS)
    return ReportedError(
        code=code, message=tidy(message, MESSAGE_MAX_CHARS), retryable=code not in ("invalid_upstream_input",)
    )
