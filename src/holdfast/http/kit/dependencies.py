"""The dependencies of the handlers, provided by the wiring and, in tests, by fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.refs import Directory
from holdfast.actors.unfenced import EventCommands
from holdfast.http.kit.access import Access
from holdfast.http.kit.fair_shares import (
    STREAM_READS_MAX,
    FairShares,
    SendRate,
    WaitingCalls,
)
from holdfast.http.kit.operations import Operations
from holdfast.http.kit.payments import Payments
from holdfast.http.kit.upload_shares import Storage
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.persistence.journal.changes import Changes
from holdfast.providers.mail import Mailer
from holdfast.settings.settings import Settings
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

T = TypeVar("T")


class Reads(Protocol):
    """The read side of the database."""

    async def read(self, query: Callable[[Connection], T], /) -> T:
        """Run ``query`` on a connection.

        Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
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


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The dependencies of the handlers.

    ``catalog`` returns the current catalog, ``catalog_of`` a catalog by its version. ``callback_secrets``
    returns a media provider's secrets by its name (None: those without a name). ``now`` is service time, by which
    all times that the service has written are judged; ``wall`` judges those that others have signed.
    ``write_record`` writes what the journal does not: operators' actions and sessions, which must be possible while
    an operator repairs that, and the rows of files. ``stream_shares`` are those of an account's streams.
    ``test_rate`` and ``resend_rate`` limit the events that an account has sent on demand.
    """

    settings: Settings
    database: Reads
    accounts: Directory
    sign_ins: Directory
    tasks: Directory
    catalog: Callable[[], Catalog]
    mailer: Mailer
    callback_secrets: Callable[[str | None], Sequence[str]]
    events: EventCommands
    write_record: Writes
    access: Access
    storage: Storage
    payments: Payments
    operations: Operations
    urls: PublicUrls
    now: Now
    wall: Now = utc_now
    catalog_of: Callable[[str], Catalog | None] = lambda _version: None
    stream_shares: FairShares = field(default_factory=lambda: FairShares(at_once_max=STREAM_READS_MAX))
    test_rate: SendRate = field(default_factory=lambda: SendRate(20, 30.0))
    resend_rate: SendRate = field(default_factory=lambda: SendRate(100, 1.0))
    changes: Changes = field(default_factory=Changes)
    conditions: Conditions = field(default_factory=lambda: Conditions(Reporter()))
    _states: dict[type, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def state(self, kind: type[T]) -> T:
        """Return what an extension remembers in this process: one object of each type, made at first use."""
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind()
        assert isinstance(found, kind)
        return found

    @cached_property
    def waiting(self) -> WaitingCalls:
        """The requests that wait, and the streams: half of the connections at most."""
        settings = self.settings
        return WaitingCalls(
            per_account_max=settings.waiting_per_account_max, all_max=max(1, settings.connections_max // 2)
        )
