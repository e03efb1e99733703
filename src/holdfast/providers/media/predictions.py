"""The prediction object: how model containers, and the hosted service that runs them, tell of a job.

It comes as the answer to a call and as the body of a webhook, and means the same in both. Fields of one provider's
own making are passed over; a status without a meaning here, or outputs out of shape, are a
:class:`PredictionFault`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate, ReportedError, ReportedUsage, UpdateStatus
from holdfast.providers.media.base import PollFault
from holdfast.providers.media.callbacks import OUTPUTS_MAX_COUNT, split_data_url
from holdfast.providers.media.client import Answer
from holdfast.providers.media.text import MESSAGE_MAX_CHARS, WORD_MAX_CHARS, tidy

REF_MAX_CHARS = 200
LOGS_READ_CHARS = 4000
"""How much of the end of a job's log is searched for its progress."""

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


class PredictionFault(Exception):
    """What was told is not a prediction that can be understood."""


class Progress(msgspec.Struct, frozen=True):
    """How far a job is, where its server says so in figures."""

    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    stage: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class Prediction(msgspec.Struct, frozen=True):
    """What is read of a prediction."""

    status: str
    id: str | None = None
    output: Any = None
    error: Any = None
    error_code: str | None = None
    progress: Progress | None = None
    metrics: dict[str, Any] | None = None
    logs: str | None = None
    webhook: str | None = None

    @property
    def known_status(self) -> UpdateStatus | None:
        """The status in our words; None where it has none."""
        return STATUSES.get(self.status)


_PREDICTION = msgspec.json.Decoder(Prediction)


def read_prediction(body: bytes) -> Prediction:
    """Read a prediction from JSON. Raises :class:`PredictionFault`."""
    try:
        return _PREDICTION.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise PredictionFault("what was told is not a prediction") from fault


def update_of(
    told: Prediction,
    *,
    source: Literal["callback", "poll"],
    provider: str,
    request_id: str,
    attempt: int,
    provider_ref: str,
    event_id: str | None = None,
) -> ProviderUpdate:
    """A prediction as news of one attempt. Without an ``event_id`` it is named by what it tells.

    ``provider_ref`` stands in where the prediction does not say its id. Raises :class:`PredictionFault`.
    """
    status = told.known_status
    if status is None:
        raise PredictionFault("the provider told of a status that has no meaning here")
    progress = told.progress or Progress()
    percent = progress.percent if told.progress is not None else percent_of(told.logs)
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
        provider_ref=tidy(told.id, REF_MAX_CHARS) or provider_ref,
        sequence=progress.sequence,
        raw_status=tidy(told.status, WORD_MAX_CHARS),
        stage=stage,
        percent=100 if status == "succeeded" else percent,
        outputs=tuple(_outputs(told.output)) if status == "succeeded" else (),
        usage=_usage(told.metrics) if status == "succeeded" else None,
        error=_error(told) if status == "failed" else None,
    )


def polled_update(
    answer: Answer, *, provider: str, request_id: str, attempt: int, provider_ref: str, may_be_nameless: bool
) -> ProviderUpdate:
    """The answer to a poll as news of the job that was asked for. Raises :class:`PollFault`."""
    if answer.status != 200:
        raise PollFault(f"the provider answered {answer.status}")
    try:
        told = read_prediction(answer.body)
        # Somebody else's results must not reach this task's owner.
        if told.id != provider_ref and not (may_be_nameless and told.id is None):
            raise PollFault("the provider told of another job")
        return update_of(
            told,
            source="poll",
            provider=provider,
            request_id=request_id,
            attempt=attempt,
            provider_ref=provider_ref,
        )
    except PredictionFault as fault:
        raise PollFault(str(fault)) from fault


def percent_of(logs: str | None) -> int | None:
    """The last percentage that a job's log shows, as progress bars write it."""
    if not logs:
        return None
    found = _PERCENT.findall(logs[-LOGS_READ_CHARS:])
    return int(found[-1]) if found else None


def _outputs(raw: Any) -> list[Output]:
    """Results in the forms such servers use: a URL, a data URL, text, an object, or a list or map of those.

    A map that holds links tells other things beside them (a seed, the prompt): only its links are results.
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
        raise PredictionFault("the provider told of too many outputs")
    return [_output(item, index) for index, item in enumerate(items)]


def _leaves(raw: Any, depth: int) -> Iterator[Any]:
    """The values inside a map, through lists and maps; an object that says where it is, is a value."""
    if depth > _NESTED_MAX:
        raise PredictionFault("the provider told of outputs nested too deeply")
    if isinstance(raw, dict) and not ({"url", "data"} & raw.keys()):
        raw = list(raw.values())
    if isinstance(raw, list):
        for item in raw:
            yield from _leaves(item, depth + 1)
    elif raw is not None:
        yield raw


def _is_link(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://", "data:"))


def _output(item: Any, index: int) -> Output:
    if isinstance(item, str):
        item = {"url": item}
    if not isinstance(item, dict):
        raise PredictionFault("the provider told of an output that is neither text nor object")
    try:
        claim = msgspec.convert({**item, "index": index}, Output)
    except msgspec.ValidationError as fault:
        raise PredictionFault("the provider told of an output out of shape") from fault
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


def _error(told: Prediction) -> ReportedError:
    message = told.error if isinstance(told.error, str) else None
    code = tidy(told.error_code, WORD_MAX_CHARS)
    return ReportedError(
        code=code, message=tidy(message, MESSAGE_MAX_CHARS), retryable=code not in ("invalid_upstream_input",)
    )
