"""The service, counting what its event loop does; the counts are among its metrics.

Counted: steps of the loop, trio tasks by name, thread hops by function, messages by type, reads and claims by
query. Counting costs time, so nothing is timed in this process.

Run: python -m benchmarks.counting serve
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from prometheus_client import Counter

from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.commands.cli import main
from holdfast.persistence.server.database import Database

METRIC = "benchmark_events"

_COUNTER = Counter(METRIC, "What the event loop did, by kind and name.", ["kind", "name"])


def _count(kind: str, name: str) -> None:
    _COUNTER.labels(kind, name).inc()


class LoopCounter(trio.abc.Instrument):
    """Counts the steps of the loop and the tasks started in it."""

    def __init__(self) -> None:
        self._steps = _COUNTER.labels("loop steps", "all")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step."""
        self._steps.inc()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Count a task under the part of its name that names no key."""
        _count("trio tasks", task.name.partition(":acct_")[0].partition(":task_")[0])


def _name(work: Callable[..., object]) -> str:
    while isinstance(work, partial):
        work = work.func
    return f"{work.__module__.removeprefix('holdfast.')}.{getattr(work, '__qualname__', repr(work))}"


def _counted(kind: str, call: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Any:
        _count(kind, name_of(*arguments))
        return call(*arguments, **named)

    return counted


def install() -> None:
    """Count from here on, in this process."""

    def message_name(_: Mailbox, envelope: Envelope) -> str:
        return type(envelope.message).__name__

    def query_name(_: Database, query: Callable[..., object], *__: object) -> str:
        return _name(query)

    def work_name(work: Callable[..., object], *_: object) -> str:
        return _name(work)

    replaced = (
        (trio, "run", partial(trio.run, instruments=[LoopCounter()])),
        (trio.to_thread, "run_sync", _counted("thread hops", trio.to_thread.run_sync, work_name)),
        (Mailbox, "put", _counted("messages", Mailbox.put, message_name)),
        (Database, "read", _counted("reads", Database.read, query_name)),
        (Database, "work", _counted("claims", Database.work, query_name)),
    )
    for owner, name, function in replaced:
        setattr(owner, name, function)


if __name__ == "__main__":
    install()
    main()
