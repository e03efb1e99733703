"""The SQL that frees slots at a provider states the same rule as the task itself."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import get_args, get_type_hints

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.task import TERMINAL, Dispatch, HostingState, TaskStatus
from holdfast.persistence.claims.tasks import OCCUPIES
from holdfast.persistence.server.database import Database

from .values import make_task

HOSTING = get_args(get_type_hints(HostingState)["status"])
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


async def test_sql_and_task_agree_on_occupied_slots(database: Database) -> None:
    task = make_task("acc_1", "task_1", AT)
    cases = [
        msgspec.structs.replace(
            task, status=status, state=msgspec.structs.replace(task.state, dispatch=dispatch, hosting=hosting)
        )
        for status, dispatch, hosting in itertools.product(
            (status for status in get_args(TaskStatus) if status not in TERMINAL),
            (dispatch for dispatch in get_args(Dispatch) if dispatch != "none"),
            (msgspec.structs.replace(HostingState(), status=name) for name in HOSTING),
        )
    ]
    query = text(f"select {OCCUPIES} from (values (:status, cast(:state as jsonb))) as t (status, state)")

    def occupied(rows: Connection) -> list[bool]:
        states = [(case.status, msgspec.json.encode(case.state).decode()) for case in cases]
        return [rows.execute(query, {"status": status, "state": state}).scalar_one() for status, state in states]

    found = await database.read(occupied)
    assert found == [case.occupies_slot for case in cases]
    assert set(found) == {True, False}
