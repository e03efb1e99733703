"""The loop of workers that receive no messages and repeat their work at intervals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog
import trio

from holdfast.persistence.server.database_faults import DatabaseAway

log = structlog.get_logger(__name__)


def always() -> bool:
    """Return True: the work is this process's own."""
    return True


async def repeat(
    work: Callable[[], Awaitable[object]], *, every_s: float, name: str, is_ours: Callable[[], bool] = always
) -> NoReturn:
    """Call ``work`` forever, with a pause of ``every_s`` after each call; not while it is another process's.

    While the database is away the work is postponed; a later call finds it in the rows.
    """
    while True:
        try:
            if is_ours():
                await work()
        except DatabaseAway as away:
            log.debug(f"{name} postponed", reason=str(away))
        await trio.sleep(every_s)
