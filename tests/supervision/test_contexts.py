"""What actors and children log is not under the ids of the request that happened to start them."""

from __future__ import annotations

from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from structlog.contextvars import bind_contextvars, get_contextvars
from trio.testing import MockClock

from holdfast.supervision.spec import ChildSpec
from holdfast.telemetry.traces import request_id, traceparent

from .keyed_actors import Harness, Say, WritingActor

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedTree

TRACE = f"00-{'1' * 32}-{'2' * 16}-00"


def seen() -> tuple[str | None, dict[str, Any]]:
    return request_id.get(), get_contextvars()


def bind() -> None:
    request_id.set("req_1")
    traceparent.set(TRACE)
    bind_contextvars(task_id="task_1")


async def test_an_actor_has_the_trace_of_its_message_and_no_other_ids(
    autojump_clock: MockClock,
) -> None:
    found: list[Any] = []

    class Watched(WritingActor):
        async def on_receive(self, message: Any) -> Any:
            found.append((*seen(), traceparent.get()))
            return await super().on_receive(message)

    harness = Harness(actor=Watched)
    async with harness.running():

        async def send() -> None:
            bind()
            await harness.ask("a", Say())

        async with trio.open_nursery() as nursery:
            Context().run(partial(nursery.start_soon, send))
        await harness.ask("a", Say())
    assert found == [(None, {}, TRACE), (None, {}, None)]


async def test_a_child_that_a_request_restarts_does_not_run_within_that_request(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    found: list[Any] = []

    class Watched:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            found.append((*seen(), traceparent.get()))
            task_status.started()
            await trio.sleep_forever()

        async def stop(self) -> None:
            """Leave the end to the supervisor, which kills it."""

    supervisor = scripted.supervisor(ChildSpec("a", Watched))
    async with scripted.running(supervisor):
        bind()
        await supervisor.restart_child("a")
    assert found == [(None, {}, None)] * 2
