"""Calls that wait for the database, run on trio's own thread: while one waits, the loop runs other tasks.

With a thread for each call, the thread is woken, and then the loop, and both contend for the interpreter: for a
short query that takes longer than the query itself. So a call runs in a greenlet. It stays ordinary blocking code,
of ours, of psycopg and of SQLAlchemy; only
:meth:`BoundedConnection.wait <holdfast.persistence.server.connections.BoundedConnection.wait>`, through which every
exchange with the server goes, leaves the greenlet while it waits.

Such a call must not wait for anything else, and must not hold a lock while it waits that another one may want: both
run on the same thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

import trio
from greenlet import getcurrent, greenlet
from psycopg.waiting import Ready, Wait

P = ParamSpec("P")
T = TypeVar("T")


class LoopCall(greenlet):
    """A call that :func:`run_on_loop` runs. Its code finds itself as ``greenlet.getcurrent()``."""


async def run_on_loop(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``call`` on this thread, and await for it what it passes to :func:`await_in_call`.

    It begins at once. What is raised while it awaits, a cancellation too, is raised in it where it awaits.
    """
    running = LoopCall(call)
    running.gr_context = getcurrent().gr_context
    asked: Any = running.switch(*args, **kwargs)
    while not running.dead:
        try:
            answer = await asked()
        except BaseException as exc:
            asked = running.throw(exc)
        else:
            asked = running.switch(answer)
    return cast("T", asked)


async def run_to_the_end(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``call`` as :func:`run_on_loop` does, also if the caller is cancelled meanwhile."""
    with trio.CancelScope(shield=True):
        result = await run_on_loop(call, *args, **kwargs)
    return result  # noqa: RET504 - for mypy, the scope may end without a result


def await_in_call(wait: Callable[[], Awaitable[T]]) -> T:
    """Have :func:`run_on_loop`, which runs this code, await ``wait()``; return its result, or raise as it does."""
    running = getcurrent()
    assert isinstance(running, LoopCall)
    assert running.parent is not None
    return cast("T", running.parent.switch(wait))


async def wait_ready(socket: int, wanted: Wait, deadline: float) -> Ready:
    """Wait until a socket is ready, and return for what. Raises ``TimeoutError`` at ``deadline`` (trio's clock)."""
    waits = {Ready.R: trio.lowlevel.wait_readable, Ready.W: trio.lowlevel.wait_writable}
    found = Ready.NONE

    async def wait(state: Ready) -> None:
        nonlocal found
        await waits[state](socket)
        found = Ready(found | state)
        nursery.cancel_scope.cancel()

    with trio.move_on_at(deadline):
        if wanted == Wait.R:
            await trio.lowlevel.wait_readable(socket)
            return Ready.R
        async with trio.open_nursery() as nursery:
            for state in waits:
                if wanted & state:
                    nursery.start_soon(wait, state)
    if not found:
        raise TimeoutError
    return found
