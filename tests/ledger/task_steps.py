"""Steps of tasks, for tests of hosting and reviews."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import Context, HostingFailure, Step

MakeTask = Callable[..., Task]


MakeUpdate = Callable[..., ProviderUpdate]


def at(task: Task, seconds: float) -> datetime:
    return task.created_at + timedelta(seconds=seconds)


def task_after(step: Step | Refusal) -> Task:
    assert isinstance(step, Step)
    assert step.task is not None
    return step.task


def stored(position: int, **measures: Any) -> OutputItem:
    return OutputItem(
        index=position,
        asset_id=f"asset_{position}",
        sha256="ab" * 32,
        bytes=1000,
        content_type="image/png",
        expires_at=datetime.fromisoformat("2026-11-27T12:00:00Z"),
        **measures,
    )


def lost(position: int) -> HostingFailure:
    return HostingFailure(position=position, message="404 from https://studio.test/x", final=True)


def host(task: Task, *results: OutputItem | HostingFailure, seconds: float = 8) -> Step:
    return on_hosted(task, 1, task.state.hosting.round, results, Context(at(task, seconds), "op_cap"))
