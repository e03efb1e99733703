"""Stand-ins for what handlers depend on beside actors and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from sqlalchemy import Connection

from holdfast.actors.runtime.messages import Command
from holdfast.actors.unfenced import EventCommands
from holdfast.http.kit.operating import Readiness
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.persistence.queries.events import EventAddress
from holdfast.providers.mail.base import Alert, CodeUse, MailFault
from holdfast.providers.media.provider_check import CheckStep
from holdfast.supervision.control.messages import EndSession, MemberView, SessionEnded
from holdfast.supervision.poison_replays import NOT_FOUND, PoisonReplays

from .identities import NOW

R = TypeVar("R")
READY = Readiness(database=True, tree=True, providers={"studio": "up"})


@dataclass
class FakeMailer:
    """Records the mails."""

    sent: list[tuple[str, str, int]] = field(default_factory=list)
    alerts: list[tuple[str, Alert]] = field(default_factory=list)
    fault: MailFault | None = None

    async def send_code(self, email: str, code: str, expires_in_s: int, use: CodeUse = "sign_in") -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append((email, code, expires_in_s))

    async def send_alert(self, email: str, alert: Alert) -> None:
        if self.fault is not None:
            raise self.fault
        self.alerts.append((email, alert))


@dataclass
class FakeEventCommands(EventCommands):
    """Records the commands."""

    sent_again: list[EventAddress] = field(default_factory=list)
    rotated: list[tuple[str, int]] = field(default_factory=list)

    async def resend(self, events: Sequence[EventAddress], *, unless_since: datetime | None = None) -> None:
        self.sent_again += events

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        self.rotated.append((account_id, generation))
        return Rotation(generation, NOW)


def no_connection() -> psycopg.Connection[Any]:
    """Fail: this test has no database."""
    raise AssertionError("this call must not claim a content")


async def write_no_record(change: Callable[[Connection], R]) -> R:
    """Accept what operators do, who do not use a result."""
    return cast(R, None)


@dataclass
@dataclass
class FakeRegistry:
    """A catalog and the secrets of its providers; only the catalogs of ``past`` are known beside it."""

    catalog: Catalog
    secrets: Mapping[str | None, Sequence[str]]
    past: Mapping[str, Catalog] = field(default_factory=dict)

    def catalog_of(self, version: str) -> Catalog | None:
        return self.past.get(version)

    def callback_secrets(self, provider: str | None) -> Sequence[str]:
        return self.secrets.get(provider, ())


class FakeProviderChecks:
    """Checks that take the given steps; ``charging`` are the providers that charge."""

    def __init__(self) -> None:
        self.charging: dict[str, bool] = {"studio": False}
        self.steps = [CheckStep("connection", "ok", "connected", 0.01)]
        self.runs: list[tuple[str, str, dict[str, object], float]] = []
        self.recorded: list[tuple[str, ProviderUpdate | None, str | None]] = []

    def charges(self, provider: str) -> bool | None:
        return self.charging.get(provider)

    async def run(
        self, provider: str, upstream_model: str, job_input: Mapping[str, object], *, wait_s: float
    ) -> list[CheckStep]:
        self.runs.append((provider, upstream_model, dict(job_input), wait_s))
        return self.steps

    async def record_callback(self, check_id: str, *, update: ProviderUpdate | None, refused: str | None) -> None:
        self.recorded.append((check_id, update, refused))


class FakePoison(PoisonReplays):
    """No poison messages."""

    def __init__(self) -> None:
        pass

    async def replay(self, poison_id: str, *, deadline_s: float, unless_since: datetime | None = None) -> Refusal:
        return NOT_FOUND

    async def discard(self, poison_id: str) -> Refusal:
        return NOT_FOUND


@dataclass
class FakeControls:
    """The control actors of one process without any."""

    me: str = "proc_1"
    asked: list[tuple[str, Command[Any]]] = field(default_factory=list)
    answer: Callable[[Command[Any]], Any] = lambda _command: Refusal(code="actor_not_found", message="Not here.")
    others: tuple[MemberView, ...] = ()
    end_session: Callable[[bytes], None] = lambda _mac: None

    def members(self) -> list[MemberView]:
        this = MemberView(member_id=self.me, is_this=True, state="ready", unreachable_for_s=None)
        return [this, *self.others]

    def owner_of(self, group: str, key: str) -> str:
        return self.me

    async def ask(self, member_id: str, command: Command[R], *, deadline_s: float) -> R | Refusal:
        if isinstance(command, EndSession):
            self.end_session(command.cookie_mac)
            return cast("R", SessionEnded(member_id))
        self.asked.append((member_id, command))
        return cast("R | Refusal", self.answer(command))
