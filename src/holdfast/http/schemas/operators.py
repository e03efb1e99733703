"""What the parameters and bodies of operators' endpoints share."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

GROUPS: Final = ("accounts", "tasks", "sign-in")
"""The keyed groups of actors."""

REASON_MAX_CHARS: Final = 400

Reason = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=REASON_MAX_CHARS,
        pattern=r"\S",
        description="Why; recorded with the action, for operators only.",
        examples=["the customer asked for it, ticket 4711"],
    ),
]
"""The type of an action's field ``reason``."""


class ActionWithReason(msgspec.Struct, frozen=True):
    """An action that needs nothing but its reason."""

    reason: Reason


class ActionRequest(msgspec.Struct, frozen=True):
    """An action that needs nothing but, if you like, a reason."""

    reason: Reason | None = None
