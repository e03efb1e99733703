"""What operators see and do of the service itself: its processes, its media providers, and their reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.persistence.operators.overrides import Overrides
from holdfast.providers.media.health import ProviderState
from holdfast.providers.media.provider_check import CheckStep
from holdfast.supervision.control.messages import MemberView
from holdfast.supervision.poison_replays import PoisonReplays
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import Report

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """What operators see and do of the service itself.

    ``report`` reports what one of them has done; ``reports`` are those of everything. ``controls`` reach every
    process; ``readiness`` and ``metrics_text`` are those of this one, and ``refused`` counts the requests that it
    refuses. ``overrides`` are what it knows of what operators have set for a time.
    """

    report: Callable[[Report], None]
    reports: ReportFeed
    refused: RefusedRequests
    overrides: Overrides
    readiness: Callable[[], Readiness]
    metrics_text: Callable[[], Awaitable[bytes]]
    controls: ProcessControls
    poison: PoisonReplays
    provider_checks: ProviderChecks
