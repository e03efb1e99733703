"""Bulk actions: what matches, an action on all of it in batches, its stop and continuation, killed processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from sqlalchemy import insert, text
from tests.clients import ok, refused

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.unfenced import EventCommands
from holdfast.http.endpoints.operators import bulk
from holdfast.http.endpoints.operators.bulk import ACTS, AT_ONCE, BATCH, BulkActions
from holdfast.http.kit.actions import Action, ActionRun
from holdfast.http.schemas.operators import ActionWithReason
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.operators.bulk import Match
from holdfast.persistence.queries.events import EventAddress
from holdfast.persistence.records.tables import outbox
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut
from holdfast.supervision.control.messages import DescribeKey, DescribeProcess, KeyList, ListKeys, ReleaseKey

from .page_reader import PageReader
from .stage import make_task
from .test_control_calls import AWAY, PROCESS, detail, summary

if TYPE_CHECKING:
    from tests.http.api import Api

WHY = {"reason": "ticket 7"}
BULK = "/ops/api/bulk-actions"
GIVEN_UP = {"act": "retry_webhook", "filter": "status=given_up", **WHY}


class Resends(EventCommands):
    """Makes events due as the journal does, or ``part`` of them; may fail before or after that."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.counts: Counter[str] = Counter()
        self.before: BaseException | None = None
        self.after: BaseException | None = None
        self.part: int | None = None

    async def resend(self, events: Sequence[EventAddress], *, unless_since: datetime | None = None) -> None:
        if self.before is not None:
            raise self.before
        ids = [each.event_id for each in events][: self.part]
        self.counts.update(ids)
        again = {"status": "pending", "due_at": self.api.now, "round_at": self.api.now, "tries": 0}
        await self.api.write(outbox.update().where(outbox.c.event_id.in_(ids)).values(**again))
        if self.after is not None:
            raise self.after


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAUSE_S", 0.0)


@pytest.fixture
def resends(api: Api) -> Resends:
    commands = Resends(api)
    api.change(events=commands)
    return commands


