"""The rules of a kind of provider: what a catalog may set, and how a provider proves that a webhook is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
