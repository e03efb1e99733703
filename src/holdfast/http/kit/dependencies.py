"""The dependencies of the handlers, provided by the wiring and, in tests, by fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.refs import Directory
from holdfast.actors.unfenced import UnmatchedEventStore
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.http.kit.body_memory import BodyMemory
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.fair_shares import FairShares, FairThreads, TokenTries
from holdfast.http.kit.operating import Operating
from holdfast.http.kit.operators import SeenSessions
from holdfast.http.kit.sending import Sending
from holdfast.http.kit.upload_shares import Storage
from holdfast.http.kit.waiting_calls import Following
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.cells import Cells
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.values import Now, is_id, utc_now
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.providers.card.base import CardPayments
from holdfast.settings.settings import Settings
from holdfast.telemetry.reports.conditions import Conditions

T = TypeVar("T")

CARD_CALLS_MAX: Final = 2
CARD_CALLS_WAITING_MAX: Final = 8
"""With those that are made: each may take as long as the provider's timeouts allow."""


class Reads(Protocol):
    """The read side of the database."""

    async def read(self, query: Callable[[Connection], T], /) -> T:
        """Run ``query`` on a connection.

        Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
        ...

    async def examine(self, query: Callable[[Connection], T], /) -> T:
        """Run a query about the server itself, also while it counts as away. Raises as :meth:`read` does."""
        ...

    async def scan(self, query: Callable[[Connection], T], /) -> T:
        """Run a query that may take up to a minute; one runs at a time. Raises as :meth:`read` does."""
        ...


class Writes(Protocol):
    """Writes rows without the journal."""

    async def __call__(self, change: Callable[[Connection], T], /) -> T:
        """Run ``change``, each of whose statements is committed by itself, and return its result.

        Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
        ...


class Registry(Protocol):
    """The catalog, which may be replaced at any time, and what is configured of its media providers."""

    @property
    def catalog(self) -> Catalog:
        """The current catalog."""
        ...

    def catalog_of(self, version: str, /) -> Catalog | None:
        """Return a catalog by its version, if it is still known."""
        ...

    def callback_secrets(self, provider: str | None, /) -> Sequence[str]:
        """Return a provider's secrets by its name; None: those without a name."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Payments:
    """The card provider, and what is known of its payments.

    ``card`` is None if no card provider is configured. ``card_shares`` are those of the calls to it that accounts
    cause. ``order_checks`` compare an order with the provider, for operators.
    """

    card: CardPayments | None
    unmatched_events: UnmatchedEventStore
    order_checks: OrderChecks
    card_shares: FairShares = field(
        default_factory=lambda: FairShares(at_once_max=CARD_CALLS_MAX, jobs_max=CARD_CALLS_WAITING_MAX)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of the handlers: what most of them use, and in groups what some of them do.

    ``now`` is service time, by which all times that the service has written are judged; ``wall`` judges those that
    others have signed.
    ``cells`` is None if the service has one database.
    ``write_record`` writes what the journal does not: operators' actions and sessions, which must be possible while
    an operator repairs that, and the rows of files.
    """

    settings: Settings
    database: Reads
    write_record: Writes
    accounts: Directory
    sign_ins: Directory
    tasks: Directory
    registry: Registry
    urls: PublicUrls
    conditions: Conditions
    now: Now
    wall: Now = utc_now
    access: Access
    following: Following
    sending: Sending
    storage: Storage
    payments: Payments
    operating: Operating
    cells: Cells | None = None
    _states: dict[type, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def state(self, kind: type[T]) -> T:
        """Return what an extension remembers in this process: one object of each type, made at first use."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind()
        assert isinstance(found, kind)
        return found

    async def find_by_id(self, find: Callable[[Connection, str], T | None], sent_id: str) -> T | None:
        """Return what ``find`` finds by an id that was sent, or None: the database is not asked for other texts."""
        return await self.database.read(lambda rows: find(rows, sent_id)) if is_id(sent_id) else None
