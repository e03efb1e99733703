"""An actors' world on a real database: journal, directories, and accounts with credit."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from holdfast.actors.account import AccountActor, AccountLimits
from holdfast.actors.mailbox import Mailbox
from holdfast.actors.messages import Command, CreateTask, IdempotencyKey, KeyClaim
from holdfast.actors.turns import Tell
from holdfast.ledger.account import CHAIN_START
from holdfast.ledger.clock import utc_now
from holdfast.ledger.ids import new_id
from holdfast.ledger.tasks import Task
from holdfast.ledger.terms import Rate, Terms, Units
from holdfast.persistence.database import Database
from holdfast.persistence.journal import Journal
from holdfast.persistence.loading import load_account
from holdfast.persistence.rows import AccountRow, ApiKeyRow
from holdfast.persistence.units import Committed, Unit
from holdfast.persistence.writer import BatchWriter
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_slots import KeyedLimits
from holdfast.supervision.reports import DeadLetters, Reporter


def terms(hold_micro: int = 1_000_000) -> Terms:
    """Terms of a one-image task that holds ``hold_micro``."""
    return Terms(
        model="studio/image-1",
        modality="image",
        catalog_version="cat_0",
        input_hash="0" * 64,
        rate=Rate(mode="per_image", unit="image", unit_price="1"),
        estimated=Units(units=1),
        largest=Units(units=1),
        smallest=Units(units=1),
        estimate_micro=hold_micro,
        minimum_micro=hold_micro,
        maximum_micro=hold_micro,
        hold_micro=hold_micro,
        exact=True,
        basis="per_image: 1 x 1",
        provider="studio",
        upstream_model="poster",
        provider_quote_hash="0" * 64,
    )


def create_task(key_id: str, *, hold_micro: int = 1_000_000, key: str | None = None) -> CreateTask:
    """A command that creates a task, optionally under an idempotency key."""
    idempotency = None if key is None else IdempotencyKey("POST /v2/task/create", key, b"same body")
    return CreateTask(
        input=b'{"prompt":"a lighthouse"}',
        terms=terms(hold_micro),
        quote_id="quo_1",
        claim=KeyClaim(key_id, "tasks:write"),
        idempotency=idempotency,
    )


@dataclass
class Announcements:
    """Where new tasks are announced to."""

    heard: list[str] = field(default_factory=list)

    def tell(self, key: str, command: Command[Any]) -> None:
        """Note the task."""
        self.heard.append(key)


@dataclass
class World:
    """One process's worth of accounts on a database."""

    database: Database
    journal: Journal
    accounts: KeyedDirectory
    announcements: Announcements
    reporter: Reporter

    async def open_account(self) -> tuple[str, str]:
        """An account with one live key; returns their ids."""
        account_id, key_id, at = new_id("acct"), new_id("key"), utc_now()
        rows = (
            AccountRow(account_id, f"{account_id}@example.com", "User", "b", at, 0, 0, 0, 0, CHAIN_START),
            ApiKeyRow(account_id, key_id, key_id.encode(), "hk_test_x", "k", ("tasks:write",), at),
        )
        verdict = await self.journal.write(Unit(rows=rows))
        assert isinstance(verdict, Committed)
        return account_id, key_id


def make_world(database: Database, *, limits: KeyedLimits | None = None, writer: Any = None) -> World:
    """Put a world together; :func:`running` runs it."""
    journal = Journal(writer or BatchWriter(database.connect_writer, now=utc_now), database.gate)
    announcements = Announcements()
    reporter = Reporter()

    async def load(account_id: str) -> Any:
        return await database.read(lambda connection: load_account(connection, account_id))

    def announce(task: Task) -> Tell:
        return Tell(announcements, task.request_id, None)  # type: ignore[arg-type]  # only counted

    def factory(key: str, mailbox: Mailbox) -> AccountActor:
        return AccountActor(
            key, mailbox, journal, load=load, announce=announce, now=utc_now, limits=AccountLimits()
        )

    async def probe() -> bool:
        return True

    accounts = KeyedDirectory(
        "accounts",
        factory,
        gate=database.gate,
        probe=probe,
        reporter=reporter,
        dead_letters=DeadLetters(),
        limits=limits,
        rng=random.Random(1),
    )
    return World(database, journal, accounts, announcements, reporter)


StartWorld = Callable[..., Awaitable[World]]


@pytest.fixture
def start_world(database: Database, nursery: trio.Nursery) -> StartWorld:
    """Starts worlds on one database: ``await start_world(limits=…, writer=…)``."""

    async def start(*, limits: KeyedLimits | None = None, writer: Any = None) -> World:
        world = make_world(database, limits=limits, writer=writer)
        await nursery.start(lambda *, task_status: world.journal.run(task_status=task_status))
        await nursery.start(lambda *, task_status: world.accounts.run(task_status))
        return world

    return start


@pytest.fixture
async def world(start_world: StartWorld) -> World:
    """A running world."""
    return await start_world()


@pytest.fixture
def new_task() -> Callable[..., CreateTask]:
    """Makes commands that create a task: ``new_task(key_id, hold_micro=…, key=…)``."""
    return create_task
