"""The endpoints of processes and actors: whom they ask, and what they return."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused
from tests.cluster.samples import samples as make_samples

from holdfast.actors.runtime.faults import Quarantined, Unavailable
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import (
    DeadLetterList,
    DescribeKey,
    DescribeProcess,
    Draining,
    DrainProcess,
    KeyDescription,
    KeyList,
    KeySummary,
    ListDeadLetters,
    ListKeys,
    MemberView,
    PauseGroup,
    ProcessDescription,
    ProviderView,
    QuarantineKey,
    ReadSamples,
    RestartChild,
    SampleList,
)
from holdfast.supervision.dead_letters import DeadLetter
from holdfast.supervision.status import ChildStatus, Work
from holdfast.telemetry.metrics.figures import RefusalFigures, RouteFigures
from holdfast.telemetry.metrics.samples import Sample

from .fake_rows import AwayRows

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.fake_parts import FakeControls
    from tests.http.stage import Stage

CHILD = ChildStatus(
    child_id="holdfast",
    state="running",
    restart="permanent",
    incarnation=1,
    restarts_in_window=0,
    since="2026-11-20T12:00:00.000Z",
    children=(),
)
PROCESS = ProcessDescription(
    member_id="proc_1",
    host="here",
    pid=1,
    worker=None,
    version="1",
    started_at="2026-11-20T12:00:00.000Z",
    state="ready",
    database_open=True,
    conditions=[],
    tree=CHILD,
    groups=[],
    dead_letters={"dead": 1},
    providers={
        "studio": ProviderView(
            state="up", calls=7, call_p99_s=0.25, errors={"timeout": 2}, callbacks_refused={"invalid_signature": 3}
        )
    },
    slowest_routes=[RouteFigures(route="quote", requests=12, p50_s=0.002, p99_s=0.75)],
    refusals=[RefusalFigures(status=402, code="insufficient_credit", requests=9)],
)
AWAY = MemberView(member_id="proc_3", is_this=False, state="ready", unreachable_for_s=7.5)
OTHER = MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None)


def summary(key: str, member_id: str = "proc_1") -> KeySummary:
    return KeySummary(
        group="accounts",
        key=key,
        member_id=member_id,
        state="active",
        incarnation=1,
        restarts=0,
        work=Work(mailbox_depth=0),
        messages_per_s=0.5,
        quarantined_for_s=None,
        retry_in_s=None,
    )


def detail(key: str, member_id: str) -> KeyDescription:
    fields = {name: getattr(summary(key, member_id), name) for name in KeySummary.__struct_fields__}
    return KeyDescription(**fields, budget=5, trace_id=None, await_stack=[], quarantine_reason=None, history=[])


def controls_of(stage: Stage) -> FakeControls:
    controls: Any = stage.deps.operating.controls
    controls.others = (OTHER, AWAY)
    return controls  # type: ignore[no-any-return]


async def call(stage: Stage, method: str, path: str, json: Any = None) -> Any:
    token = stage.deps.settings.operator_token
    given = {} if json is None else {"json": json}
    return await stage.call(method, path, credential=token, **given)


async def test_the_tree_names_members_that_do_not_answer(stage: Stage) -> None:
    controls = controls_of(stage)

    def answer(command: Any) -> Any:
        assert command == DescribeProcess()
        if controls.asked[-1][0] == "proc_2":
            raise Unavailable("the link closed")
        return PROCESS

    controls.answer = answer
    body = (await call(stage, "GET", "/ops/api/tree")).json()
    assert [(each["member_id"], each["unreachable_for_s"]) for each in body["members"]] == [
        ("proc_1", None), ("proc_2", None), ("proc_3", 7.5)
    ]  # fmt: skip
    assert [each["process"] is None for each in body["members"]] == [False, True, True]
    process = body["members"][0]["process"]
    assert process["tree"]["child_id"] == "holdfast"
    assert process["slowest_routes"] == [{"route": "quote", "requests": 12, "p50_s": 0.002, "p99_s": 0.75}]
    assert process["refusals"] == [{"status": 402, "code": "insufficient_credit", "requests": 9}]
    assert {member for member, _ in controls.asked} == {"proc_1", "proc_2"}


async def test_samples_are_listed_by_process(stage: Stage) -> None:
    controls = controls_of(stage)
    since = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def answer(command: Any) -> Any:
        assert command == ReadSamples(since)
        member = controls.asked[-1][0]
        return SampleList(member, make_samples(Sample))

    controls.answer = answer
    body = (await call(stage, "GET", "/ops/api/samples?from=2026-11-20T12:00:00Z")).json()
    assert [each["member_id"] for each in body["processes"]] == ["proc_1", "proc_2"]
    assert body["processes"][0]["samples"][0]["interval_s"] > 0
    assert body["unreachable"] == ["proc_3"]
    refused(await call(stage, "GET", "/ops/api/samples?from=noon"), 400, "invalid_parameter")


async def test_actors_of_all_members_are_one_list_in_pages(api: Api) -> None:
    controls = controls_of(api)

    def answer(command: Any) -> Any:
        assert isinstance(command, ListKeys)
        member = controls.asked[-1][0]
        keys = ["a", "c"] if member == "proc_1" else ["b", "d"]
        return KeyList([summary(key, member) for key in keys if key > command.after][: command.limit])

    controls.answer = answer
    first = (await call(api, "GET", "/ops/api/actors?group=accounts&limit=3")).json()
    assert [(each["key"], each["member_id"]) for each in first["data"]] == [
        ("a", "proc_1"), ("b", "proc_2"), ("c", "proc_1")
    ]  # fmt: skip
    assert (first["next_cursor"], first["unreachable"]) == ("c", ["proc_3"])
    rest = (await call(api, "GET", "/ops/api/actors?group=accounts&limit=3&cursor=c")).json()
    assert ([each["key"] for each in rest["data"]], rest["next_cursor"]) == (["d"], None)
    for query, code in (("", "missing_parameter"), ("?group=x", "invalid_parameter")):
        refused(await call(api, "GET", f"/ops/api/actors{query}"), 400, code)


async def test_the_actors_that_cost_most_come_first_with_their_addresses(api: Api) -> None:
    controls = controls_of(api)
    busy = msgspec.structs.replace(
        summary(api.account_id), work=Work(mailbox_depth=2, oldest_message_age_s=9.0), messages_per_s=1.0
    )
    full = msgspec.structs.replace(
        summary(api.other_account_id, "proc_2"),
        work=Work(mailbox_depth=7, oldest_message_age_s=3.0),
        messages_per_s=4.0,
    )
    rest = [summary(key) for key in ("acct_y", "acct_z")]

    def answer(command: Any) -> Any:
        assert (command.order, command.limit) == (order, 3)
        return KeyList([busy, *rest] if controls.asked[-1][0] == "proc_1" else [full])

    controls.answer = answer
    for order, first in (("queue", full), ("wait", busy), ("rate", full)):
        body = (await call(api, "GET", f"/ops/api/actors?group=accounts&limit=2&order={order}")).json()
        second = busy if first is full else full
        assert [(each["key"], each["email"]) for each in body["data"]] == [
            (each.key, f"{each.key}@example.com") for each in (first, second)
        ]
        assert (body["data"][0]["messages_per_s"], body["next_cursor"]) == (first.messages_per_s, None)
    api.change(database=AwayRows())
    body = (await call(api, "GET", "/ops/api/actors?group=accounts&limit=2&order=rate")).json()
    assert [(each["key"], each["email"]) for each in body["data"]] == [(full.key, None), (busy.key, None)]
    response = await call(api, "GET", "/ops/api/actors?group=accounts&order=rate&cursor=a")
    refused(response, 400, "invalid_parameter")


async def test_an_actor_away_from_its_owner_is_found_and_acted_on_there(stage: Stage) -> None:
    controls = controls_of(stage)

    def answer(command: Any) -> Any:
        member = controls.asked[-1][0]
        if isinstance(command, DescribeKey) and member != "proc_2":
            return Refusal(code="actor_not_found", message="Not here.")
        return detail(command.key, member)

    controls.answer = answer
    found = (await call(stage, "GET", "/ops/api/actors/accounts/acct_1")).json()
    assert (found["key"], found["member_id"]) == ("acct_1", "proc_2")
    path = "/ops/api/actors/accounts/acct_1/quarantine"
    done = await call(stage, "POST", path, {"reason": "damaged", "for_s": 60})
    assert done.status_code == 200
    assert controls.asked[-1] == ("proc_2", QuarantineKey("accounts", "acct_1", "damaged", 60))
    for body in ({}, {"reason": " "}, {"reason": "x", "for_s": 0}):
        assert (await call(stage, "POST", path, body)).status_code == 400


async def test_an_active_actor_is_shown_before_one_that_is_remembered(stage: Stage) -> None:
    controls = controls_of(stage)
    states = {"proc_1": "passivated", "proc_2": "active"}

    def answer(command: Any) -> Any:
        member = controls.asked[-1][0]
        return msgspec.structs.replace(detail(command.key, member), state=states[member])

    controls.answer = answer
    found = (await call(stage, "GET", "/ops/api/actors/accounts/acct_1")).json()
    assert (found["member_id"], found["state"]) == ("proc_2", "active")
    states["proc_2"] = "passivated"
    found = (await call(stage, "GET", "/ops/api/actors/accounts/acct_1")).json()
    assert (found["member_id"], found["state"]) == ("proc_1", "passivated")


@pytest.mark.parametrize(
    ("path", "body", "command", "reply"),
    [
        (
            "children/restart",
            {"path": "holdfast/workers/outbox", "reason": "why"},
            RestartChild("holdfast/workers/outbox", "why"),
            CHILD,
        ),
        ("groups/tasks/pause", {"reason": "why"}, PauseGroup("tasks", "why"), CHILD),
        ("drain", {"reason": "why"}, DrainProcess("why"), Draining("proc_2")),
    ],
)
async def test_an_action_on_a_process_is_asked_of_that_process(
    stage: Stage, path: str, body: Any, command: Any, reply: Any
) -> None:
    controls = controls_of(stage)
    controls.answer = lambda _command: reply
    done = await call(stage, "POST", f"/ops/api/processes/proc_2/{path}", body)
    assert done.status_code == 200
    assert controls.asked == [("proc_2", command)]
    [report] = stage.reports
    assert (report.kind, report.operator is not None) == ("action", True)
    assert (report.key or "").startswith("proc_2")
    assert ("holdfast/workers/outbox" in (report.key or "")) == ("children" in path)


async def test_dead_letters_of_all_members_are_summed_up(stage: Stage) -> None:
    controls = controls_of(stage)

    def answer(command: Any) -> Any:
        assert command == ListDeadLetters("full", 20)
        member = controls.asked[-1][0]
        letter = DeadLetter(
            at=f"2026-11-20T12:00:0{member[-1]}.000Z",
            member_id=member,
            reason="full",
            path="accounts",
            key="acct_1",
            message_type="Capture",
            trace_id=None,
        )
        return DeadLetterList([letter], {"full": 2})

    controls.answer = answer
    body = (await call(stage, "GET", "/ops/api/dead-letters?reason=full")).json()
    assert [each["member_id"] for each in body["data"]] == ["proc_2", "proc_1"]
    assert body["counts"] == {"full": 4}


async def test_a_quarantined_actor_has_its_own_code_and_time(stage: Stage) -> None:
    def refuse(_key: str, _command: Any) -> Any:
        raise Quarantined("accounts acct_1 is quarantined", retry_after_s=117.2)

    stage.know_key()
    stage.accounts.answer = refuse
    body = {"model": "studio/image-1", "input": {"prompt": "x"}}
    response = await stage.as_key("POST", "/v2/task/create", json=body)
    refused(response, 503, "quarantined")
    assert response.headers["Retry-After"] == "118"
