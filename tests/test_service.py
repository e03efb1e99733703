"""How the process ends when the supervision tree gives up."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import structlog
import trio

from holdfast.service import GAVE_UP, _run
from holdfast.supervision.intensity import Backoff
from holdfast.supervision.reports import Reporter
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild
from holdfast.wiring.http_server import ListeningSockets


async def test_a_tree_that_gives_up_exits_with_one_log_line() -> None:
    starts = 0
    ends: list[str] = []

    async def broken(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal starts
        starts += 1
        task_status.started()
        await trio.sleep(0.5)
        raise ValueError("it broke")

    async def sound(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            ends.append("sound")

    tree = Supervisor(
        "top",
        [
            ChildSpec("sound", lambda: RunningChild(sound)),
            ChildSpec("broken", lambda: RunningChild(broken), backoff=Backoff(0.0, 0.0, jitter=0.0)),
        ],
        strategy="one_for_one",
        intensity=Intensity(1, 60.0),
        reporter=Reporter(),
    )

    async def prepare() -> None:
        await trio.lowlevel.checkpoint()

    assembly = SimpleNamespace(
        tree=tree,
        store=SimpleNamespace(prepare=prepare),
        card=None,
        database=SimpleNamespace(url="postgresql://"),
        settings=SimpleNamespace(env="development", is_production=False),
    )
    with socket.create_server(("127.0.0.1", 0)) as listening, structlog.testing.capture_logs() as logs:
        with trio.fail_after(60):
            code = await _run(cast(Any, assembly), ListeningSockets(public=listening))
    assert code == GAVE_UP
    assert (starts, ends) == (2, ["sound"])
    logged = [line for line in logs if line["event"] == "the tree gave up"]
    assert [(line["log_level"], "broken" in line["reason"]) for line in logged] == [("critical", True)]
    assert "holdfast serves" in [line["event"] for line in logs]
