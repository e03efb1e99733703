"""The callback URL for providers whose webhooks do not name our task.

Its query contains the task, the attempt and a seal over both. A webhook's signature covers its body but not its
URL, so without the seal anyone who saw a genuine message could send it to another task's URL.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}\Z")
_TASK = re.compile(r"[!-~]{1,100}\Z")
_FIELDS = ("request_id", "attempt", "seal")
PURPOSE = "callback addresses"
"""The purpose for which the seals' key is derived."""

QUERY_MAX_CHARS = 1000


def hook_address(url: str, key: bytes, provider: str, request_id: str, attempt: int) -> str:
    """Return ``url`` with the query of one attempt at a task."""
    seal = _seal(key, provider, request_id, attempt)
    return f"{url}?{urlencode(dict(zip(_FIELDS, (request_id, attempt, seal), strict=True)))}"


def read_hook_query(query: str, key: bytes, provider: str) -> tuple[str, int] | None:
    """Return the task and attempt of a query; None unless its seal is valid and each field is given once."""
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
    if not hmac.compare_digest(seal.encode(), _seal(key, provider, request_id, int(attempt)).encode()):
        return None
    return request_id, int(attempt)


def names_same_job(address: str, job: tuple[str, int], key: bytes, provider: str) -> bool:
    """Whether a URL repeated by the provider is ours for this task and attempt."""
    try:
        query = urlsplit(address).query
    except ValueError:
        return False
    return read_hook_query(query, key, provider) == job


def _seal(key: bytes, provider: str, request_id: str, attempt: int) -> str:
    signed: Sequence[str] = (provider, request_id, str(attempt))
    return hmac.new(key, "\n".join(signed).encode(), "sha256").hexdigest()[:40]
