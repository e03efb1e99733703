"""Forms as browsers send them, and their fields as an endpoint's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from holdfast.http.kit.bodies import convert_body
from holdfast.http.kit.operator_sessions import CSRF_HEADER
from holdfast.ledger.refusals import Refusal

FORM_BYTES_MAX: Final = 16 * 1024
FIELDS_MAX: Final = 40
HEADER_FIELDS: Final = {"csrf_token": CSRF_HEADER, "idempotency_key": "Idempotency-Key"}
"""The fields that stand for headers, which a form cannot send."""


def parse_form(raw: bytes, content_type: str | None) -> dict[str, str] | Refusal:
    """Read a form's fields, without blank ones; the last of a name counts. Refuses with ``invalid_parameter``."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return Refusal(code="unsupported_media_type", message="The body must be sent as a form.")
    try:
        pairs = parse_qsl(raw.decode(), max_num_fields=FIELDS_MAX, strict_parsing=False, errors="strict")
    except ValueError:
        return Refusal(code="invalid_parameter", message="The form could not be read.")
    return {name: value.strip() for name, value in pairs if value.strip()}


def body_of_form(fields: Mapping[str, str], shape: type[msgspec.Struct]) -> msgspec.Struct | Refusal:
    """Return an endpoint's body from a form's fields; text becomes numbers and booleans where the shape says so.

    Refuses as :func:`~holdfast.http.kit.bodies.convert_body` does.
    """
    return convert_body(dict(fields), shape, strict=False)
