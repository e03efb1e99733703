"""The kinds of providers: what a catalog may set for each, and how a provider proves that a webhook is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

WebhookProof = Literal["signature", "token", "standard"]
"""``signature``: our signature; ``token``: a bearer token or our signature; ``standard``: Standard Webhooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """The rules for providers of one kind. ``defaults`` has ``concurrency`` and ``callback_bytes_max`` at least.

    ``required`` and ``forbidden`` are keys that a provider's table must have, and must not have.
    """

    defaults: Mapping[str, Any]
    required: tuple[str, ...] = ("url",)
    forbidden: tuple[str, ...] = ()
    webhooks: WebhookProof = "signature"
    missing: Mapping[str, str] = field(default_factory=dict)
    """What to add to the fault of a missing key."""


KIND_RULES: Final[Mapping[str, KindRules]] = {
    "studio": KindRules(
        defaults={"concurrency": 4, "polls": True, "callback_bytes_max": 256 * 1024},
        required=(),
        forbidden=("token", "polls", "callback_bytes_max"),
    ),
    # Without an upload address a container sends its files inside its webhooks.
    "cog": KindRules(defaults={"concurrency": 16, "callback_bytes_max": 8 * 1024 * 1024}, webhooks="token"),
    # A webhook contains the whole input and log; outputs are URLs.
    "replicate": KindRules(
        defaults={
            "concurrency": 16,
            "polls": True,
            "callback_bytes_max": 1024 * 1024,
            "url": "https://api.replicate.com",
        },
        required=("token",),
        forbidden=("polls",),
        webhooks="standard",
        missing={"token": "; the hosted service requires one"},
    ),
}
"""The kinds that Holdfast has."""
