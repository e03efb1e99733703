"""The SQL that frees slots at a provider states the same rule as the task itself."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import get_args, get_type_hints

import msgspec
import pytest
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.task import TERMINAL, Dispatch, HostingState, Task, TaskStatus
from holdfast.persistence.claims.tasks import still_occupying
from holdfast.persistence.records import tables
from holdfast.persistence.records.reading import OCCUPIES
from holdfast.persistence.server.database import Database

from .values import make_task

HOSTING = get_args(get_type_hints(HostingState)["status"])
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def cases() -> list[Task]:
    """A dispatched task in every state that is not its last."""
    task = make_task("acc_1", "task_1", AT)
    states = itertools.product(
        (status for status in get_args(TaskStatus) if status not in TERMINAL),
        (dispatch for dispatch in get_args(Dispatch) if dispatch != "none"),
        (msgspec.structs.replace(HostingState(), status=name) for name in HOSTING),
    )
    return [
        msgspec.structs.replace(
            task,
            request_id=f"task_{number}",
            status=status,
            state=msgspec.structs.replace(task.state, dispatch=dispatch, hosting=hosting),
        )
        for number, (status, dispatch, hosting) in enumerate(states)
    ]


async def test_sql_and_task_agree_on_occupied_slots(database: Database, cases: list[Task]) -> None:
    query = text(f"select {OCCUPIES} from (values (:status, cast(:state as jsonb))) as t (status, state)")

    def occupied(rows: Connection) -> list[bool]:
        states = [(case.status, msgspec.json.encode(case.state).decode()) for case in cases]
        return [rows.execute(query, {"status": status, "state": state}).scalar_one() for status, state in states]

    found = await database.read(occupied)
    assert found == [case.occupies_slot for case in cases]
    assert set(found) == {True, False}


async def test_the_check_for_lost_messages_states_the_same_rule(database: Database, cases: list[Task]) -> None:
    def insert(rows: Connection) -> int:
        return rows.execute(
            tables.tasks.insert(),
            [
                {
                    "account_id": case.account_id,
                    "request_id": case.request_id,
                    "version": 1,
                    "status": case.status,
                    "model": "studio/image-1",
                    "provider": "studio",
                    "created_at": AT,
                    "updated_at": AT,
                    "wake_at": AT,
                    "dispatched": True,
                    "request": {},
                    "input": {},
                    "state": msgspec.to_builtins(case.state),
                    "overall_deadline_at": case.overall_deadline_at,
                    "dispatch_s": case.request.terms.deadlines.dispatch_s,
                    "run_s": case.request.terms.deadlines.run_s,
                }
                for case in cases
            ],
        ).rowcount

    await database.work(insert)
    found = await database.read(still_occupying, [case.request_id for case in cases])
    assert found == {case.request_id for case in cases if case.occupies_slot}
