"""This house's tree, whole: who stands under whom, and why each group falls the way it does.

::

    holdfast            rest_for_one   what starts later stands on what started before
    ├── database                       watches the connection, revives the embedded server
    ├── journal                        the one write path; needs the database
    ├── accounts        keyed          need the journal
    ├── sign-in         keyed          needs the journal
    ├── tasks           keyed          ask accounts
    ├── emulators       one_for_one    stand-ins for other people's machines; strangers to each other
    │   ├── studio
    │   └── card
    ├── workers         one_for_one    do errands for tasks and orders, at the emulators too; none needs another
    │   ├── heartbeat                  renews the process's lease and measures service time
    │   ├── dispatcher
    │   ├── desk
    │   ├── hosting
    │   ├── outbox                     delivers events to customers' servers
    │   ├── reconciler                 compares card orders with their provider
    │   ├── order-sweeper              ends orders that nobody has paid in time
    │   ├── provider-watch             probes providers that nobody has called for a while
    │   ├── asset-sweeper              ends the time of stored results, and empties the store behind them
    │   └── sweeper
    └── http            rest_for_one   independent: it answers 503 while what it asks is started again
        ├── application                the web framework's start and end
        ├── connections                all open connections
        ├── listener                   accepts them
        └── operators-listener         accepts those to the operators' own port, where there is one

A crashed journal takes accounts, sign-ins and tasks with it, because what they decided on top of it is in doubt;
their mailboxes stay. Keyed groups guard themselves with two budgets (see :mod:`holdfast.supervision.directory`),
so what reaches this tree is trouble of the machinery, and three times in half a minute is enough to give up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.reports import Reporter
from holdfast.supervision.spec import Child, ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor

HTTP_SHUTDOWN_S = 10.0
"""More than the HTTP server's own drain takes, which bounds itself."""


class Runner(Protocol):
    """A function that lives: reports started, then runs until it is stopped or cancelled."""

    def __call__(self, *, task_status: trio.TaskStatus[None]) -> Awaitable[None]: ...


class RunningChild:
    """A long-lived part as one incarnation of a child. Without ``stop`` a polite stop is a cancellation."""

    def __init__(self, run: Runner, stop: Callable[[], Awaitable[None]] | None = None) -> None:
        self._run = run
        self._stop = stop
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the part."""
        with self._scope:
            await self._run(task_status=task_status)

    async def stop(self) -> None:
        """Stop the part its own way, or cancel it."""
        if self._stop is None:
            self._scope.cancel()
        else:
            await self._stop()


@dataclass(frozen=True, kw_only=True)
class TreeParts:
    """What the tree is made of. Workers and emulators are (name, maker of an incarnation), in start order."""

    database: Callable[[], Child]
    journal: Callable[[], Child]
    accounts: KeyedDirectory
    sign_ins: KeyedDirectory
    tasks: KeyedDirectory
    workers: Sequence[tuple[str, Callable[[], Child]]]
    emulators: Sequence[tuple[str, Callable[[], Child]]] = field(default_factory=tuple)
    http: Callable[[], Child] | None = None


def build_tree(house: TreeParts, reporter: Reporter, *, shutdown_s: float) -> Supervisor:
    """The tree of this house. ``shutdown_s`` bounds how long keyed groups may take to finish their mail."""
    drain_s = shutdown_s / 2

    def workers() -> Supervisor:
        # one_for_one: an errand boy who stumbles concerns nobody else.
        specs = [ChildSpec(name, start, shutdown_s=3.0) for name, start in house.workers]
        return Supervisor(
            "workers", specs, strategy="one_for_one", intensity=Intensity(10, 60.0), reporter=reporter
        )

    def emulators() -> Supervisor:
        # one_for_one, generous: they stand in for somebody else's machines, which fail as they like.
        specs = [ChildSpec(name, start, shutdown_s=6.0) for name, start in house.emulators]
        return Supervisor(
            "emulators", specs, strategy="one_for_one", intensity=Intensity(20, 60.0), reporter=reporter
        )

    specs = [
        ChildSpec("database", house.database, shutdown_s=5.0),
        ChildSpec("journal", house.journal, shutdown_s=drain_s),
        ChildSpec("accounts", house.accounts.child, shutdown_s=drain_s),
        ChildSpec("sign-in", house.sign_ins.child, shutdown_s=drain_s),
        ChildSpec("tasks", house.tasks.child, shutdown_s=drain_s),
    ]
    if house.emulators:
        specs.append(ChildSpec("emulators", emulators, shutdown_s=15.0))
    specs.append(ChildSpec("workers", workers, shutdown_s=8.0))
    if house.http is not None:
        # The last to start and the first to stop: nobody is let in before all is up, or while anything goes down.
        specs.append(ChildSpec("http", house.http, shutdown_s=HTTP_SHUTDOWN_S, independent=True))
    # rest_for_one: whoever stands on a part that fell starts again with it.
    return Supervisor(
        "holdfast",
        specs,
        strategy="rest_for_one",
        intensity=Intensity(3, 30.0),
        reporter=reporter,
        start_timeout_s=60.0,
        drain_timeout_s=shutdown_s,
    )
