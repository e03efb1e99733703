"""The dependencies of the handlers, provided by the wiring and, in tests, by fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.unfenced import EventCommands, UnmatchedEventStore
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.http.kit.body_memory import BodyMemory
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.fair_shares import (
    CARD_CALLS_MAX,
    CARD_CALLS_WAITING_MAX,
    STREAM_READS_MAX,
    FairShares,
    FairThreads,
    SendRate,
    TokenTries,
    WaitingCalls,
)
from holdfast.http.kit.operators import SeenSessions
from holdfast.http.kit.upload_shares import STORERS_MAX, WRITERS_MAX, UploadedBytes, UploadThreads
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.providers.card.base import CardPayments
from holdfast.providers.mail import Mailer
from holdfast.providers.media.health import ProviderState
from holdfast.providers.media.provider_check import CheckStep
from holdfast.providers.storage.base import AssetStore
from holdfast.settings.settings import Settings
from holdfast.supervision.control.messages import MemberView
from holdfast.supervision.poison_replays import PoisonReplays
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import Report
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


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether each part that requests depend on works.

    Of ``providers``, by name, one that is not down is enough: the tasks of the others wait.
    """

    database: bool
    tree: bool
    providers: Mapping[str, ProviderState] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the service should receive requests."""
        are_all_down = bool(self.providers) and all(state == "down" for state in self.providers.values())
        return self.database and self.tree and not are_all_down


class ProviderChecks(Protocol):
    """Checks of media providers by a job that belongs to no task."""

    def charges(self, provider: str) -> bool | None:
        """Whether a provider charges for calls; None if there is no such provider."""
        ...

    async def run(
        self, provider: str, upstream_model: str, job_input: Mapping[str, object], *, wait_s: float
    ) -> list[CheckStep]:
        """Check a provider that exists. Raises ``DatabaseAway``."""
        ...

    async def record_callback(self, check_id: str, *, update: ProviderUpdate | None, refused: str | None) -> None:
        """Store a callback about a check's job. Raises ``DatabaseAway``."""
        ...


class ProcessControls(Protocol):
    """The control actors of all processes that serve the database."""

    @property
    def me(self) -> str:
        """The id of this process as a member."""
        ...

    def members(self) -> Sequence[MemberView]:
        """Return all members, this one first."""
        ...

    def owner_of(self, group: str, key: str) -> str:
        """Return the member that serves a key of a group."""
        ...

    async def ask(self, member_id: str, command: Command[T], *, deadline_s: float) -> T | Refusal:
        """Ask a member's control actor. Refuses with ``member_not_found``; raises as an ask does."""
        ...


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The dependencies of the handlers.

    ``catalog`` returns the current catalog, ``catalog_of`` a catalog by its version. ``callback_secrets``
    returns a media provider's secrets by its name (None: those without a name). ``card`` is None if no card provider is configured. ``now`` is
    service time, by which all times that the service has written are judged; ``wall`` judges those that others
    have signed. ``write_record`` writes what the journal does not: operators' actions and sessions, which must be
    possible while an operator repairs that, and the rows of files. ``claims`` are of contents that are stored.
    ``read_shares`` are those of accounts, and of origins for credentials that have not been verified;
    ``stream_shares`` are those of an account's streams, ``write_shares`` those of what accounts have written as
    records, and ``card_shares`` those of the calls to the card provider that accounts cause. ``test_rate`` and
    ``resend_rate`` limit the events that an account has sent on demand.
    """

    settings: Settings
    database: Reads
    accounts: Directory
    sign_ins: Directory
    tasks: Directory
    catalog: Callable[[], Catalog]
    asset_store: AssetStore
    claims: ContentClaims
    mailer: Mailer
    callback_secrets: Callable[[str | None], Sequence[str]]
    card: CardPayments | None
    unmatched_events: UnmatchedEventStore
    events: EventCommands
    write_record: Writes
    order_checks: OrderChecks
    report: Callable[[Report], None]
    reports: ReportFeed
    readiness: Callable[[], Readiness]
    controls: ProcessControls
    poison: PoisonReplays
    provider_checks: ProviderChecks
    metrics_text: Callable[[], Awaitable[bytes]]
    urls: PublicUrls
    now: Now
    wall: Now = utc_now
    catalog_of: Callable[[str], Catalog | None] = lambda _version: None
    key_cache: KeyCache = field(default_factory=KeyCache)
    uploaded_bytes: UploadedBytes = field(default_factory=UploadedBytes)
    body_memory: BodyMemory = field(default_factory=BodyMemory)
    upload_writers: UploadThreads = field(default_factory=lambda: UploadThreads(WRITERS_MAX))
    upload_storers: UploadThreads = field(default_factory=lambda: UploadThreads(STORERS_MAX))
    threads: FairThreads = field(default_factory=FairThreads)
    read_shares: FairShares = field(default_factory=FairShares)
    stream_shares: FairShares = field(default_factory=lambda: FairShares(at_once_max=STREAM_READS_MAX))
    write_shares: FairShares = field(default_factory=lambda: FairShares(at_once_max=1))
    card_shares: FairShares = field(
        default_factory=lambda: FairShares(at_once_max=CARD_CALLS_MAX, jobs_max=CARD_CALLS_WAITING_MAX)
    )
    test_rate: SendRate = field(default_factory=lambda: SendRate(20, 30.0))
    resend_rate: SendRate = field(default_factory=lambda: SendRate(100, 1.0))
    token_tries: TokenTries = field(default_factory=TokenTries)
    seen_sessions: SeenSessions = field(default_factory=SeenSessions)
    changes: Changes = field(default_factory=Changes)
    conditions: Conditions = field(default_factory=lambda: Conditions(Reporter()))
    refused: RefusedRequests = field(default_factory=lambda: RefusedRequests(Conditions(Reporter())))
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

    @cached_property
    def lookups(self) -> GroupedLookups:
        """The lookups of rows by their keys."""
        return GroupedLookups(self.database.read)
