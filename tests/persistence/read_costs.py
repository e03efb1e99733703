"""What a read costs the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event


class Reads:
    """Runs reads and returns the cost of each: the buffers that its queries touched."""

    def __init__(self, rows: Connection) -> None:
        self.rows = rows

    def cost(self, read: Callable[[Connection], Any]) -> tuple[int, str]:
        """Return the buffers that the queries of ``read`` touch, and their plans."""
        asked: list[tuple[str, Any]] = []

        def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
            asked.append((statement, parameters))

        event.listen(self.rows, "before_cursor_execute", note)
        try:
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
        return sum(each["Shared Hit Blocks"] + each["Shared Read Blocks"] for each in plans), str(plans)
