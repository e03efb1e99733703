"""The supervision tree of the service.

It is drawn in ``docs/architecture.md``; a test compares the drawing with a running service.

A crashed journal restarts accounts, sign-ins and tasks with it, because their undurable decisions are in doubt;
their mailboxes stay. Keyed groups contain crashes of single actors (see :mod:`holdfast.supervision.directory`), so
a crash that reaches this tree is a defect of the runtime, and more than three of them within 30 seconds, or ten
within 15 minutes, end the process. A worker that keeps failing alone is restarted for ever, and reported as a crash
loop for as long as it lasts: the other workers do not need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import trio

from holdfast.supervision.spec import Child, ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

if TYPE_CHECKING:
    # Only a name here: the emulators have a tree too, and no actors.
    from holdfast.supervision.directory import KeyedDirectory

TOP_INTENSITY = Intensity(3, 30.0, longer=Intensity(10, 900.0))
"""The longer budget is for a group that gives up again and again, but only twice a minute."""
WORKERS_INTENSITY = Intensity(10, 60.0)
HTTP_SHUTDOWN_S = 10.0
"""Longer than the HTTP server's own bounded drain."""


class Runner(Protocol):
    """A function that reports started and then runs until it is stopped or cancelled."""

    def __call__(self, *, task_status: trio.TaskStatus[None]) -> Awaitable[None]: ...


class RunningChild:
    """Runs a function as a child. Without ``stop``, stopping cancels it."""

    def __init__(self, run: Runner, stop: Callable[[], Awaitable[None]] | None = None) -> None:
        self._run = run
        self._stop = stop
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the function."""
        with self._scope:
            await self._run(task_status=task_status)

    async def stop(self) -> None:
        """Call ``stop``, or cancel the function."""
        if self._stop is None:
            self._scope.cancel()
        else:
            await self._stop()


def build_tree(
    reporter: Reporter,
    conditions: Conditions,
    *,
    shutdown_s: float,
    control: Callable[[], Child],
    database: Callable[[], Child],
    journal: Callable[[], Child],
    members: Callable[[], Child],
    accounts: KeyedDirectory,
    sign_ins: KeyedDirectory,
    tasks: KeyedDirectory,
    emulators: Mapping[str, Callable[[], Child]],
    workers: Mapping[str, Callable[[], Child]],
) -> Supervisor:
    """Return the tree without the HTTP server. Half of ``shutdown_s`` bounds the drain of keyed groups.

    Workers and emulators are given by name, in start order.
    """
    drain_s = shutdown_s / 2

    def start_workers() -> Supervisor:
        # one_for_one: workers do not depend on each other. Requests are served without one: its work waits in rows.
        specs = [ChildSpec(name, start, shutdown_s=3.0, required=False) for name, start in workers.items()]
        return Supervisor(
            "workers",
            specs,
            strategy="one_for_one",
            intensity=WORKERS_INTENSITY,
            reporter=reporter,
            conditions=conditions,
        )

    specs = [
        ChildSpec("database", database, shutdown_s=5.0),
        ChildSpec("journal", journal, shutdown_s=drain_s),
        ChildSpec("members", members, shutdown_s=2.0),
        ChildSpec("accounts", lambda: accounts, shutdown_s=drain_s),
        ChildSpec("sign-in", lambda: sign_ins, shutdown_s=drain_s),
        ChildSpec("tasks", lambda: tasks, shutdown_s=drain_s),
        *(
            [ChildSpec("emulators", lambda: emulators_tree(emulators, reporter, conditions), shutdown_s=15.0)]
            if emulators
            else []
        ),
        ChildSpec("workers", start_workers, shutdown_s=8.0),
        ChildSpec("control", control, shutdown_s=1.0, independent=True),
    ]
    # rest_for_one: a part restarts with all parts that were started after it and rely on it.
    return Supervisor(
        "holdfast",
        specs,
        strategy="rest_for_one",
        intensity=TOP_INTENSITY,
        reporter=reporter,
        conditions=conditions,
        start_timeout_s=60.0,
        drain_timeout_s=shutdown_s,
    )


def emulators_tree(
    emulators: Mapping[str, Callable[[], Child]], reporter: Reporter, conditions: Conditions
) -> Supervisor:
    """Return the supervisor of emulators, which are given by name."""
    specs = [ChildSpec(name, start, shutdown_s=6.0, required=False) for name, start in emulators.items()]
    # one_for_one: emulators are independent, and stand for external systems that may fail often.
    return Supervisor(
        "emulators",
        specs,
        strategy="one_for_one",
        intensity=Intensity(20, 60.0),
        reporter=reporter,
        conditions=conditions,
    )


def add_http_server(tree: Supervisor, start: Callable[[], Child]) -> None:
    """Add the HTTP server as the last child: it starts when all parts are up, and stops before any of them."""
    tree.append(ChildSpec("http", start, shutdown_s=HTTP_SHUTDOWN_S, independent=True))
