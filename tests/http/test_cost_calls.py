"""Who and what costs most: of all processes, credit from rows, and what is far ahead."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy
from tests.clients import ok

from holdfast.persistence.records import tables
from holdfast.supervision.control.messages import MemberView, ReadCosts, ReadSamples, SampleList
from holdfast.telemetry.costs import CostOf, Costs, NameCount, TopCount

from .fake_rows import AwayRows
from .identities import ACCOUNT, KEY, OTHER_ACCOUNT
from .page_reader import PageReader
from .test_control_calls import PROCESS

if TYPE_CHECKING:
    from tests.http.api import Api

OTHER = MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None)


def top(total: float, **counts: float) -> TopCount:
    return TopCount(total, [NameCount(name, count, 0.0) for name, count in counts.items()])


def use_counts(api: Api, one: Costs, other: Costs) -> None:
    controls: Any = api.deps.operating.controls
    controls.others = (OTHER,)

    def answer(command: Any) -> Any:
        if isinstance(command, ReadSamples):
            return SampleList("proc_1", [])
        if not isinstance(command, ReadCosts):
            return PROCESS
        return other if controls.asked[-1][0] == "proc_2" else one

    controls.answer = answer


async def tables_of(api: Api, **query: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    found = ok(await api.call("GET", "/ops/api/costs", headers=headers, params=query))
    return {(each["what"], each["by"], each["time"]): each for each in found["data"]}


async def test_counts_of_processes_are_added_and_compared(api: Api) -> None:
    one = Costs({"account": top(130, a=90, b=40), "refused_code": top(9, x=9)}, {"account": top(1_000, b=900)})
    other = Costs({"account": top(70, b=60, c=10)}, {"account": top(100, a=100)})
    use_counts(api, one, other)
    found = await tables_of(api)
    minutes = found["requests", "account", "minutes"]
    assert [(each["name"], each["amount"], each["share"]) for each in minutes["lines"]] == [
        ("b", 100, 0.5),
        ("a", 90, 0.45),
        ("c", 10, 0.05),
    ]
    assert (minutes["total"], minutes["is_far_ahead"]) == (200, False)
    day = found["requests", "account", "day"]
    assert (day["lines"][0]["name"], day["is_far_ahead"]) == ("b", True)
    assert found["refusals", "code", "minutes"]["is_far_ahead"] is False


async def test_one_alone_is_far_ahead_of_refusals_only(api: Api) -> None:
    minutes: dict[CostOf, TopCount] = {"route": top(300, a=300), "refused_caller": top(300, a=300)}
    use_counts(api, Costs(minutes, {"refused_code": top(99, invalid_api_key=99)}), Costs({}, {}))
    found = await tables_of(api)
    assert {key: each["is_far_ahead"] for key, each in found.items()} == {
        ("requests", "route", "minutes"): False,
        ("refusals", "caller", "minutes"): True,
        ("refusals", "code", "day"): False,
    }


async def test_what_may_be_too_large_is_not_called_far_ahead(api: Api) -> None:
    unsure = TopCount(1_000, [NameCount("late", 800, 700), NameCount("b", 90, 0)])
    use_counts(api, Costs({"route": unsure}, {}), Costs({}, {}))
    assert (await tables_of(api))["requests", "route", "minutes"]["is_far_ahead"] is False


async def test_credit_is_summed_from_rows_by_account_key_model_and_provider(api: Api) -> None:
    use_counts(api, Costs({}, {}), Costs({}, {}))
    holds, totals = tables.holds, tables.usage_totals
    for number, (account_id, micro) in enumerate(((ACCOUNT, 3_000_000), (ACCOUNT, 1_000_000), (OTHER_ACCOUNT, 9))):
        task_id = f"task_{number}"
        await api.add_task(api.task(task_id, account_id=account_id))
        values = {"hold_id": f"hold_{number}", "amount_micro": micro, "reference": task_id, "opened_number": number}
        settled = None if number else 7
        await api.write(holds.insert().values(account_id=account_id, settled_number=settled, **values))
    at = api.now - timedelta(minutes=20)
    for span_s, ago, micro in ((900, timedelta(0), 5), (3600, timedelta(0), 5), (3600, timedelta(hours=3), 70)):
        for account_id, share in ((ACCOUNT, 1), (OTHER_ACCOUNT, 2)):
            for by in ("", "model"):
                await api.write(
                    totals.insert().values(
                        account_id=account_id,
                        end_user_by=by,
                        span_s=span_s,
                        start_at=at - ago,
                        model="studio/image-1",
                        api_key_id=KEY if share == 1 else "",
                        status="succeeded",
                        end_user="",
                        count=1,
                        cost_micro=micro * share * 1_000_000,
                    )
                )
    found = await tables_of(api)

    def lines(*of: str) -> list[tuple[str, float]]:
        return [(each["name"], each["amount"]) for each in found[of[0], of[1], of[2]]["lines"]]

    assert lines("credits_held", "account", "now") == [(ACCOUNT, 1.0), (OTHER_ACCOUNT, 0.000009)]
    assert lines("credits_held", "model", "now") == [("studio/image-1", 1.000009)]
    assert lines("credits_spent", "account", "minutes") == [(OTHER_ACCOUNT, 10.0), (ACCOUNT, 5.0)]
    assert lines("credits_spent", "account", "day") == [(OTHER_ACCOUNT, 150.0), (ACCOUNT, 75.0)]
    assert lines("credits_spent", "provider", "day") == [("studio", 225.0)]
    assert lines("credits_spent", "key", "day") == [(KEY, 75.0)]
    # It is not summed again at once, and with `known` never.
    await api.write(sqlalchemy.delete(totals))
    assert await tables_of(api) == found
    assert await tables_of(api, credit="known") == found


async def test_counts_are_shown_while_the_database_is_away(api: Api) -> None:
    use_counts(api, Costs({"account": top(130, a=90, b=40)}, {}), Costs({}, {}))
    api.change(database=AwayRows())
    assert [*await tables_of(api)] == [("requests", "account", "minutes")]


async def test_the_page_shows_tables_and_the_overview_what_is_far_ahead(api: Api, browser: PageReader) -> None:
    minutes: dict[CostOf, TopCount] = {
        "account": top(1_000, **{ACCOUNT: 900, OTHER_ACCOUNT: 100}),
        "turns": top(2.0, tasks=1.5, sign=0.5),
    }
    use_counts(api, Costs(minutes, {"provider": top(300, gpu=300)}), Costs({}, {}))
    page = await browser.read("/ops/costs")
    for said in ("Requests by account", ACCOUNT, "90%", "CPU in turns by actor", "1.5 s"):
        assert said in page.text
    assert "Creates by provider" in (await browser.read("/ops/costs?time=day")).text
    overview = (await browser.read("/ops")).text
    assert "Far ahead of the rest" in overview
    assert "CPU in turns by actor" in overview


async def test_turns_too_short_for_the_clock_are_no_line(api: Api) -> None:
    counts = Costs({"turns": top(0.0, worker=0.0)}, {"turns": top(2.0, worker=2.0, mail=0.0)})
    use_counts(api, counts, Costs({}, {}))
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    [table] = ok(await api.call("GET", "/ops/api/costs", headers=headers))["data"]
    assert (table["time"], [each["name"] for each in table["lines"]]) == ("day", ["worker"])
