"""The header Idempotency-Key."""

from __future__ import annotations

import re
from typing import Final

from werkzeug.datastructures import Headers

from holdfast.http.kit.shown import shown
from holdfast.ledger.refusals import Refusal

_KEY_TEXT = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)

NO_IDEMPOTENCY_KEY: Final = Refusal(
    code="missing_parameter", message="The header Idempotency-Key is required.", param="Idempotency-Key"
)


def read_idempotency_key(headers: Headers) -> str | Refusal | None:
    """Return the key, sent with or without quotes; None without one. Refuses with ``invalid_idempotency_key``."""
    sent = headers.getlist("Idempotency-Key")
    if not sent:
        return None
    key = sent[0]
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(sent) > 1 or not _KEY_TEXT.fullmatch(key):
        return Refusal(
            code="invalid_idempotency_key",
            message=f"The Idempotency-Key {shown(key)} must be one of 1 to 255 printable ASCII characters.",
            param="Idempotency-Key",
        )
    return key
