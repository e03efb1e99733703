"""The address a provider is given to call back to, where its webhooks do not name our task by themselves.

The task, the attempt and a seal over both stand in the query. A webhook's signature covers its body and not where
it was sent, so without the seal a true message about one job could be sent to the address of another task by
whoever saw it. With it, an address can only be had from us.
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
"""What the key of the seals is derived for."""

QUERY_MAX_CHARS = 1000


def hook_address(url: str, key: bytes, provider: str, request_id: str, attempt: int) -> str:
    """``url`` with the query that names one attempt at a task of one provider."""
    seal = _seal(key, provider, request_id, attempt)
    return f"{url}?{urlencode(dict(zip(_FIELDS, (request_id, attempt, seal), strict=True)))}"


def read_hook_query(query: str, key: bytes, provider: str) -> tuple[str, int] | None:
    """The task and attempt that a query names; None unless it is one of ours, each field given once."""
    if len(query) > QUERY_MAX_CHARS or not query.isascii():
        return None
    given = parse_qsl(query, keep_blank_values=True)
    fields = dict(given)
    if len(given) != len(_FIELDS) or fields.keys() != set(_FIELDS):
        return None
    request_id, attempt, seal = (fields[name] for name in _FIELDS)
    if not _TASK.match(request_id) or not _ATTEMPT.match(attempt):
        return None
    # As bytes, since a percent code may have put any character into it.
    if not hmac.compare_digest(seal.encode(), _seal(key, provider, request_id, int(attempt)).encode()):
        return None
    return request_id, int(attempt)


def names_same_job(address: str, job: tuple[str, int], key: bytes, provider: str) -> bool:
    """Whether an address, as a provider repeats it, is one of ours for that very task and attempt."""
    try:
        query = urlsplit(address).query
    except ValueError:
        return False
    return read_hook_query(query, key, provider) == job


def _seal(key: bytes, provider: str, request_id: str, attempt: int) -> str:
    signed: Sequence[str] = (provider, request_id, str(attempt))
    return hmac.new(key, "\n".join(signed).encode(), "sha256").hexdigest()[:40]