async def plant(api: Api, count: int, *, first: int = 0, at: datetime | None = None) -> None:
    """Write events that were given up, an hour ago."""
    earlier = api.now - timedelta(hours=1) if at is None else at
    row = {
        "account_id": api.account_id,
        "receiver": "wh_1",
        "kind": "task.succeeded",
        "url": "https://shop.example/hooks",
        "round_at": earlier,
        "snapshot": {},
        "webhook_id": "wh_1",
        "status": "given_up",
        "attempts": 9,
        "tries": 9,
        "done_at": earlier,
        "reason": "gone",
    }
    numbers = range(first, first + count)
    rows = [
        {**row, "event_id": f"evt_{number:032x}", "created_at": earlier + timedelta(microseconds=number // 3)}
        for number in numbers
    ]
    await api.write(insert(outbox).values(rows))


def operator(api: Api) -> dict[str, str]:
    return {"Authorization": f"Bearer {api.deps.settings.operator_token}"}


async def post(api: Api, path: str, body: dict[str, Any], key: str = "") -> Any:
    headers = {**operator(api), "Idempotency-Key": key or new_id("req")}
    return await api.call("POST", path, json=body, headers=headers)


async def get(api: Api, path: str) -> Any:
    return ok(await api.call("GET", path, headers=operator(api)))


async def to_end(api: Api) -> None:
    """Do all that is left, as a process that starts now."""
    worker = BulkActions(lambda: api.deps)
    while await worker.work():
        pass


async def test_what_matches_is_counted_and_all_of_it_is_acted_on_once(api: Api, resends: Resends) -> None:
    await plant(api, 2 * BATCH + 50)
    await plant(api, 1, first=900, at=api.now + timedelta(seconds=1))
    matches = await get(api, "/ops/api/bulk-matches?act=retry_webhook&filter=status%3Dgiven_up")
    assert (matches["count"], matches["path"]) == (2 * BATCH + 50, "/ops/api/webhooks")
    assert [each["target"][1] for each in matches["oldest"]] == [f"evt_{number:032x}" for number in range(3)]
    assert [each["target"][1] for each in matches["newest"]] == [f"evt_{249 - number:032x}" for number in range(3)]
    assert await get(api, BULK) == {"data": [], "next_cursor": None, "unreadable": []}
    begun = ok(await post(api, BULK, GIVEN_UP))
    assert (begun["state"], begun["total"], begun["done"]) == ("running", 250, 0)
    worker = BulkActions(lambda: api.deps)
    assert await worker.work()
    one = f"{BULK}/{begun['action_id']}"
    assert (await get(api, one))["done"] == BATCH
    await to_end(api)
    ended = await get(api, one)
    assert (ended["state"], ended["done"], ended["refused"], ended["exceptions"]) == ("ended", 250, 0, [])
    assert resends.counts == Counter({f"evt_{number:032x}": 1 for number in range(250)})
    # One record, with what was sent and what was done.
    [action] = (await get(api, "/ops/api/actions"))["data"]
    assert (action["action"], action["result"], action["reason"]) == ("act_on_all", "done", "ticket 7")
    assert action["parameters"] == {"act": "retry_webhook", "filter": "status=given_up"}
    assert {name: action["effect"][name] for name in ("total", "done")} == {"total": "250", "done": "250"}
    assert not {"after", "upto", "in_hand"} & action["effect"].keys()
    assert [report.reason.startswith("act on all: done") for report in api.reports if report.reason] == [True]
    assert not await worker.work()


async def test_a_repeat_with_the_same_key_begins_no_other(api: Api, resends: Resends) -> None:
    await plant(api, 2)
    refused(await api.call("POST", BULK, json=GIVEN_UP, headers=operator(api)), 400, "missing_parameter")
    replies: list[Any] = []

    async def begin() -> None:
        replies.append(await post(api, BULK, GIVEN_UP, "again"))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(begin)
    assert len({ok(each)["action_id"] for each in replies}) == 1
    assert sum(each.headers.get("Idempotent-Replayed") == "true" for each in replies) == 2
    await to_end(api)
    recorded = (await get(api, "/ops/api/actions"))["data"]
    assert [each["result"] for each in recorded] == ["done", "refused"]
    repeated = await post(api, BULK, GIVEN_UP, "again")
    assert (ok(repeated)["state"], ok(repeated)["done"]) == ("ended", 2)
    assert repeated.headers["Idempotent-Replayed"] == "true"
    assert (await get(api, "/ops/api/actions"))["data"] == recorded
    refused(await post(api, BULK, {**GIVEN_UP, "filter": ""}, "again"), 422, "idempotency_key_reused")
    assert len((await get(api, BULK))["data"]) == 1
    assert {*resends.counts.values()} == {1}


async def test_one_that_is_stopped_can_be_continued_once_by_another(api: Api, resends: Resends) -> None:
    await plant(api, 3 * BATCH)
    begun = ok(await post(api, BULK, GIVEN_UP))
    one = f"{BULK}/{begun['action_id']}"
    worker = BulkActions(lambda: api.deps)
    await worker.work()
    refused(await post(api, f"{one}/continue", WHY), 409, "bulk_action_not_stopped")
    ok(await post(api, f"{one}/stop", WHY))
    await to_end(api)
    stopped = await get(api, one)
    assert (stopped["state"], stopped["done"], stopped["stopped_by"]) == ("stopped", BATCH, "operator-token")
    assert len(resends.counts) == BATCH
    continued = ok(await post(api, f"{one}/continue", {"reason": "their server is back"}))
    assert (continued["total"], continued["filter"]) == (2 * BATCH, "status=given_up")
    refused(await post(api, f"{one}/continue", WHY), 409, "bulk_action_not_stopped")
    await to_end(api)
    newest, first = (await get(api, BULK))["data"]
    assert [(each["state"], each["done"]) for each in (newest, first)] == [("ended", 2 * BATCH), ("stopped", BATCH)]
    assert (len(resends.counts), {*resends.counts.values()}) == (3 * BATCH, {1})
    refused(await post(api, f"{BULK}/{newest['action_id']}/continue", WHY), 409, "bulk_action_not_stopped")
    for path in ("", "/stop", "/continue"):
        call = api.call("GET" if not path else "POST", f"{BULK}/act_9{path}", json=WHY, headers=operator(api))
        refused(await call, 404, "bulk_action_not_found")


async def test_of_two_that_continue_one_at_once_the_second_is_refused(api: Api, resends: Resends) -> None:
    await plant(api, BATCH + 1)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"
    ok(await post(api, f"{one}/stop", WHY))
    await to_end(api)
    write, writes = api.deps.write_record, 0

    async def after_another(change: Callable[[Any], Any]) -> Any:
        nonlocal writes
        writes += 1
        if writes == 1:
            api.change(write_record=write)
            async with trio.open_nursery() as another:
                another.start_soon(post, api, f"{one}/continue", WHY)
        return await write(change)

    api.change(write_record=after_another)
    refused(await post(api, f"{one}/continue", WHY), 409, "bulk_action_not_stopped")
    running = [each for each in (await get(api, BULK))["data"] if each["state"] == "running"]
    assert len(running) == 1


@pytest.mark.parametrize("fault", [RuntimeError("a bug"), DatabaseAway("too slow")])
async def test_one_that_fails_keeps_no_other_waiting(api: Api, resends: Resends, fault: Exception) -> None:
    await plant(api, 1)
    await api.add_task(make_task(at=api.now - timedelta(hours=1)))
    ok(await post(api, BULK, GIVEN_UP))
    resends.before = fault
    api.tasks.answer = Refusal(code="task_already_terminal", message="It has ended.")
    api.now += timedelta(seconds=1)
    other = ok(await post(api, BULK, {"act": "cancel_task", **WHY}))
    with suppress(DatabaseAway):
        await BulkActions(lambda: api.deps).work()
    assert (await get(api, f"{BULK}/{other['action_id']}"))["refused"] == 1


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize("part", [None, 0, BATCH // 3], ids=["all", "none", "some"])
async def test_what_a_killed_process_has_done_is_not_done_again(
    api: Api, resends: Resends, part: int | None
) -> None:
    await plant(api, 2 * BATCH + 1)
    begun = ok(await post(api, BULK, GIVEN_UP))
    resends.after, resends.part = Killed(), part
    with pytest.raises(Killed):
        await BulkActions(lambda: api.deps).work()
    resends.after, resends.part = None, None
    await to_end(api)
    ended = await get(api, f"{BULK}/{begun['action_id']}")
    assert (ended["state"], ended["done"], ended["refused"]) == ("ended", 2 * BATCH + 1, 0)
    assert (len(resends.counts), {*resends.counts.values()}) == (2 * BATCH + 1, {1})


async def test_a_process_that_was_replaced_writes_nothing(api: Api, resends: Resends) -> None:
    await plant(api, BATCH + 1)
    begun = ok(await post(api, BULK, GIVEN_UP))
    write = api.deps.write_record

    async def taken_over_first(change: Callable[[Any], Any]) -> Any:
        api.change(write_record=write)
        await to_end(api)
        return await write(change)

    api.change(write_record=taken_over_first)
    assert not await BulkActions(lambda: api.deps).work()
    assert (await get(api, f"{BULK}/{begun['action_id']}"))["done"] == BATCH + 1
    assert {*resends.counts.values()} == {1}


class OneByOne:
    """Makes an event due by itself; one that is due already is refused. ``before`` is waited for, each time."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.counts: Counter[str] = Counter()
        self.before: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        action = Action("retry_webhook", self.do, is_urgent=False, needs_key=False)
        monkeypatch.setitem(ACTS, "retry_webhook", ACTS["retry_webhook"]._replace(together=None, action=action))

    async def do(self, run: ActionRun, _: ActionWithReason, account_id: str, event_id: str, receiver: str) -> Any:
        await self.before()
        done = (
            outbox.update()
            .where(outbox.c.event_id == event_id, outbox.c.status == "given_up")
            .values(status="pending", round_at=self.api.now)
        )
        if await self.api.database.work(lambda rows: rows.execute(done).rowcount) == 0:
            return Refusal(code="event_not_found", message="It is due.")
        self.counts[event_id] += 1
        return ActionWithReason(reason="done")


@pytest.fixture
def one_by_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> OneByOne:
    return OneByOne(api, monkeypatch)


async def frozen(api: Api, thaw: trio.Event, acts: OneByOne, *, acted_on: int = 0) -> None:
    """Do a batch in a process that stands still once it has acted on so many of its first entries."""
    left = acted_on

    async def wait() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            await thaw.wait()

    acts.before = wait
    await BulkActions(lambda: api.deps).work()


@pytest.mark.parametrize("acted_on", [0, 3])
async def test_a_process_that_thaws_after_another_took_over_counts_nothing(
    api: Api, one_by_one: OneByOne, acted_on: int
) -> None:
    total = BATCH + 1
    await plant(api, total)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"
    thaw = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(frozen, api, thaw, one_by_one, acted_on=acted_on))
        await trio.testing.wait_all_tasks_blocked(0.05)
        one_by_one.before = trio.lowlevel.checkpoint
        await to_end(api)
        ended = await get(api, one)
        thaw.set()
    assert (ended["state"], ended["done"], ended["refused"], ended["exceptions"]) == ("ended", total, 0, [])
    assert await get(api, one) == ended
    assert (len(one_by_one.counts), {*one_by_one.counts.values()}) == (total, {1})


async def test_what_a_thawed_process_does_meanwhile_is_not_refused(api: Api, one_by_one: OneByOne) -> None:
    await plant(api, AT_ONCE + 3)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"
    thaw = trio.Event()

    async def after_the_other() -> None:
        thaw.set()
        await trio.testing.wait_all_tasks_blocked(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(frozen, api, thaw, one_by_one))
        await trio.testing.wait_all_tasks_blocked(0.05)
        one_by_one.before = after_the_other
        await to_end(api)
    ended = await get(api, one)
    assert (ended["state"], ended["done"], ended["refused"], ended["exceptions"]) == ("ended", AT_ONCE + 3, 0, [])
    assert (len(one_by_one.counts), {*one_by_one.counts.values()}) == (AT_ONCE + 3, {1})


async def test_what_was_done_though_no_reply_came_is_not_refused(api: Api, one_by_one: OneByOne) -> None:
    await plant(api, 3)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"
    do = one_by_one.do

    async def no_reply(*target: Any) -> Any:
        await do(*target)
        raise OutcomeUnknown("lost")

    act = ACTS["retry_webhook"]
    ACTS["retry_webhook"] = act._replace(action=replace(act.action, do=no_reply))
    await to_end(api)
    ended = await get(api, one)
    assert (ended["done"], ended["refused"]) == (3, 0)


async def test_a_stop_is_seen_within_a_batch(api: Api, one_by_one: OneByOne) -> None:
    await plant(api, BATCH)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"

    async def stop() -> None:
        one_by_one.before = trio.lowlevel.checkpoint
        ok(await post(api, f"{one}/stop", WHY))

    one_by_one.before = stop
    await BulkActions(lambda: api.deps).work()
    stopped = await get(api, one)
    assert (stopped["state"], stopped["done"]) == ("stopped", AT_ONCE)
    ok(await post(api, f"{one}/continue", WHY))
    await to_end(api)
    assert (len(one_by_one.counts), {*one_by_one.counts.values()}) == (BATCH, {1})


async def test_one_that_began_though_no_reply_came_goes_on(api: Api, resends: Resends) -> None:
    await plant(api, 3)
    write, writes = api.deps.write_record, 0

    async def unanswered(change: Callable[[Any], Any]) -> Any:
        nonlocal writes
        writes += 1
        done = await write(change)
        if writes == 1:
            raise DatabaseAway("gone", retry_after_s=1.0)
        return done

    api.change(write_record=unanswered)
    refused(await post(api, BULK, GIVEN_UP, key="once"), 503, "temporarily_unavailable")
    begun = ok(await post(api, BULK, GIVEN_UP, key="once"))
    assert begun["state"] == "running"
    await to_end(api)
    ended = await get(api, f"{BULK}/{begun['action_id']}")
    assert (ended["state"], ended["done"], {*resends.counts.values()}) == ("ended", 3, {1})
    records = (await get(api, "/ops/api/actions?action=act_on_all"))["data"]
    assert [(each["action_id"], each["result"]) for each in records] == [(begun["action_id"], "done")]


async def test_one_whose_entries_cannot_be_read_can_be_stopped(
    api: Api, resends: Resends, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant(api, 1)
    one = f"{BULK}/{ok(await post(api, BULK, GIVEN_UP))['action_id']}"

    def too_slow(*_: object, **__: object) -> list[Match]:
        raise QueryTimedOut("too slow")

    monkeypatch.setattr(bulk, "next_matches", too_slow)
    ok(await post(api, f"{one}/stop", WHY))
    await to_end(api)
    assert (await get(api, one))["state"] == "stopped"
    assert not resends.counts


@pytest.mark.parametrize("fault", [OutcomeUnknown("lost"), DatabaseAway("gone", retry_after_s=1.0)])
async def test_a_batch_that_could_not_be_written_is_done_later(
    api: Api, resends: Resends, fault: Exception
) -> None:
    await plant(api, 3)
    begun = ok(await post(api, BULK, GIVEN_UP))
    resends.before = fault
    if isinstance(fault, DatabaseAway):
        with pytest.raises(DatabaseAway):
            await BulkActions(lambda: api.deps).work()
    else:
        assert not await BulkActions(lambda: api.deps).work()
    resends.before = None
    await to_end(api)
    assert (await get(api, f"{BULK}/{begun['action_id']}"))["done"] == 3


async def test_quarantined_actors_are_released_and_those_that_refuse_are_named(api: Api) -> None:
    controls: Any = api.deps.operating.controls
    left = [f"acct_{number:03}" for number in range(BATCH + 20)]
    released: Counter[str] = Counter()

    def answer(command: Any) -> Any:
        match command:
            case DescribeProcess():
                return PROCESS
            case ListKeys(state="quarantined"):
                keys = [each for each in left if each > command.after][: command.limit]
                return KeyList([summary(each) for each in keys])
            case DescribeKey():
                return Refusal(code="actor_not_found", message="Not here.")
            case ReleaseKey(key="acct_007"):
                return Refusal(code="actor_not_quarantined", message="The actor is not quarantined.")
            case ReleaseKey():
                released[command.key] += 1
                left.remove(command.key)
                return detail(command.key, "proc_1")
        raise AssertionError(command)

    controls.answer = answer
    begun = ok(await post(api, BULK, {"act": "release_actor", "filter": "group=accounts", **WHY}))
    expected = {*left} - {"acct_007"}
    await to_end(api)
    ended = await get(api, f"{BULK}/{begun['action_id']}")
    assert (ended["done"], ended["refused"]) == (BATCH + 19, 1)
    assert ended["exceptions"] == ["acct_007: actor_not_quarantined"]
    assert released == Counter(dict.fromkeys(expected, 1))
    matches = await get(api, "/ops/api/bulk-matches?act=release_actor&filter=group%3Daccounts")
    assert [each["target"] for each in matches["oldest"]] == [["accounts", "acct_007"]]


async def test_processes_that_did_not_answer_are_named(api: Api, browser: PageReader) -> None:
    controls: Any = api.deps.operating.controls
    controls.others = (AWAY,)
    quarantined = ["acct_1"]

    def answer(command: Any) -> Any:
        match command:
            case DescribeProcess():
                return PROCESS
            case ListKeys():
                return KeyList([summary(each) for each in quarantined if each > command.after])
            case DescribeKey():
                return Refusal(code="actor_not_found", message="Not here.")
            case ReleaseKey(key="acct_1"):
                quarantined.clear()
                return detail(command.key, "proc_1")
        return Refusal(code="actor_not_quarantined", message="The actor is not quarantined.")

    controls.answer = answer
    chosen = "act=release_actor&filter=group%3Daccounts"
    assert (await get(api, f"/ops/api/bulk-matches?{chosen}"))["unreachable"] == ["proc_3"]
    said = "Without the actors of 1 process that did not answer: proc_3"
    assert said in (await browser.read("/ops/bulk-actions?act=release_actor&group=accounts")).text
    begun = ok(await post(api, BULK, {"act": "release_actor", "filter": "group=accounts", **WHY}))
    assert begun["unreachable"] == ["proc_3"]
    await to_end(api)
    ended = await get(api, f"{BULK}/{begun['action_id']}")
    assert (ended["state"], ended["done"], ended["unreachable"]) == ("ended", 1, ["proc_3"])
    assert said in (await browser.read(f"/ops/bulk-actions/{begun['action_id']}")).text
    # One that is released by its name, too.
    released = await post(api, "/ops/api/actors/accounts/acct_2/release", WHY)
    assert released.json()["error"]["message"] == (
        "The actor is not quarantined. 1 of 2 processes did not answer: proc_3."
    )
    found = await api.call("GET", "/ops/api/actors/accounts/acct_2", headers=operator(api))
    assert found.json()["error"]["message"] == "Not here. 1 of 2 processes did not answer: proc_3."


@pytest.mark.parametrize(
    ("act", "sent", "param"),
    [
        ("release_all", "", "act"),
        ("release_actor", "", "group"),
        ("release_actor", "group=actors", "group"),
        ("retry_webhook", "status=done", "status"),
        ("retry_webhook", "status", "status"),
        ("retry_webhook", "state=given_up", "filter"),
        ("retry_webhook", "host=a&host=b", "filter"),
        ("retry_webhook", "host=" + "a" * 600, "filter"),
        ("resolve_payment_with_credit", "trouble=mismatched", "filter"),
    ],
)
async def test_a_filter_that_the_list_has_not_is_refused(api: Api, act: str, sent: str, param: str) -> None:
    for reply in (
        await post(api, BULK, {"act": act, "filter": sent, **WHY}),
        await api.call("GET", "/ops/api/bulk-matches", params={"act": act, "filter": sent}, headers=operator(api)),
    ):
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param
    assert (await get(api, BULK))["data"] == []


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
async def test_a_time_that_cannot_be_read_is_named_by_lists_of_operators(
    api: Api, resends: Resends, value: str
) -> None:
    await plant(api, 3)
    begun = [ok(await post(api, BULK, GIVEN_UP))["action_id"] for _ in range(3)]
    await api.write(text(f"update operator_actions set at = '{value}' where action_id = '{begun[1]}'"))
    for path in ("/ops/api/actions", BULK):
        found = await get(api, path)
        assert ({each["action_id"] for each in found["data"]}, found["unreadable"]) == (
            {begun[0], begun[2]},
            [begun[1]],
        )
    events = [f"evt_{number:032x}" for number in range(3)]
    await api.write(text(f"update outbox set created_at = '{value}' where event_id = '{events[1]}'"))
    found = await get(api, "/ops/api/webhooks")
    assert ({each["event"]["event_id"] for each in found["data"]}, found["unreadable"]) == (
        {events[0], events[2]},
        [events[1]],
    )


@pytest.mark.parametrize("act", [each for each in ACTS if each != "release_actor"])
async def test_each_list_can_be_counted_and_acted_on(api: Api, act: str) -> None:
    await api.add_task(make_task(at=api.now - timedelta(hours=1)))
    count = (await get(api, f"/ops/api/bulk-matches?act={act}"))["count"]
    assert count == (act == "cancel_task")
    ok(await post(api, BULK, {"act": act, **WHY}))
    api.tasks.answer = Refusal(code="task_already_terminal", message="It has ended.")
    await to_end(api)
    [ended] = (await get(api, BULK))["data"]
    assert (ended["state"], ended["total"], ended["done"], ended["refused"]) == ("ended", count, 0, count)


async def test_the_page_shows_what_matches_begins_follows_and_stops(
    api: Api, resends: Resends, browser: PageReader
) -> None:
    await plant(api, BATCH + 1)
    page = "/ops/bulk-actions?act=retry_webhook&status=given_up"
    shown = await browser.read(page)
    assert "101 match" in shown.text
    assert f"evt_{100:032x}" in shown.text
    fields = {"csrf_token": await browser.hidden(page), **WHY}
    key = await browser.hidden(page, "idempotency_key")
    sent = await browser.send(
        "/ops/bulk-actions",
        return_to=page,
        act="retry_webhook",
        filter="status=given_up",
        idempotency_key=key,
        **fields,
    )
    [begun] = (await get(api, BULK))["data"]
    one = f"/ops/bulk-actions/{begun['action_id']}"
    assert (sent.status_code, sent.headers["Location"]) == (303, one)
    await BulkActions(lambda: api.deps).work()
    assert "100 of 101" in (await browser.read(one)).text
    await browser.send(f"{one}/stop", return_to=one, **fields)
    await to_end(api)
    assert "stopped by" in (await browser.read(one)).text
    sent = await browser.send(f"{one}/continue", return_to=one, **fields)
    assert sent.headers["Location"] != one
    await to_end(api)
    assert "1 of 1" in (await browser.read(sent.headers["Location"])).text
    assert {*resends.counts.values()} == {1}
