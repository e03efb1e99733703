"""Identifiers: a prefix that names the kind, then a UUIDv7 in lower-case hex, so ids sort by time; and places.

Places are a fixed number of parts into which all accounts are divided, to be spread over the members of a cluster.
An account's place follows from its id. The last three digits of the ids of its tasks, orders, results and files,
and some characters of its credentials, are its account's place, so that no look-up is needed to find it. They are
random in a UUIDv7, so it stays one.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, Literal

from uuid_utils import uuid7

PLACES: Final = 4096
PLACE_DIGITS: Final = 3

_CARRIED = re.compile(rf"[0-9a-f]{{{PLACE_DIGITS}}}", re.ASCII)


@lru_cache(maxsize=50_000)
def place_of(key: str) -> int:
    """Return the place of an account's id, or of any other key: evenly spread, and the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode(errors="replace"), digest_size=2).digest()) % PLACES


def place_digits(place: int) -> str:
    """Return how ids and credentials carry a place: three lower-case hex digits."""
    return f"{place:03x}"


def place_carried_by(identifier: str) -> int:
    """Return the place that a task's or an order's id carries; of a key that carries none, its own place."""
    digits = identifier[-PLACE_DIGITS:]
    return int(digits, 16) if _CARRIED.fullmatch(digits) else place_of(identifier)


Prefix = Literal[
    "acct", "ord", "op", "task", "quo", "key", "ses", "otp", "evt", "rev", "req", "hold", "batch", "asset",
    "proc", "rep", "act", "poi", "check", "cbk", "file", "wh", "cpn", "cpu",
    "chg", "arc", "grp", "mov",
]  # fmt: skip


_ID: Final = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether a text has the form of an identifier. Any other is not looked up: no row has it."""
    return _ID.fullmatch(text) is not None


def new_id(prefix: Prefix) -> str:
    """Return a new identifier such as ``task_0199f3c2…`` (the prefix and 32 hex digits)."""
    return f"{prefix}_{uuid7().hex}"


def new_id_of_account(prefix: Literal["task", "ord", "file"], account_id: str) -> str:
    """Return a new identifier that carries the account's place."""
    return new_id_at(prefix, place_of(account_id))


def new_id_at(prefix: Prefix, place: int) -> str:
    """Return a new identifier that carries a place."""
    return new_id(prefix)[:-PLACE_DIGITS] + place_digits(place)
