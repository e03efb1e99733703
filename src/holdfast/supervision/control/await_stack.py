"""Where a task waits: the calls between its coroutine and what it awaits."""

from __future__ import annotations

import trio

FRAMES_MAX = 40


def await_stack(task: trio.lowlevel.Task) -> list[str]:
    """Return the calls as ``module.function:line``, the outermost first; of many, the innermost."""
    frames = [
        f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{line}"
        for frame, line in task.iter_await_frames()
    ]
    return frames[-FRAMES_MAX:]
