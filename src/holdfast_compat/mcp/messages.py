"""The messages of the protocol: JSON-RPC 2.0, one in a body, or several where the revision has batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.http.kit import bodies
from holdfast.ledger.refusals import Refusal

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
"""The protocol's revisions, the newest first. The client's choice counts if it is one of them."""
VERSION_WITH_BATCHES: Final = "2025-03-26"
"""The only revision with batches, and the one of clients that do not send a version with each request."""
BATCH_MAX: Final = 20

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
UNSUPPORTED_VERSION: Final = -32022
"""As later revisions have it; these have no code for it."""

Id: TypeAlias = str | int


class RpcError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request has no result."""

    code: int
    message: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class Request:
    """A message that is answered: ``params`` are an object, empty if none was sent."""

    id: Id
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """A message that is no request, notification or response, with the id that it has."""

    id: Id | None
    error: RpcError


Message: TypeAlias = Request | MalformedMessage | None
"""A message. None: a notification or a response, which is taken and not answered."""


def read_messages(raw: bytes) -> Sequence[Message] | Message:
    """Read a body: one message, or those of a batch in their order."""
    start = raw.lstrip(b" \t\r\n")[:1]
    if start == b"{":
        return _read_message(raw)
    try:
        if start != b"[":
            msgspec.json.decode(raw)
            return MalformedMessage(
                None, RpcError(INVALID_REQUEST, "The body must be a JSON-RPC message, an object.")
            )
        parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MalformedMessage(None, RpcError(PARSE_ERROR, "The body is not JSON."))
    if not 1 <= len(parts) <= BATCH_MAX:
        return MalformedMessage(None, RpcError(INVALID_REQUEST, f"A batch has 1 to {BATCH_MAX} messages."))
    return [_read_message(bytes(each)) for each in parts]


def _read_message(raw: bytes) -> Message:
    found = bodies.parse_object(raw)
    if isinstance(found, Refusal):
        return MalformedMessage(None, RpcError(PARSE_ERROR, found.message))
    sent_id, method, params = found.get("id"), found.get("method"), found.get("params", {})
    known_id = sent_id if isinstance(sent_id, str | int) and not isinstance(sent_id, bool) else None

    def refused(code: int, message: str) -> MalformedMessage:
        return MalformedMessage(known_id, RpcError(code, message))

    if found.get("jsonrpc") != "2.0":
        return refused(INVALID_REQUEST, 'The message must have "jsonrpc": "2.0".')
    if "method" not in found:
        is_response = known_id is not None and ("result" in found or "error" in found)
        return None if is_response else refused(INVALID_REQUEST, "The message has no method.")
    if not isinstance(method, str):
        return refused(INVALID_REQUEST, "The method must be a string.")
    if "id" not in found:
        return None
    if known_id is None:
        return refused(INVALID_REQUEST, "The id must be a string or an integer.")
    if not isinstance(params, dict):
        return refused(INVALID_PARAMS, "The params must be an object.")
    return Request(known_id, method, params)


def result_message(request_id: Id, result: object) -> dict[str, object]:
    """Return the message that answers a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_message(request_id: Id | None, error: RpcError) -> dict[str, object]:
    """Return the message that a request, or a body of which no id is known, is refused with."""
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def progress_message(token: Id, progress: int, message: str) -> dict[str, object]:
    """Return the notification of a request's progress, in percent."""
    params = {"progressToken": token, "progress": progress, "total": 100, "message": message}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def progress_token(params: dict[str, Any]) -> Id | None:
    """Return the token by which the sender of a request wants its progress; None if it does not."""
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


def negotiated_version(params: dict[str, Any]) -> str:
    """Return the revision for a client that asks for one in ``initialize``: that one if it is known here."""
    wanted = params.get("protocolVersion")
    return wanted if isinstance(wanted, str) and wanted in VERSIONS else VERSIONS[0]
