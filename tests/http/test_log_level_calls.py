"""Levels of the log that operators raise: which processes are asked, what is recorded, refused and shown."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import ok, refused

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.faults import Unavailable
from holdfast.http.endpoints.operators.log_levels import FOR_DEFAULT_S, LINES_DEFAULT, MAILBOX_WORKERS
from holdfast.http.schemas.operators import GROUPS
from holdfast.supervision.control.messages import LevelList, ListLevels, MemberView, RaiseLevel
from holdfast.telemetry.logs.raised import RaisedLevel

from .page_reader import PageReader
from .test_control_calls import PROCESS

if TYPE_CHECKING:
    from tests.http.api import Api

WHY = {"reason": "ticket 7"}
OWN = ("holdfast.actors.", "holdfast.supervision.")
LEVELS = LevelList(
    [
        RaisedLevel(
            subject="acct_1",
            reason="<b>",
            ends_at="2026-11-20T12:10:00.000Z",
            lines_per_s=100,
            logged=1_200,
            dropped=7,
        )
    ]
)


@pytest.fixture
def asked(api: Api) -> list[tuple[str, Any]]:
    """What the control actors of two processes are asked about levels; the second does not answer."""
    controls: Any = api.deps.operating.controls
    controls.others = (MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None),)
    found: list[tuple[str, Any]] = []

    def answer(command: Any) -> Any:
        if not isinstance(command, ListLevels | RaiseLevel):
            return PROCESS
        member = controls.asked[-1][0]
        found.append((member, command))
        if member == "proc_2":
            raise Unavailable("the link closed")
        return LEVELS

    controls.answer = answer
    return found


async def send(api: Api, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    return await api.call("POST", "/ops/api/log-levels", json={**WHY, **body}, headers=headers)


async def test_all_processes_or_one_are_asked_and_it_is_recorded(api: Api, asked: list[tuple[str, Any]]) -> None:
    me = api.deps.operating.controls.members()[0].member_id
    found = ok(await send(api, subject="acct_1"))
    assert (found["unreachable"], found["data"][0]["member_id"], found["data"][0]["dropped"]) == (["proc_2"], me, 7)
    command = RaiseLevel("acct_1", FOR_DEFAULT_S, LINES_DEFAULT, "ticket 7")
    assert sorted(asked, key=str) == sorted([(me, command), ("proc_2", command)], key=str)
    asked.clear()
    ok(await send(api, subject="tasks", for_s=60, lines_per_s=5, member_id=me))
    assert asked == [(me, RaiseLevel("tasks", 60.0, 5, "ticket 7"))]
    asked.clear()
    ok(await send(api, subject="tasks", for_s=0))
    assert {command.for_s for _, command in asked} == {0}
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    actions = ok(await api.call("GET", "/ops/api/actions", headers=headers))["data"]
    assert [(each["action"], each["parameters"]["subject"], each["reason"]) for each in reversed(actions)] == [
        ("raise_log_level", "acct_1", "ticket 7"),
        ("raise_log_level", "tasks", "ticket 7"),
        ("raise_log_level", "tasks", "ticket 7"),
    ]
    assert next(report.reason for report in api.reports) == (
        "raise log level: done; subject: acct_1; reason: ticket 7"
    )


@pytest.mark.parametrize("subject", ["holdfast", "holdfast.http.kit", "outbox", "accounts", "acct_x", "/v2/task"])
async def test_a_subject_that_exists_is_taken(api: Api, asked: list[tuple[str, Any]], subject: str) -> None:
    ok(await send(api, subject=subject))


@pytest.mark.parametrize("subject", ["sqlalchemy", "holdfast.absent", "account", "acct_/", "holdfastx", "v2/task"])
async def test_a_subject_that_has_no_lines_is_refused(api: Api, asked: list[tuple[str, Any]], subject: str) -> None:
    refused(await send(api, subject=subject), 400, "invalid_parameter")
    assert asked == []


@pytest.mark.parametrize("body", [{"for_s": 3601}, {"for_s": -1}, {"lines_per_s": 0}, {"lines_per_s": 1001}])
async def test_time_and_lines_are_bounded(api: Api, asked: list[tuple[str, Any]], body: dict[str, Any]) -> None:
    assert (await send(api, subject="tasks", **body)).status_code == 400
    assert asked == []


async def test_the_page_shows_raises_and_ends_them(
    api: Api, browser: PageReader, asked: list[tuple[str, Any]]
) -> None:
    page = await browser.read("/ops/log-levels?subject=acct_1")
    for said in ("acct_1", "1,200", "<b>", "proc_2"):
        assert said in page.text
    fields = {"csrf_token": await browser.hidden("/ops/log-levels"), "return_to": "/ops/log-levels", **WHY}
    asked.clear()
    values = {"subject": "acct_1", "for_s": "60", "lines_per_s": "10", "member_id": ""}
    done = await browser.send("/ops/log-levels", **fields, **values)
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/log-levels")
    assert {command for _, command in asked} == {RaiseLevel("acct_1", 60.0, 10, "ticket 7")}
    asked.clear()
    await browser.send("/ops/log-levels", **fields, subject="acct_1", for_s="0")
    assert {(command.subject, command.for_s) for _, command in asked} == {("acct_1", 0)}


def test_every_kind_of_actor_is_a_subject() -> None:
    def below(base: type[TrioActor]) -> set[str]:
        found = set[str]().union(*(below(each) for each in base.__subclasses__()))
        return found | ({base.kind} if base.__module__.startswith(OWN) else set())

    import_module("holdfast.wiring.assembly")
    assert below(TrioActor) - {TrioActor.kind} == {*GROUPS, *MAILBOX_WORKERS}
