"""Requests that wait for something to change, and streams: how each is asked for, and how a stream is sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec
from quart import Response

from holdfast.http.kit.responses import streamed
from holdfast.http.kit.routes import EVENT_STREAM, Media, Parameter
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.refusals import Refusal

WAIT_MAX_S: Final = 60
CHECK_S: Final = 15.0
"""How often the credential of a customer's stream is checked again; a silent stream then has a comment."""
STREAM_S: Final = 900.0
"""After this long a stream ends, so that its reader connects to whichever process is there then."""
RETRY_MS: Final = 1_000
"""How long a reader is asked to wait before it connects again."""

WAIT: Final = Parameter(
    name="wait",
    location="query",
    description="Respond when the task has ended, or after so many seconds with the task as it is then.",
    schema={"type": "number", "minimum": 0, "maximum": WAIT_MAX_S, "default": 0},
)
PREFER: Final = Parameter(
    name="Prefer",
    location="header",
    description="`wait=5` is as the parameter `wait=5`, which counts if both are sent; `wait` alone is the most.",
    schema={"type": "string", "examples": ["wait=5"]},
)
LAST_EVENT_ID: Final = Parameter(
    name="Last-Event-ID",
    location="header",
    description="The `id` of the last event received of an earlier stream: nothing up to it is sent again.",
    schema={"type": "string", "pattern": "^[0-9]{1,18}$"},
)

_PREFERRED: Final = re.compile(
    r'(?:^|[,;])\s*wait\s*(?:=\s*"?([0-9]{1,6})"?\s*)?(?=$|[,;])', re.ASCII | re.IGNORECASE
)
_SECONDS: Final = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,3})?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def preferred_wait_s(headers: Sequence[str], *, bare_s: int | None = None) -> int | None:
    """Return the seconds of the preference ``wait``, and ``bare_s`` if it has none; None without the preference."""
    match = _PREFERRED.search(",".join(headers)[:1024]) if headers else None
    return None if match is None else int(match[1]) if match[1] else bare_s


def read_wait(sent: list[str], prefer: Sequence[str]) -> float | Refusal:
    """Parse the parameter ``wait``, or else the header ``Prefer``; 0 without a wait.

    Refuses with ``invalid_parameter``. A preference is never refused: it is at most :data:`WAIT_MAX_S`.
    """
    if not sent:
        return float(min(preferred_wait_s(prefer, bare_s=WAIT_MAX_S) or 0, WAIT_MAX_S)) if prefer else 0.0
    if len(sent) > 1:
        return invalid_parameter("wait", f"was sent {len(sent)} times")
    if not _SECONDS.fullmatch(sent[0]) or float(sent[0]) > WAIT_MAX_S:
        return invalid_parameter("wait", f"must be a number of seconds from 0 to {WAIT_MAX_S}", sent[0])
    return float(sent[0])


def read_last_event_id(sent: str | None, name: str = LAST_EVENT_ID.name) -> int | Refusal | None:
    """Parse the header, or the parameter ``name``, None without one. Refuses with ``invalid_parameter``."""
    if not sent:
        return None
    if not _NUMBER.fullmatch(sent):
        return invalid_parameter(name, "must be the id of an event", sent)
    return int(sent)


def stream_media(description: str, example: str | Mapping[str, type[msgspec.Struct]] = "") -> Media:
    """Return the declaration of a stream of server-sent events."""
    text = f"Server-sent events: {description}"
    return Media(status=200, content_types=(EVENT_STREAM,), description=text, example=example)


def stream_response(body: AbstractAsyncContextManager[AsyncIterator[bytes]]) -> Response:
    """Return the response that sends server-sent events; the body is entered when it starts, left when it ends."""
    return streamed(body, {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def event(kind: str, data: msgspec.Struct, event_id: int | None = None) -> bytes:
    """Return one server-sent event."""
    lines = b"" if event_id is None else b"id: %d\n" % event_id
    return lines + encoded_event(kind, msgspec.json.encode(data))


def encoded_event(kind: str, data: bytes) -> bytes:
    """Return one server-sent event without an id, of JSON without line breaks."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
