"""What a read costs the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, event

from holdfast.persistence.server.repeated_queries import RepeatedQuery


class Reads:
    """Runs reads and returns the cost of each: the buffers that its queries touched."""

    def __init__(self, rows: Connection) -> None:
        self.rows = rows

    def cost(self, read: Callable[[Connection], Any], *, of: Collection[str] = ()) -> tuple[int, str]:
        """Return the buffers that the queries of ``read`` touch, and their plans.

        With ``of``, only the buffers of these tables: what other tests left in the others is not counted.
        """
        asked: list[tuple[str, Any]] = []

        def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
            asked.append((statement, parameters))

        run = RepeatedQuery.rows

        def run_noted(query: RepeatedQuery, rows: Connection, parameters: Mapping[str, Any]) -> list[Any]:
            asked.append((query.sql, parameters))
            return run(query, rows, parameters)

        event.listen(self.rows, "before_cursor_execute", note)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RepeatedQuery, "rows", run_noted)
                read(self.rows)
        finally:
            event.remove(self.rows, "before_cursor_execute", note)
        found = [
            self.rows.exec_driver_sql(
                f"explain (analyze, buffers, format json) {statement}", parameters
            ).scalar_one()
            for statement, parameters in asked
        ]
        plans = [plan["Plan"] for [plan] in found]
        return sum(_buffers(plan, of) for plan in plans), str(plans)


def _buffers(plan: dict[str, Any], tables: Collection[str]) -> int:
    if not tables or plan.get("Relation Name") in tables:
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return sum(_buffers(each, tables) for each in plan.get("Plans", ()))
