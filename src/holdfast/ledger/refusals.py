"""Results of commands: refusals, which are values and name the rule, and the verdicts of decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from holdfast.ledger.public_types import LimitWindow

StepVerdict = Literal["applied", "duplicate", "stale", "late", "ignored"]
"""What a decision did with an event or command.

``duplicate`` was applied before; ``stale`` and ``late`` are overtaken by what is known and are only recorded;
``ignored`` requires nothing.
"""


class ExceededLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that a hold would exceed, what is spent of it, and when its window ends; None: it does not."""

    credits_micro: int
    window: LimitWindow
    spent_micro: int
    resets_at: datetime | None


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """A command was understood and rejected; nothing changed.

    ``code`` is one of the codes of the error table (``holdfast.http.kit.errors`` gives each its status).
    ``required_micro`` and ``available_micro`` are set for ``insufficient_credit``; ``required_micro`` and ``limit``
    for a limit that is exceeded; ``retry_after_s`` for refusals that pass with time; ``param`` names the offending
    field; ``provider_code`` is an external provider's own code if it was the one to refuse.
    """

    code: str
    message: str
    param: str | None = None
    required_micro: int | None = None
    available_micro: int | None = None
    limit: ExceededLimit | None = None
    retry_after_s: int | None = None
    provider_code: str | None = None
    final: bool = False
    """True if repeating the same call can never succeed (``x-should-retry: false``)."""


IDEMPOTENCY_KEY_REUSED: Final = Refusal(
    code="idempotency_key_reused",
    message="This Idempotency-Key was used with another request.",
    param="Idempotency-Key",
    final=True,
)
SUPERSEDED: Final = Refusal(code="superseded", message="A later attempt at this request has begun.")
"""Of an attempt by which no task is created any more; it is handled where the attempts are made."""
ACCOUNT_DISABLED: Final = Refusal(code="account_disabled", message="The account is disabled; ask the operator.")
