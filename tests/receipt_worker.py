"""A process that issues receipts as if no other did: ``python -m tests.receipt_worker URL``."""

from __future__ import annotations

import sys

import trio
from tests.receipt_books import TERMS

from holdfast.actors.workers import receipts
from holdfast.ledger.values import utc_now
from holdfast.persistence.server.database import Database


async def main(url: str) -> None:
    receipts.PASS_S = 0.01  # type: ignore[misc]  # so that it is killed and frozen in the middle of its work
    database = Database(url)
    worker = receipts.ReceiptsWorker(database=database, terms=TERMS, now=utc_now)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: database.run(task_status=task_status))
        await nursery.start(lambda *, task_status: worker.run(task_status=task_status))
        sys.stdout.write("started\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
