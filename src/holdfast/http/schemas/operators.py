"""What the bodies of operators' actions share."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

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
"""The type of an action's field ``reason``: required for money and accounts, else with None as its default."""


class ActionRequest(msgspec.Struct, frozen=True):
    """An action that needs nothing but, if you like, a reason."""

    reason: Reason | None = None
