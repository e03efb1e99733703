"""Send events to customers' webhook URLs: which URLs are allowed, and one attempt.

A URL is validated when it is set; the addresses it leads to are checked at each connection by the guarded client. A
redirect is a failed attempt and not followed. The response's body is never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from holdfast.ledger.tasks.events import DeliveryResponse
from holdfast.ledger.values import Now
from holdfast.providers.outbound.connection_pool import TransportFault, parse_retry_after
from holdfast.providers.outbound.guarded import Blocked, GuardedClient
from holdfast.providers.outbound.urls import is_public_url
from holdfast.telemetry.traces import span, trace_header

URL_MAX_CHARS: Final = 1024


def can_be_posted_to(url: str, *, local_allowed: bool) -> bool:
    """Whether a webhook URL is allowed, as :func:`~holdfast.providers.outbound.urls.is_public_url` says."""
    return len(url) <= URL_MAX_CHARS and is_public_url(url, local_allowed=local_allowed)


async def post_event(
    client: GuardedClient,
    account_id: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    now: Now,
) -> DeliveryResponse:
    """Send one attempt on behalf of an account and return its result; errors of the receiver are not raised."""
    try:
        with span("webhook", "client"):
            sent = {"Content-Type": "application/json", **trace_header(), **headers}
            with await client.open(
                "POST",
                url,
                headers=sent,
                content=body,
                redirects_max_count=0,
                requester=account_id,
                ends_at=trio.current_time() + timeout_s,
            ) as response:
                pause_s = parse_retry_after(response.header("retry-after"), now())
                return DeliveryResponse(response.status, retry_after_s=pause_s)
    except trio.TooSlowError:
        return DeliveryResponse(None, error=f"no answer within {timeout_s:g} s")
    except Blocked as refusal:
        return DeliveryResponse(None, error=f"not allowed: {refusal}")
    except TransportFault as fault:
        return DeliveryResponse(None, error=f"unreachable: {type(fault).__name__}")
