"""Databases: one that must not be read, one that is away, one that counts its reads, and one without reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy

from holdfast.persistence.records.operator_tables import Override
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import ReportsAfter

T = TypeVar("T")


class NoRows:
    """A database that fails on every read, for paths that must not read."""

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        raise AssertionError("this call must not read the database")

    scan = examine = read

    async def overrides(self) -> list[Override]:
        return []


class AwayRows:
    """A database that is away."""

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        raise DatabaseAway("the server is gone", retry_after_s=2.0)

    examine = read
    scan = read


@dataclass
class CountingRows:
    """Real rows, and how often they were read."""

    database: Database
    reads: int = 0

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        self.reads += 1
        return await self.database.read(query)

    async def scan(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        return await self.database.scan(query)

    async def examine(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        return await self.database.examine(query)


@dataclass
class FakeReportRows:
    """A table of reports without any."""

    async def after(self, position: int, limit: int) -> ReportsAfter:
        return ReportsAfter([], position)

    async def newest_position(self) -> int:
        return 0
