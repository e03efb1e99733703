"""The secrets that events are signed with: one an account, drawn from a key of the house, replaced on demand.

Nothing secret is stored. A secret follows from the account and a generation number; replacing it is the next
generation. For a day the one before signs as well, so that its owner can change over without losing an event.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.ledger.standard_secrets import standard_secret

OVERLAP_S = 24 * 3600
SIGNING_MAX_COUNT = 4


class Rotation(NamedTuple):
    """A generation, and when it took over from the one before. The first one, 0, was never rotated to."""

    generation: int
    at: datetime


class Signing(NamedTuple):
    """The generations that sign now, newest first, when the newest took over, and when it will sign alone."""

    generations: tuple[int, ...]
    rotated_at: datetime | None
    alone_from: datetime | None


def signing(rotations: Sequence[Rotation], now: datetime) -> Signing:
    """Who signs now, by an account's newest rotations in any order."""
    newest_first = sorted(rotations, reverse=True)
    if not newest_first:
        return Signing((0,), None, None)
    generations = [newest_first[0].generation]
    alone_from: datetime | None = None
    for rotation in newest_first[: SIGNING_MAX_COUNT - 1]:
        until = rotation.at + timedelta(seconds=OVERLAP_S)
        if until <= now:
            break
        generations.append(rotation.generation - 1)
        alone_from = until if alone_from is None else max(alone_from, until)
    return Signing(tuple(generations), newest_first[0].at, alone_from)


def webhook_secret(key: bytes, account_id: str, generation: int) -> str:
    """An account's secret of one generation, as its owner is shown it; its key has 32 bytes."""
    return standard_secret(hmac.digest(key, f"{account_id} {generation}".encode(), "sha256"))
