"""Callbacks of media providers: the URL for them, and their body as a :class:`ProviderUpdate` or a refusal.

The URL for providers whose webhooks do not name our task contains the task, the attempt and a seal over both. A
webhook's signature covers its body but not its URL, so without the seal anyone who saw a genuine message could send
it to another task's URL.

When a body is parsed, its signature has been verified; here the structure is validated. Text is cleaned
(:func:`~holdfast.providers.media.base.tidy`), and an identifier that is too long or contains a control character is
refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import (
    Moderation,
    Output,
    ProviderUpdate,
    ReportedError,
    ReportedUsage,
    UpdateStatus,
)
from holdfast.providers.media.base import MESSAGE_MAX_CHARS, WORD_MAX_CHARS, tidy

_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}\Z")
_TASK = re.compile(r"[!-~]{1,100}\Z")
_FIELDS = ("request_id", "attempt", "seal")
PURPOSE = "callback addresses"
"""The purpose for which the seals' key is derived."""

QUERY_MAX_CHARS = 1000

BODY_MAX_BYTES = 256 * 1024
OUTPUTS_MAX_COUNT = 64
INLINE_MAX_CHARS = 64 * 1024
"""The longest base64 text of an output inside a callback."""
CATEGORIES_MAX_COUNT = 32
_COUNT_MAX = 2**63 - 1
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_COUNT_MAX)]
_Side = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


def hook_address(url: str, key: bytes, provider: str, request_id: str, attempt: int) -> str:
    """Return ``url`` with the query of one attempt at a task."""
    seal = _seal(key, provider, request_id, attempt)
    return f"{url}?{urlencode(dict(zip(_FIELDS, (request_id, attempt, seal), strict=True)))}"


def read_hook_query(query: str, keys: Sequence[bytes], provider: str) -> tuple[str, int] | None:
    """Return the task and attempt of a query; None unless a key made its seal and each field is given once."""
    if len(query) > QUERY_MAX_CHARS or not query.isascii():
        return None
    given = parse_qsl(query, keep_blank_values=True)
    fields = dict(given)
    if len(given) != len(_FIELDS) or fields.keys() != set(_FIELDS):
        return None
    request_id, attempt, seal = (fields[name] for name in _FIELDS)
    if not _TASK.match(request_id) or not _ATTEMPT.match(attempt):
        return None
    # As bytes: percent-encoding can produce any character.
    given_seal = seal.encode()
    seals = (_seal(key, provider, request_id, int(attempt)).encode() for key in keys)
    if not any(hmac.compare_digest(given_seal, each) for each in seals):
        return None
    return request_id, int(attempt)


def names_same_job(address: str, job: tuple[str, int], keys: Sequence[bytes], provider: str) -> bool:
    """Whether a URL repeated by the provider is ours for this task and attempt."""
    try:
        query = urlsplit(address).query
    except ValueError:
        return False
    return read_hook_query(query, keys, provider) == job


def _seal(key: bytes, provider: str, request_id: str, attempt: int) -> str:
    signed: Sequence[str] = (provider, request_id, str(attempt))
    return hmac.new(key, "\n".join(signed).encode(), "sha256").hexdigest()[:40]


class _Output(msgspec.Struct, frozen=True):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=8192, pattern=r"^[!-~]+$")] | None = None
    data: Annotated[str, msgspec.Meta(max_length=INLINE_MAX_CHARS)] | None = None
    content_type: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[ -~]*$")] | None = None
    bytes: _Count | None = None
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    width: _Side | None = None
    height: _Side | None = None
    duration_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class _Usage(msgspec.Struct, frozen=True):
    units: _Count | None = None
    unit: str | None = None
    tokens_in: _Count | None = None
    tokens_out: _Count | None = None
    provider_cost: str | int | float | None = None
    provider_ms: _Count | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    message: str | None = None
    retryable: bool | None = None


class _Moderation(msgspec.Struct, frozen=True):
    flagged: bool
    categories: list[str] | None = None


class _Callback(msgspec.Struct, frozen=True):
    event_id: _Id
    request_id: _Id
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    status: UpdateStatus
    provider: str | None = None
    provider_ref: _Id | None = None
    sequence: _Count | None = None
    raw_status: str | None = None
    stage: str | None = None
    message: str | None = None
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    outputs: Annotated[list[_Output], msgspec.Meta(max_length=OUTPUTS_MAX_COUNT)] | None = None
    usage: _Usage | None = None
    error: _Error | str | None = None
    moderation: _Moderation | None = None


_DECODER = msgspec.json.Decoder(_Callback)


