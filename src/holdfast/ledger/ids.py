"""Identifiers: a prefix that names the kind, then a UUIDv7 in lower-case hex, so ids sort by time."""

from __future__ import annotations

from typing import Literal

from uuid_utils import uuid7

Prefix = Literal[
    "acct", "ord", "op", "task", "quo", "key", "ses", "otp", "evt", "rev", "req", "hold", "batch", "asset",
    "proc",
]  # fmt: skip


def new_id(prefix: Prefix) -> str:
    """Return a new identifier such as ``task_0199f3c2…`` (the prefix and 32 hex digits)."""
    return f"{prefix}_{uuid7().hex}"
