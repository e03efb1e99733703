"""What is known of callers before their rows are read, and what each of them may use at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.http.kit.body_memory import BodyMemory
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.fair_shares import FairShares, FairThreads, TokenTries
from holdfast.http.kit.operators import SeenSessions
from holdfast.persistence.server.lookups import GroupedLookups


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What finds out who calls, and what each caller may use at once.

    ``read_shares`` are those of accounts, and of origins for credentials that have not been verified;
    ``write_shares`` are those of what accounts have written as records. ``lookups`` find rows by their keys, those
    of credentials among them.
    """

    lookups: GroupedLookups
    key_cache: KeyCache = field(default_factory=KeyCache)
    seen_sessions: SeenSessions = field(default_factory=SeenSessions)
    token_tries: TokenTries = field(default_factory=TokenTries)
    body_memory: BodyMemory = field(default_factory=BodyMemory)
    threads: FairThreads = field(default_factory=FairThreads)
    read_shares: FairShares = field(default_factory=FairShares)
    write_shares: FairShares = field(default_factory=lambda: FairShares(at_once_max=1))
