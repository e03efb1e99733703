"""Identifiers: a prefix that names the kind, then a UUIDv7 in lower-case hex, so ids sort by time.

The last three digits of a task's and an order's id are its account's place (:mod:`holdfast.ledger.places`). They
are random in a UUIDv7, so it stays one.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from uuid_utils import uuid7

from holdfast.ledger.places import PLACE_DIGITS, place_digits, place_of

Prefix = Literal[
    "acct", "ord", "op", "task", "quo", "key", "ses", "otp", "evt", "rev", "req", "hold", "batch", "asset",
    "proc", "rep", "act", "poi", "check", "cbk", "file", "wh", "cpn", "cpu",
]  # fmt: skip


_ID: Final = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether a text has the form of an identifier. Any other is not looked up: no row has it."""
    return _ID.fullmatch(text) is not None


def new_id(prefix: Prefix) -> str:
    """Return a new identifier such as ``task_0199f3c2…`` (the prefix and 32 hex digits)."""
    return f"{prefix}_{uuid7().hex}"


def new_id_of_account(prefix: Literal["task", "ord"], account_id: str) -> str:
    """Return a new identifier that carries the account's place."""
    return new_id(prefix)[:-PLACE_DIGITS] + place_digits(place_of(account_id))
