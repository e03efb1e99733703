"""The loop of workers that receive no messages and repeat their work at intervals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog
import trio

from holdfast.actors.workers.passes import one_pass
from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)


def always() -> bool:
    """Return True: the work is this process's own."""
    return True


async def repeat(
    work: Callable[[], Awaitable[object]],
    *,
    every_s: float,
    name: str,
    is_ours: Callable[[], bool] = always,
    bound_s: float = 0.0,
) -> NoReturn:
    """Call ``work`` forever, with a pause of ``every_s`` unless it returns True: then more is due.

    Each call is a pass, which may take ``bound_s``. There is none while ``is_ours`` returns False, because another
    process does the work. While the database is away the work is postponed; a later call finds it in the rows.
    """
    while True:
        try:
            if is_ours():
                with one_pass(name, bound_s=bound_s):
                    is_more_due = await work()
                if is_more_due is True:
                    continue
        except DatabaseAway as away:
            log.debug(f"{name} postponed", reason=str(away))
        await trio.sleep(every_s)
