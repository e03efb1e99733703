"""What computes: the profile of one process, the slowest turns of all, and their page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.clients import ok, refused

from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import ListSlowTurns, ProfileLoop, SlowTurnList
from holdfast.telemetry.profile import profile_of
from holdfast.telemetry.slow_turns import SlowTurn

from .page_reader import PageReader, answer_controls
from .test_control_calls import PROCESS, call, controls_of

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

STACKS = {(): 60, ("holdfast.ledger.money.format", "json.dumps<script>"): 30, ("holdfast.ledger.money.format",): 10}


def turn(actor: str, duration_s: float) -> SlowTurn:
    return SlowTurn(actor, "Settle", duration_s, "2026-11-20T12:00:00.000Z", ["task_1"], None)


async def test_a_process_is_watched_by_its_own_control_actor(stage: Stage) -> None:
    controls = controls_of(stage)
    controls.answer = lambda _: profile_of(STACKS, 1.0)
    found = ok(await call(stage, "GET", "/ops/api/processes/proc_2/profile?for_s=1"))
    assert controls.asked == [("proc_2", ProfileLoop(1.0))]
    assert (found["samples"], found["idle"], found["nodes"][0]["samples"]) == (100, 60, 40)
    refused(await call(stage, "GET", "/ops/api/processes/proc_2/profile?for_s=60"), 400, "invalid_parameter")
    controls.answer = lambda _: Refusal(code="member_not_found", message="No such member.")
    refused(await call(stage, "GET", "/ops/api/processes/proc_9/profile"), 404, "member_not_found")


async def test_the_slowest_turns_of_all_processes_are_listed(stage: Stage) -> None:
    controls = controls_of(stage)

    def answer(command: Any) -> SlowTurnList:
        assert command == ListSlowTurns(3)
        slower = controls.asked[-1][0] == "proc_2"
        return SlowTurnList([turn("tasks", 3.0 if slower else 2.0), turn("accounts", 1.0)])

    controls.answer = answer
    found = ok(await call(stage, "GET", "/ops/api/slowest-turns?limit=3"))
    assert [(each["member_id"], each["duration_s"]) for each in found["data"]] == [
        ("proc_2", 3.0), ("proc_1", 2.0), ("proc_1", 1.0),
    ]  # fmt: skip
    assert found["unreachable"] == ["proc_3"]


async def test_the_page_has_the_flame_graph_of_the_chosen_process(api: Api, browser: PageReader) -> None:
    turns = SlowTurnList([turn("tasks", 2.0)])
    controls = answer_controls(
        api, DescribeProcess=PROCESS, ListSlowTurns=turns, ProfileLoop=profile_of(STACKS, 1.0)
    )
    first = await browser.read("/ops/profile")
    assert "Settle" in first.text
    assert not [each for _, each in controls.asked if isinstance(each, ProfileLoop)]
    page = (await browser.get("/ops/profile?member_id=proc_1&for_s=1")).text
    assert '<svg x="0.000%" y="18" width="75.000%" height="18">' in page
    assert "json.dumps&lt;script&gt;: 75.0 %, 30 of 40" in page
    shown = await browser.read("/ops/profile?member_id=proc_1&for_s=1")
    for words in ("Computing", "40.0 %", "holdfast.ledger.money.format"):
        assert words in shown.text, words
