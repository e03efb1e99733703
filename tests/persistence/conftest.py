"""Connections and writers for tests of persistence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import trio

from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.server.database import Database

from .journal_bench import JournalBench


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to read the rows with."""
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def writer(database_url: str) -> Iterator[BatchWriter]:
    with closing(BatchWriter(Database(database_url).keep_writer(), now=utc_now)) as writer:
        yield writer


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncIterator[JournalBench]:
    bench = JournalBench()
    with trio.fail_after(60):
        await nursery.start(bench.run)
        yield bench
        await bench.journal.stop()
