"""The headers of a command: ``Idempotency-Key``, and ``Prefer`` (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from werkzeug.datastructures import Headers

from holdfast.actors.runtime.refs import WhileDown
from holdfast.http.kit.shown import shown
from holdfast.ledger.refusals import Refusal

_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.ASCII | re.IGNORECASE)
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


def read_prefer(headers: Sequence[str], deadline_s: float) -> tuple[float, WhileDown]:
    """Return the deadline of a request's asks, at most ``deadline_s``, and what they do while an actor is down.

    ``wait=0`` is to fail at once, ``wait=5`` to wait up to 5 seconds. Other preferences are ignored.
    """
    match = _WAIT.search(",".join(headers)[:1024]) if headers else None
    if match is None:
        return deadline_s, "queue"
    wait_s = int(match[1])
    return (deadline_s, "fail") if wait_s == 0 else (min(wait_s, deadline_s), "wait")
