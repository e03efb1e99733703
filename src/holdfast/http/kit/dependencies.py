"""What the handlers may use, and nothing else: the composition root fills it in, tests fill it with stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from holdfast.actors.runtime.refs import Directory
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.fair_threads import FairThreads
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.providers.card.base import CardProvider
from holdfast.providers.mail import Mailer
from holdfast.providers.media.health import ProviderState
from holdfast.providers.storage import AssetStore
from holdfast.settings import Settings

T = TypeVar("T")


class Reads(Protocol):
    """The read side of the database: one call is one connection and one trip to a worker thread."""

    async def read(self, query: Callable[[Connection], T], /) -> T:
        """Run ``query`` on a connection.

        Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether each part that must work before traffic makes sense does work.

    Of ``providers``, by name, one is enough that may answer: the others' tasks wait, and all else goes on.
    """

    database: bool
    tree: bool
    providers: Mapping[str, ProviderState] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """True when calls make sense."""
        are_all_down = bool(self.providers) and all(state == "down" for state in self.providers.values())
        return self.database and self.tree and not are_all_down


class Health(Protocol):
    """Who knows how the service is."""

    async def readiness(self) -> Readiness:
        """The state of the parts at this moment. Never raises; a part that does not answer is not ready."""
        ...


class UnmatchedEvents(Protocol):
    """Keeps what a payment provider told and no order took in, so that nothing said to us is lost."""

    async def keep(self, event_id: str, kind: str, verdict: str, body: bytes) -> None:
        """Write the event down, once for each id; ``kind`` is its type. Faults are those of a command."""
        ...


class EventCommands(Protocol):
    """Who changes what becomes of events on their way to customers. Faults are those of a command."""

    async def send_again(self, account_id: str, event_id: str) -> None:
        """Make an event due at once."""
        ...

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        """Let a generation of the account's secret take over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPayments:
    """Card payments as far as the front end needs them.

    ``livemode`` is what the provider must say of every payment, None where it is not asked. Without
    ``webhook_secrets`` the webhook stays shut.
    """

    provider: CardProvider
    webhook_secrets: Sequence[str] = field(repr=False)
    publishable_key: str | None
    livemode: bool | None
    unmatched: UnmatchedEvents


def no_earlier_catalogs(version: str) -> Catalog | None:  # noqa: ARG001 - the signature is that of catalog_of
    """Nothing is kept of earlier catalogs."""
    return None


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The handlers' world. ``callback_secrets`` gives a media provider's secrets by its name (None: unnamed).

    ``catalog`` is the one in force, ``catalog_of`` gives it or an earlier one by its version.

    ``sandbox_secrets``: the first one signs, all of them verify. Without a ``card`` desk there is no card provider.
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
    events: EventCommands
    health: Health
    metrics_text: Callable[[], bytes]
    urls: PublicUrls
    now: Now = utc_now
    catalog_of: Callable[[str], Catalog | None] = no_earlier_catalogs
    key_cache: KeyCache = field(default_factory=KeyCache)
    threads: FairThreads = field(default_factory=FairThreads)

    @property
    def quote_key(self) -> bytes:
        """What seals quotes."""
        return self.settings.derived_key("quotes")

    @property
    def webhook_key(self) -> bytes:
        """What the secrets are drawn from that events to customers are signed with."""
        return self.settings.derived_key("webhook secrets")
