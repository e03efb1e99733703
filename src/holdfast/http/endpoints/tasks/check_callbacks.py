"""Callbacks about the jobs of provider checks, which belong to no task: recorded for the check to see."""

from __future__ import annotations

import msgspec

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.providers.media.callbacks import PURPOSE, read_hook_query
from holdfast.providers.media.provider_check import CHECK_PREFIX


class CheckCallbackReceived(msgspec.Struct, frozen=True):
    """The callback is about the job of a provider check, not about a task."""

    check_id: str


def is_of_check(request_id: str) -> bool:
    """Whether a callback's task is the job of a provider check."""
    return request_id.startswith(CHECK_PREFIX)


async def receive_for_check(call: Call, update: ProviderUpdate) -> CheckCallbackReceived:
    """Record a verified update."""
    await call.deps.provider_checks.record_callback(update.request_id, update=update, refused=None)
    return CheckCallbackReceived(update.request_id)


async def record_refused(call: Call, outcome: Outcome) -> Outcome:
    """Return the outcome of a callback. A refusal is recorded for the check that our own seal in the address names.

    Anyone may send a callback that is refused, so only the seal makes it worth a row.
    """
    if isinstance(outcome, Refusal) and (sealed := sealed_check(call)) is not None:
        await call.deps.provider_checks.record_callback(sealed[1], update=None, refused=outcome.code)
    return outcome


def sealed_check(call: Call) -> tuple[str, str] | None:
    """Return the provider and the id of the check that the address names with our seal, if any."""
    query = call.request.query_string.decode("ascii", "replace")
    if not query:
        return None
    key = call.deps.settings.derived_key(PURPOSE)
    for provider in call.deps.catalog().providers:
        job = read_hook_query(query, key, provider)
        if job is not None and is_of_check(job[0]):
            return provider, job[0]
    return None
