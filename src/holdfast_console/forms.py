"""Forms as browsers send them: their fields as an endpoint's body, the way back, and the message afterwards."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from multipart import MultipartError, MultipartParser, parse_options_header

from holdfast.http.kit.bodies import convert_body
from holdfast.http.kit.forms import FormFile, is_form
from holdfast.ledger.refusals import Refusal

_BELOW: Final = re.compile(r"(?:[/?][\x21-\x5b\x5d-\x7e]*)?", re.ASCII)


def local_path(text: str, root: str) -> str:
    """Return the address of a page at or below ``root`` that a form or link named, ``root`` for anything else."""
    return text if text.startswith(root) and _BELOW.fullmatch(text, len(root)) else root


MESSAGE_COOKIE: Final = "holdfast_message"
MESSAGE_CHARS_MAX: Final = 1_500
_COOKIE_CHARS_MAX: Final = 3_800
_VALID_S: Final = 60


class Message(msgspec.Struct, frozen=True):
    """What became of an action."""

    text: str
    is_failure: bool = False


def message_cookie(message: Message | None, root: str) -> str:
    """Return the Set-Cookie header that carries a message to the next page below a root; None ends it."""
    value = "" if message is None else _encode(message)
    ttl_s = 0 if message is None else _VALID_S
    return f"{MESSAGE_COOKIE}={value}; Path={root}; Max-Age={ttl_s}; HttpOnly; SameSite=Strict"


def read_message(cookie: str | None) -> Message | None:
    """Return the message of a cookie; None without one, and for anything else."""
    if not cookie or len(cookie) > _COOKIE_CHARS_MAX:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)), type=Message)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None


def _encode(message: Message) -> str:
    cut = Message(message.text[:MESSAGE_CHARS_MAX], message.is_failure)
    return base64.urlsafe_b64encode(msgspec.json.encode(cut)).rstrip(b"=").decode()


class SentForm(msgspec.Struct, frozen=True):
    """A form that was sent to ``action`` and not done, and why; ``param`` names the field that is wrong."""

    action: str
    fields: Mapping[str, str]
    text: str
    param: str | None = None
    code: str | None = None


FORM_BYTES_MAX: Final = 16 * 1024
FIELDS_MAX: Final = 40
CSRF_FIELD: Final = "csrf_token"
IDEMPOTENCY_FIELD: Final = "idempotency_key"
"""Two fields with what an endpoint's client sends in headers, which a form cannot."""
RETURN_FIELD: Final = "return_to"
"""The address of the page that a form is on."""


def parse_form(raw: bytes, content_type: str | None) -> dict[str, str] | Refusal:
    """Read a form's fields as they were typed, without blank ones; the last of a name counts.

    Refuses with ``invalid_parameter``, ``unsupported_media_type``.
    """
    if (content_type or "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return Refusal(code="unsupported_media_type", message="The body must be sent as a form.")
    try:
        pairs = parse_qsl(raw.decode(), max_num_fields=FIELDS_MAX, strict_parsing=False, errors="strict")
    except ValueError:
        return Refusal(code="invalid_parameter", message="The form could not be read.")
    return {name: typed for name, value in pairs if (typed := _typed(value))}


def _typed(value: str) -> str:
    """Return what was typed: browsers send each end of a line as CR LF, and copied text has blanks around it."""
    return value.replace("\r\n", "\n").strip()


def parse_file_form(raw: bytes, content_type: str | None) -> tuple[dict[str, str], tuple[FormFile, ...]] | Refusal:
    """Read a form that may have files: its fields as :func:`parse_form` does, and its files, without empty ones."""
    if not is_form(content_type):
        parsed = parse_form(raw, content_type)
        return parsed if isinstance(parsed, Refusal) else (parsed, ())
    boundary = parse_options_header(content_type)[1].get("boundary", "")
    limits = {"part_limit": FIELDS_MAX, "spool_limit": len(raw), "memory_limit": len(raw)}
    fields, files = dict[str, str](), list[FormFile]()
    try:
        for part in MultipartParser(io.BytesIO(raw), boundary, strict=True, **limits):
            if part.filename is None and (typed := _typed(part.value)):
                fields[part.name] = typed
            elif part.filename is not None and part.raw:
                files.append(FormFile(part.name, hashlib.sha256(part.raw).hexdigest(), content=part.raw))
    except (MultipartError, ValueError):
        return Refusal(code="invalid_parameter", message="The form could not be read.")
    return fields, tuple(files)


def body_of_form(fields: Mapping[str, object], shape: type[msgspec.Struct]) -> msgspec.Struct | Refusal:
    """Return an endpoint's body from a form's fields; text becomes numbers and booleans where the shape says so.

    Refuses as :func:`~holdfast.http.kit.bodies.convert_body` does.
    """
    return convert_body(dict(fields), shape, strict=False)
