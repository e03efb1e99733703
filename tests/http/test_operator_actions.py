"""Operators' actions as code does them, without a request: what it does to many targets is done one by one so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import ok

from holdfast.actors.account.messages import AdjustCredit, CreditChanged, SetAccess
from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.http.endpoints.operators.accounts import AccessBody, disable_account
from holdfast.http.endpoints.operators.credit import Adjustment, adjust_credit
from holdfast.http.endpoints.operators.processes import ChildRequest, stop_child
from holdfast.http.kit.actions import ActionRun
from holdfast.http.kit.operators import Operator
from holdfast.http.schemas.common import CreditChangedBody
from holdfast.http.schemas.operators import ActionWithReason
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.rows import AccountAccessRow
from holdfast.persistence.server.database_faults import DatabaseAway

if TYPE_CHECKING:
    from tests.http.api import Api

GRACE = Operator("grace@example.com", "act", "session")


def run_of(api: Api, **given: Any) -> ActionRun:
    return ActionRun(api.deps, GRACE, "job_1", deadline_s=5.0, **given)


async def recorded(api: Api) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    found: list[dict[str, Any]] = ok(await api.call("GET", "/ops/api/actions", headers=headers))["data"]
    return found


async def test_code_does_an_action_as_a_request_does(api: Api) -> None:
    api.accounts.answer = AccountAccessRow(api.account_id, api.now)
    done = await disable_account.perform(run_of(api), ActionWithReason(" ticket 7 "), api.account_id)
    assert done == AccessBody(api.account_id, "2026-11-20T12:00:00.000Z")
    assert api.accounts.asked == [(api.account_id, SetAccess(is_disabled=True))]
    [action] = await recorded(api)
    assert (action["action"], action["operator"], action["origin"]) == ("disable_account", GRACE.name, "job_1")
    assert (action["target"], action["account_id"]) == (api.account_id, api.account_id)
    assert (action["reason"], action["parameters"], action["result"]) == ("ticket 7", None, "done")
    assert [report.operator for report in api.reports] == [GRACE.name]


async def test_what_code_gives_is_recorded_with_what_was_done(api: Api) -> None:
    key = IdempotencyKey("job_1", "job_1/0", b"")
    reply = CreditChanged("op_1", -2_500_000, AccountTotals(api.account_id, 7_500_000, 0))
    for run, answer in ((run_of(api, idempotency=key), reply), (run_of(api, idempotency=key), Replayed(reply))):
        api.accounts.answer = answer
        done = await adjust_credit.perform(run, Adjustment("-2.50", "ticket 7", "a fee"), api.account_id)
        assert isinstance(done, CreditChangedBody)
        assert run.is_replay == isinstance(answer, Replayed)
    [_, command] = [command for _, command in api.accounts.asked]
    assert isinstance(command, AdjustCredit)
    assert command.idempotency == key
    replayed, first = await recorded(api)
    assert first["parameters"] == {"amount": "-2.50", "note": "a fee"}
    assert (first["effect"], replayed["effect"]) == ({"amount": "-2.50", "operation_id": "op_1"}, None)


async def test_a_refused_a_failed_and_an_unknown_outcome_are_recorded(api: Api) -> None:
    adjustment = Adjustment("1.00", "ticket 7")
    without_key = await adjust_credit.perform(run_of(api), adjustment, api.account_id)
    assert isinstance(without_key, Refusal)
    assert without_key.param == "Idempotency-Key"
    unknown_account = await disable_account.perform(run_of(api), ActionWithReason("ticket 7"), "acct_9")
    assert isinstance(unknown_account, Refusal)
    assert api.accounts.asked == []
    for fault in (DatabaseAway("gone", retry_after_s=1.0), OutcomeUnknown("gone")):
        api.accounts.answer = fault
        with pytest.raises(type(fault)):
            await disable_account.perform(run_of(api), ActionWithReason("ticket 7"), api.account_id)
    assert [(each["result"], each["code"]) for each in reversed(await recorded(api))] == [
        ("refused", "missing_parameter"),
        ("refused", "account_not_found"),
        ("failed", "temporarily_unavailable"),
        ("unknown", None),
    ]


async def test_the_target_of_a_child_has_its_path(api: Api) -> None:
    await stop_child.perform(run_of(api), ChildRequest("holdfast/workers/outbox", "ticket 7"), "proc_1")
    [action] = await recorded(api)
    assert (action["target"], action["parameters"]) == ("proc_1/holdfast/workers/outbox", None)
