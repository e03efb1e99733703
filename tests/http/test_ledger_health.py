"""``GET /ops/api/ledger``: what the checker has stored, as operators see it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from holdfast.persistence.audit.progress import store
from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.records.rows import AuditProgress

if TYPE_CHECKING:
    from tests.http.api import Api


async def ledger_health(api: Api) -> dict[str, Any]:
    response = await api.call("GET", "/ops/api/ledger", credential=api.deps.settings.operator_token)
    assert response.status_code == 200
    body = response.json()
    assert isinstance(body, dict)
    return body


async def test_before_the_first_check_nothing_is_verified(api: Api) -> None:
    body = await ledger_health(api)
    assert (body["verified_up_to"], body["age_s"], body["current_pass"]) == (None, None, None)
    assert (body["passes"], body["differences"], body["newest_differences"]) == (0, 0, [])


async def test_progress_and_differences_are_shown(api: Api) -> None:
    minute = timedelta(minutes=1)
    progress = AuditProgress(
        begun_at=api.now - minute,
        written_at=api.now,
        passes=3,
        verified_up_to=api.now - 2 * minute,
        after="acct_2",
        accounts_total=10,
        accounts_done=4,
        operations_done=600,
        newest_operation_id="op_7",
        newest_operation_at=api.now - minute,
        operations_per_s=10.0,
    )
    broken = BrokenRule("acct_1", "all sums agree")

    def write(rows: Connection) -> None:
        store(rows, progress, {broken: "operation 7's balance is 3.00"}, ())

    await api.database.work(write)
    body = await ledger_health(api)
    assert body["age_s"] == 120.0
    assert body["newest_operation_id"] == "op_7"
    assert body["current_pass"]["accounts_behind"] == 6
    assert body["current_pass"]["operations_per_s"] == 10.0
    assert body["differences"] == 1
    [found] = body["newest_differences"]
    assert (found["account_id"], found["rule"], found["what"]) == (
        "acct_1",
        broken.rule,
        "operation 7's balance is 3.00",
    )
