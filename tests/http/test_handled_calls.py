"""The messages that an actor handled: its own list, and as entries of a time line, from all processes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.ledger.clock import format_time
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import KeptMessages, ListMessages, MessageList, MessageView

from .test_control_calls import AWAY, call, controls_of
from .test_time_lines import TASK, entries, live

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

MINUTES = {"proc_1": (1, 3, 4), "proc_2": (2, 5)}
"""When the actor's messages arrived in each process, in minutes after noon."""


def record(stage: Stage, member_id: str, query: ListMessages) -> MessageList:
    """What a process answers, as its record would select it."""
    found = [
        MessageView(
            at=format_time(stage.now + timedelta(minutes=minutes)),
            id=f"{member_id}-{query.group}-{minutes}",
            member_id=member_id,
            incarnation=2,
            message_type="Recharge",
            outcome="crashed" if minutes == 5 else "replied",
            waited_s=0.0001,
            turn_s=1.5,
            total_s=1.75,
            trace_id="4" * 32 if minutes == 5 else None,
        )
        for minutes in MINUTES[member_id]
    ]
    positions = {
        each.id: (stage.now + timedelta(minutes=int(each.id.rpartition("-")[2])), each.id) for each in found
    }
    wanted = [
        each
        for each in reversed(found)
        if (query.since is None or positions[each.id][0] >= query.since)
        and (query.until is None or positions[each.id][0] < query.until)
        and (query.before is None or positions[each.id] < query.before)
    ]
    kept = KeptMessages(member_id=member_id, since=format_time(stage.now), kept_max=10_000)
    return MessageList(wanted[: query.limit], kept)


def keep_messages(stage: Stage) -> Any:
    """Let two processes answer with messages, while a third cannot be reached."""
    controls = controls_of(stage)

    def answer(command: Any) -> Any:
        if not isinstance(command, ListMessages):
            return Refusal(code="actor_not_found", message="Not here.")
        return record(stage, controls.asked[-1][0], command)

    controls.answer = answer
    return controls


async def test_the_messages_of_all_processes_are_one_list_in_pages(stage: Stage) -> None:
    controls = keep_messages(stage)
    path = "/ops/api/actors/accounts/acct_1/messages?limit=2"
    seen: list[tuple[str, str]] = []
    query = path
    while query:
        body = await (await call(stage, "GET", query)).get_json()
        assert [each["member_id"] for each in body["messages_kept"]] == ["proc_1", "proc_2"]
        assert body["unreachable"] == [AWAY.member_id]
        seen += [(each["member_id"], each["at"][14:16]) for each in body["data"]]
        query = f"{path}&cursor={body['next_cursor']}" if body["next_cursor"] else ""
    assert seen == [("proc_2", "05"), ("proc_1", "04"), ("proc_1", "03"), ("proc_2", "02"), ("proc_1", "01")]
    assert {each.key for _, each in controls.asked} == {"acct_1"}
    window = "?from=2026-11-20T12:02:00Z&to=2026-11-20T12:04:00Z"
    some = await (await call(stage, "GET", f"/ops/api/actors/accounts/acct_1/messages{window}")).get_json()
    assert [each["at"][14:16] for each in some["data"]] == ["03", "02"]


async def test_a_list_of_messages_refuses_what_it_does_not_know(stage: Stage) -> None:
    keep_messages(stage)
    body = await (await call(stage, "GET", "/ops/api/actors/accounts/acct_1/messages?limit=2")).get_json()
    elsewhere = f"/ops/api/actors/accounts/acct_2/messages?limit=2&cursor={body['next_cursor']}"
    await stage.refused(await call(stage, "GET", elsewhere), 400, "invalid_cursor")
    await stage.refused(await call(stage, "GET", "/ops/api/actors/workers/a/messages"), 404, "group_not_found")


async def test_a_time_line_has_messages_only_when_asked(api: Api) -> None:
    await live(api)
    keep_messages(api)
    for path in (f"accounts/{api.account_id}", f"tasks/{TASK}"):
        assert {each["source"] for each in await entries(api, path)}.isdisjoint({"message"})
        found = await entries(api, path, "&source=message")
        assert [each["at"] for each in found] == sorted((each["at"] for each in found), reverse=True)
        messages = found
        assert len(messages) == 5
        assert len({each["id"] for each in found}) == len(found)
        assert messages[0] == {
            "at": "2026-11-20T12:05:00.000Z",
            "id": f"proc_2-{path.split('/')[0]}-5",
            "source": "message",
            "what": "Recharge crashed",
            "subject": path,
            "text": "waited 0.1 ms, turn 1,500 ms, outcome after 1,750 ms; incarnation 2 in proc_2, "
            "request 44444444444444444444444444444444",
            "amount": None,
            "balance": None,
        }


async def test_a_time_line_shows_one_kind_of_entries(api: Api) -> None:
    await live(api)
    controls = keep_messages(api)
    for path, count in ((f"accounts/{api.account_id}", 3), (f"tasks/{TASK}", 2)):
        body = await (await call(api, "GET", f"/ops/api/{path}/timeline?source=message")).get_json()
        assert {each["source"] for each in body["data"]} == {"message"}
        assert [each["member_id"] for each in body["messages_kept"]] == ["proc_1", "proc_2"]
        assert body["unreachable"] == [AWAY.member_id]
        controls.asked.clear()
        body = await (await call(api, "GET", f"/ops/api/{path}/timeline?source=operation")).get_json()
        assert [each["source"] for each in body["data"]] == ["operation"] * count
        assert (body["messages_kept"], body["unreachable"], controls.asked) == ([], [], [])
        refused = await call(api, "GET", f"/ops/api/{path}/timeline?source=gossip")
        await api.refused(refused, 400, "invalid_parameter")


async def test_an_account_without_entries_of_a_kind_exists(api: Api) -> None:
    keep_messages(api)
    body = await (await call(api, "GET", f"/ops/api/accounts/{api.account_id}/timeline?source=order")).get_json()
    assert body["data"] == []
    unknown = await call(api, "GET", "/ops/api/accounts/acct_9/timeline?source=message")
    await api.refused(unknown, 404, "account_not_found")
