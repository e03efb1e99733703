"""A process that closes accounts or makes archives as if no other did, and freezes itself on the way.

``python -m tests.leaving_worker KIND URL FOLDER AHEAD_S STEP NUMBER``: its clock is ``AHEAD_S`` seconds fast, and
it sends SIGSTOP to itself before the ``NUMBER``-th step of this name. Once it goes on it does the rest, says
``done``, and ends. With ``NUMBER`` 0 it never stops.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import trio
from tests.actors.actor_system import make_system

from holdfast.actors.workers.archives import ArchiveWorker
from holdfast.actors.workers.closings import ClosingWorker
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.storage.local import LocalStore


class Steps:
    """Freezes the process before the ``number``-th step called ``name``: a query or a method."""

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._left = number

    def watch(self, owner: Any, *methods: str) -> None:
        """Count the calls of these methods: by the query that is their first argument, or by their names."""
        for name in methods:
            setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, method_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            query = getattr(args[0], "func", args[0])
            if getattr(query, "__name__", method_name) == self._name:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGSTOP)
            return method(*args, **kwargs)

        return counted


async def done(once: Callable[[], Awaitable[object]]) -> None:
    """Do a pass, again as long as its connection has waited too long, as one does that was frozen."""
    while True:
        try:
            await once()
            return
        except DatabaseAway:
            await trio.sleep(0.1)


async def main(kind: str, url: str, folder: Path, ahead_s: float, steps: Steps) -> None:
    database, store = Database(url), LocalStore(folder)

    def now() -> Any:
        return utc_now() + timedelta(seconds=ahead_s)

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: database.run(task_status=task_status))
        writer = BatchWriter(database.keep_writer(), now=now)
        system = make_system(database, writer=writer, now=now)
        await nursery.start(lambda *, task_status: system.journal.run(task_status=task_status))
        await nursery.start(system.accounts.run)
        steps.watch(database, "read", "work")
        steps.watch(writer, "write")
        steps.watch(store, "put")
        if kind == "closings":
            closer = ClosingWorker(
                database=database, journal=system.journal, accounts=system.accounts, card=None, now=now,
                member_id=f"proc_{os.getpid()}",
            )  # fmt: skip
            await done(closer.sweep)
        else:
            claims = ContentClaims(database.keep_writer())
            steps.watch(claims, "claim")
            incoming = folder / "incoming"
            maker = ArchiveWorker(database=database, store=store, claims=claims, directory=incoming, now=now)
            await done(maker.make_next)
        sys.stdout.write("done\n")
        sys.stdout.flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    given_kind, given_url, given_folder, given_ahead, given_step, given_number = sys.argv[1:]
    stops = Steps(given_step, int(given_number))
    trio.run(main, given_kind, given_url, Path(given_folder), float(given_ahead), stops)
