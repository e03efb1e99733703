"""The dependencies of the handlers, provided by the wiring and, in tests, by fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.fair_threads import FairThreads
from holdfast.http.kit.operator_sessions import SeenSessions
from holdfast.http.kit.refused_requests import RefusedRequests
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.persistence.records.operator_tables import OperatorAction, OperatorSession, PoisonRecord
from holdfast.providers.card.base import CardProvider
from holdfast.providers.mail import Mailer
from holdfast.providers.media.health import ProviderState
from holdfast.providers.media.provider_check import CheckStep
from holdfast.providers.storage.base import AssetStore
from holdfast.reports.conditions import Conditions
from holdfast.reports.feed import ReportFeed
from holdfast.reports.report import Report
from holdfast.reports.reporter import Reporter
from holdfast.settings import Settings
from holdfast.supervision.control.messages import MemberView

T = TypeVar("T")


class Reads(Protocol):
    """The read side of the database: one call is one connection and one trip to a worker thread."""

    async def read(self, query: Callable[[Connection], T], /) -> T:
        """Run ``query`` on a connection.

        Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
        ...

    async def scan(self, query: Callable[[Connection], T], /) -> T:
        """Run a query that may take up to a minute; one runs at a time. Raises as :meth:`read` does."""
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


class Health(Protocol):
    """The health check."""

    async def readiness(self) -> Readiness:
        """Return the current state of the parts. Never raises; a part that does not respond is not ready."""
        ...


class UnmatchedEvents(Protocol):
    """Storage of payment events that no order has received."""

    async def store(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Store an event, once per id; ``kind`` is its type. Raises the faults of a command."""
        ...


class EventActions(Protocol):
    """Changes of webhook deliveries. Both methods raise the faults of a command."""

    async def resend(self, account_id: str, event_id: str) -> None:
        """Make an event due at once."""
        ...

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        """Make a generation of the account's secret the newest."""
        ...


class OperatorWrites(Protocol):
    """The records of operators. Every method raises ``DatabaseAway``."""

    async def write_action(self, action: OperatorAction) -> None:
        """Write an action before its effect, or complete it afterwards."""
        ...

    async def add_session(self, session: OperatorSession) -> None:
        """Write a new session."""
        ...

    async def end_session(self, cookie_mac: bytes, at: datetime) -> None:
        """End a session."""
        ...


class OrderRepairs(Protocol):
    """Comparisons of payment orders with their provider. Both raise the faults of a command."""

    async def expect_change(self, order: Order) -> None:
        """Have the reconciler check the order within a minute, whatever becomes of this process."""
        ...

    async def check(self, order_id: str) -> str:
        """Compare an order with its provider now; return the result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPayments:
    """The card provider, and the settings of card payments.

    ``livemode`` is the mode that every payment must have, None if it is not checked. Without ``webhook_secrets``
    the webhook refuses every request.
    """

    provider: CardProvider
    webhook_secrets: Sequence[str] = field(repr=False)
    publishable_key: str | None
    livemode: bool | None
    unmatched: UnmatchedEvents


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


class PoisonActions(Protocol):
    """What operators do with a message whose handling crashed its actor. Both methods raise ``DatabaseAway``."""

    async def replay(self, poison_id: str, *, deadline_s: float) -> PoisonRecord | Refusal:
        """Send it to its actor once more. Raises the faults of a command that was not accepted."""
        ...

    async def discard(self, poison_id: str) -> PoisonRecord | Refusal:
        """Give it up."""
        ...


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The dependencies of the handlers.

    ``catalog`` returns the current catalog, ``catalog_of`` a catalog by its version. ``callback_secrets`` returns a
    media provider's secrets by its name (None: those without a name). The first of ``sandbox_secrets`` signs, all
    verify. ``card`` is None if no card provider is configured.
    """

    settings: Settings
    database: Reads
    accounts: Directory
    sign_ins: Directory
    tasks: Directory
    catalog: Callable[[], Catalog]
    asset_store: AssetStore
    mailer: Mailer
    callback_secrets: Callable[[str | None], Sequence[str]]
    sandbox_secrets: Sequence[str]
    card: CardPayments | None
    events: EventActions
    operators: OperatorWrites
    order_repairs: OrderRepairs
    report: Callable[[Report], None]
    reports: ReportFeed
    health: Health
    controls: ProcessControls
    poison: PoisonActions
    provider_checks: ProviderChecks
    metrics_text: Callable[[], Awaitable[bytes]]
    urls: PublicUrls
    now: Now = utc_now
    catalog_of: Callable[[str], Catalog | None] = lambda _version: None
    key_cache: KeyCache = field(default_factory=KeyCache)
    threads: FairThreads = field(default_factory=FairThreads)
    seen_sessions: SeenSessions = field(default_factory=SeenSessions)
    conditions: Conditions = field(default_factory=lambda: Conditions(Reporter()))

    @cached_property
    def refused(self) -> RefusedRequests:
        """The counts of refused requests."""
        return RefusedRequests(self.conditions)

    @property
    def quote_key(self) -> bytes:
        """The key that seals quotes."""
        return self.settings.derived_key("quotes")

    @property
    def webhook_key(self) -> bytes:
        """The key from which accounts' webhook secrets are derived."""
        return self.settings.derived_key("webhook secrets")
