"""The dependencies of the handlers, provided by the wiring and, in tests, by fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.refs import Directory
from holdfast.http.kit.access import Access
from holdfast.http.kit.operating import Operating
from holdfast.http.kit.payments import Payments
from holdfast.http.kit.sending import Sending
from holdfast.http.kit.upload_shares import Storage
from holdfast.http.kit.waiting_calls import Following
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.ids import is_id
from holdfast.ledger.links import PublicUrls
from holdfast.settings.settings import Settings
from holdfast.telemetry.reports.conditions import Conditions

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of the handlers: what most of them use, and in groups what some of them do.

    ``catalog`` returns the current catalog, ``catalog_of`` a catalog by its version. ``callback_secrets``
    returns a media provider's secrets by its name (None: those without a name). ``now`` is service time, by which
    all times that the service has written are judged; ``wall`` judges those that others have signed.
    ``write_record`` writes what the journal does not: operators' actions and sessions, which must be possible while
    an operator repairs that, and the rows of files.
    """

    settings: Settings
    database: Reads
    write_record: Writes
    accounts: Directory
    sign_ins: Directory
    tasks: Directory
    catalog: Callable[[], Catalog]
    catalog_of: Callable[[str], Catalog | None]
    callback_secrets: Callable[[str | None], Sequence[str]]
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
