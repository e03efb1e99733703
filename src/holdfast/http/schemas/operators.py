"""What the parameters and bodies of operators' endpoints share."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

GROUPS: Final = ("accounts", "tasks", "sign-in")
"""The keyed groups of actors."""

TEXT_MAX_CHARS: Final = 400
"""The longest reason or note."""

Reason = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=TEXT_MAX_CHARS,
        pattern=r"\S",
        description="Why the operator acts; recorded for operators only.",
        examples=["the customer asked for it, ticket 4711"],
    ),
]
"""The type of an action's field ``reason``."""

Note = Annotated[str, msgspec.Meta(max_length=TEXT_MAX_CHARS, description="For the customer, who can read it.")]
"""The type of an action's field ``note``."""


class ActionWithReason(msgspec.Struct, frozen=True):
    """An action that needs nothing but its reason."""

    reason: Reason


class ActionRequest(msgspec.Struct, frozen=True):
    """An action that needs nothing but, if you like, a reason."""

    reason: Reason | None = None
    """Null or omitted: none is recorded."""


def text_of(text: str | None) -> str | None:
    """Return a reason or note, None if it is blank."""
    return (text or "").strip() or None
