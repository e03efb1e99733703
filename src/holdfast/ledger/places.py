"""Places: a fixed number of parts into which all accounts are divided, to be spread over the members of a cluster.

An account's place follows from its id. Ids and credentials of an account carry its place as three hex digits, so
that no look-up is needed to find it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

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
