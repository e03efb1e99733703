"""Actors on a real database: journal, directories, and accounts with credit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from holdfast.actors.account.messages import CreateTask
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.task.actor import TaskActor
from holdfast.persistence.queries.loading import load_task_and_events
from holdfast.persistence.server.database import Database
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory

from .actor_system import ActorSystem, Payments, StartSystem, create_task, make_system, task_dependencies
from .asset_setup import Setup, SlowStore


@pytest.fixture
def start_system(database: Database, nursery: trio.Nursery) -> StartSystem:
    """Starts systems on one database: ``await start_system(limits=…, writer=…, account_limits=…)``."""

    async def start(**options: Any) -> ActorSystem:
        system = make_system(database, **options)
        await nursery.start(lambda *, task_status: system.journal.run(task_status=task_status))
        await nursery.start(system.accounts.run)
        return system

    return start


@pytest.fixture
async def system(start_system: StartSystem) -> ActorSystem:
    """A running system."""
    return await start_system()


@pytest.fixture
def new_task() -> Callable[..., CreateTask]:
    """Makes commands that create a task: ``new_task(key_id, hold_micro=…, key=…)``."""
    return create_task


@pytest.fixture
def payments() -> Payments:
    """Builds orders and a provider's events of them."""
    return Payments()


@pytest.fixture
async def setup(system: ActorSystem, nursery: trio.Nursery, tmp_path: Path) -> Setup:
    """A running setup with one account."""
    account_id, _ = await system.open_account()
    setup = Setup(system, SlowStore(tmp_path / "data"), account_id, nursery, tmp_path)
    workers = dict.fromkeys(("dispatcher", "provider_calls", "hosting", "outbox"), setup.messages.ref(""))
    about = task_dependencies(accounts=system.accounts, now=setup.now, **workers)

    async def load(request_id: str) -> Any:
        return await system.database.read(load_task_and_events, request_id)

    def factory(request_id: str, mailbox: Mailbox) -> TaskActor:
        return TaskActor(request_id, mailbox, system.journal, load=load, deps=about)

    async def probe() -> bool:
        return True

    setup.tasks, setup.rival = (
        KeyedDirectory(
            "tasks",
            factory,
            gate=system.database.gate,
            probe=probe,
            reporter=system.reporter,
            dead_letters=DeadLetters(),
            rng=random.Random(1),
        )
        for _ in range(2)
    )
    await nursery.start(setup.tasks.run)
    await nursery.start(setup.rival.run)
    return setup