def parse_callback(provider: str, body: bytes) -> ProviderUpdate | Refusal:
    """Parse a callback signed with ``provider``'s key.

    Refuses: ``request_too_large`` above 256 KiB, else ``invalid_event`` with the ``param``. Unknown fields are
    ignored. A body that names another provider than the signer is refused.
    """
    if len(body) > BODY_MAX_BYTES:
        return Refusal(code="request_too_large", message=f"A callback has at most {BODY_MAX_BYTES} bytes.")
    try:
        raw = _DECODER.decode(body)
    except msgspec.ValidationError as fault:
        reason, _, where = str(fault).partition(" - at `$.")
        return invalid_event(f"The callback is not an event: {reason}.", where.rstrip("`") or None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return invalid_event("The callback is not JSON in UTF-8.")
    if raw.provider is not None and raw.provider != provider:
        return invalid_event("The callback names another provider than the one that signed it.", "provider")
    outputs = []
    for number, given in enumerate(raw.outputs or ()):
        output = _output(given, number)
        if isinstance(output, Refusal):
            return output
        outputs.append(output)
    if len({output.index for output in outputs}) != len(outputs):
        return invalid_event("Two outputs have the same index.", "outputs")
    return ProviderUpdate(
        source="callback",
        provider=provider,
        event_id=raw.event_id,
        request_id=raw.request_id,
        attempt=raw.attempt,
        status=raw.status,
        provider_ref=raw.provider_ref,
        sequence=raw.sequence,
        raw_status=tidy(raw.raw_status, WORD_MAX_CHARS),
        stage=tidy(raw.stage, WORD_MAX_CHARS),
        message=tidy(raw.message, MESSAGE_MAX_CHARS),
        percent=raw.percent,
        outputs=tuple(outputs),
        usage=_usage(raw.usage),
        error=_error(raw.error),
        moderation=_moderation(raw.moderation),
    )


def split_data_url(url: str) -> tuple[str | None, str] | None:
    """Split ``data:image/png;base64,…`` into content type and base64 text; None for any other URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        return None
    return head[5:].split(";")[0].lower() or None, data


def _output(given: _Output, number: int) -> Output | Refusal:
    where = f"outputs[{number}]"
    url, data, content_type = given.url, given.data, given.content_type
    if url is not None and url[:5].lower() == "data:":
        split = split_data_url(url)
        if split is None or data is not None:
            return invalid_event("A data URL must be base64, in an output without data.", f"{where}.url")
        url, data, content_type = None, split[1], content_type or split[0]
    if (url is None) == (data is None):
        return invalid_event("An output has a url or data, and not both.", where)
    if url is not None and not re.match(r"https?://", url, re.IGNORECASE):
        return invalid_event("An output's url is http or https.", f"{where}.url")
    if data is not None and not _is_base64(data):
        return invalid_event("An output's data is base64.", f"{where}.data")
    return Output(
        index=number if given.index is None else given.index,
        url=url,
        data=data,
        content_type=content_type.split(";")[0].strip().lower() or None if content_type else None,
        bytes=given.bytes,
        sha256=given.sha256.lower() if given.sha256 else None,
        width=given.width,
        height=given.height,
        duration_s=given.duration_s,
    )


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _usage(raw: _Usage | None) -> ReportedUsage | None:
    if raw is None:
        return None
    return ReportedUsage(
        units=raw.units,
        unit=tidy(raw.unit, WORD_MAX_CHARS),
        tokens_in=raw.tokens_in,
        tokens_out=raw.tokens_out,
        provider_cost=None if raw.provider_cost is None else tidy(str(raw.provider_cost), WORD_MAX_CHARS),
        provider_ms=raw.provider_ms,
    )


def _error(raw: _Error | str | None) -> ReportedError | None:
    if raw is None:
        return None
    if isinstance(raw, str):
        return ReportedError(message=tidy(raw, MESSAGE_MAX_CHARS))
    return ReportedError(
        code=tidy(raw.code, WORD_MAX_CHARS),
        message=tidy(raw.message, MESSAGE_MAX_CHARS),
        retryable=bool(raw.retryable),
    )


def _moderation(raw: _Moderation | None) -> Moderation | None:
    if raw is None:
        return None
    words = (tidy(word, WORD_MAX_CHARS) for word in (raw.categories or ())[:CATEGORIES_MAX_COUNT])
    return Moderation(flagged=raw.flagged, categories=tuple(word for word in words if word))


def invalid_event(message: str, param: str | None = None) -> Refusal:
    """Return the refusal of a callback that is signed, and cannot be read."""
    return Refusal(code="invalid_event", message=message, param=param)
