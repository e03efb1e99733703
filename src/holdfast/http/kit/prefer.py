"""The header ``Prefer`` (RFC 7240): whether a caller waits while an account or task cannot be served at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from holdfast.actors.runtime.refs import WhileDown

_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.ASCII | re.IGNORECASE)


def read_prefer(headers: Sequence[str], deadline_s: float) -> tuple[float, WhileDown]:
    """Return the deadline of a request's asks, at most ``deadline_s``, and what they do while an actor is down.

    ``wait=0`` is to fail at once, ``wait=5`` to wait up to 5 seconds. Other preferences are ignored.
    """
    match = _WAIT.search(",".join(headers)[:1024]) if headers else None
    if match is None:
        return deadline_s, "queue"
    wait_s = int(match[1])
    return (deadline_s, "fail") if wait_s == 0 else (min(wait_s, deadline_s), "wait")
