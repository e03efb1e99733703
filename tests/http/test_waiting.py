"""Waiting requests, entity tags and streams of one process, on real rows."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import AsyncExitStack, ExitStack
from datetime import datetime, timedelta

import msgspec
import pytest
import trio
from sqlalchemy import update
from tests.clients import ok, refused
from tests.event_streams import Event, StreamReader, reading
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.account.messages import TaskAccepted
from holdfast.http.endpoints.tasks import following as account_following
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.fair_shares import READS_PER_CALLER_MAX
from holdfast.http.kit.waiting_calls import Wait, WaitingCalls
from holdfast.http.schemas.tasks import TaskBody, task_body
from holdfast.http.services import following
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import OutputItem, Task, TaskRequest
from holdfast.persistence.journal.changes import Change, Extent
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AccountHead, NewTaskRow, TaskChangedRow

from .api import Api
from .identities import ACCOUNT, NOW, OTHER_ACCOUNT
from .order_stand_ins import make_order

ID = "task_" + "1" * 32
PATH = f"/v2/task/{ID}"
OWNED = {ACCOUNT: (1, 2), OTHER_ACCOUNT: (3,)}
OTHER_SESSION = "hst_" + "o" * 43


async def write(api: Api, task: Task, extent: Extent = Extent.ANYTHING) -> None:
    """Change the task's row, and note that as the journal would."""
    values = {name: getattr(task, name) for name in ("status", "version", "updated_at", "wake_at")}
    statement = update(tables.tasks).where(tables.tasks.c.request_id == task.request_id)
    await api.write(statement.values(**values, state=msgspec.to_builtins(task.state)))
    api.deps.following.changes.note([Change(task.account_id, task.request_id, extent)])


def progressed(task: Task, version: int, status: str) -> Task:
    state = msgspec.structs.replace(task.state, error=f"version {version}")
    return msgspec.structs.replace(task, version=version, status=status, state=state)


async def begun(api: Api, count: int = 1) -> None:
    """Return once so many requests wait."""
    with trio.fail_after(60):
        while api.deps.following.waiting.count < count:
            await trio.lowlevel.checkpoint()


async def test_a_waiting_request_reads_only_as_it_begins_and_ends(api: Api) -> None:
    await api.add_task(api.task(ID))
    statuses = []

    async def wait() -> None:
        statuses.append(ok(await api.as_key("GET", f"{PATH}?wait=60"))["status"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await begun(api)
        before = api.rows.reads
        for version in range(2, 6):
            await write(api, progressed(api.task(ID), version, "processing"))
        assert api.rows.reads == before
        await write(api, progressed(api.task(ID), 6, "failed"), Extent.END)
    assert statuses == ["failed"]
    assert api.rows.reads == before + 1
    assert api.deps.following.waiting.count == 0


async def test_what_waits_for_a_task_keeps_nothing_of_it(api: Api) -> None:
    await api.add_task(api.task(ID))
    hold_id = api.task(ID).request.hold_id

    async def wait() -> None:
        ok(await api.as_key("GET", f"{PATH}?wait=60"))

    async with (
        api.serving() as base,
        reading(base, api.key, path=f"{PATH}/stream") as stream,
        trio.open_nursery() as nursery,
    ):
        assert await stream.next() is not None
        await write(api, progressed(api.task(ID), 2, "processing"), Extent.STATUS)
        assert await stream.next() is not None
        nursery.start_soon(wait)
        await begun(api, 2)
        await wait_all_tasks_blocked()
        gc.collect()
        requests = [each for each in gc.get_objects() if isinstance(each, TaskRequest)]
        assert hold_id not in {each.hold_id for each in requests}
        await write(api, progressed(api.task(ID), 3, "failed"), Extent.END)


async def test_a_key_that_is_revoked_during_a_wait_gets_no_task(api: Api) -> None:
    await api.add_task(api.task(ID))

    async def wait() -> None:
        refused(await api.as_key("GET", f"{PATH}?wait=60"), 401, "invalid_api_key")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await begun(api)
        await api.write(update(tables.api_keys).values(revoked_at=api.now))
        await write(api, progressed(api.task(ID), 2, "failed"), Extent.END)


async def test_a_task_that_has_ended_is_not_waited_for_and_takes_no_place(api: Api) -> None:
    api.change(waiting=WaitingCalls(per_account_max=1, all_max=2))
    await api.add_task(progressed(api.task(ID), 2, "canceled"))
    with api.deps.following.waiting.counted(ACCOUNT, "origin"):
        assert ok(await api.as_key("GET", f"{PATH}?wait=60"))["status"] == "canceled"
    refused(await api.as_key("GET", f"{PATH}?wait=1&wait=2"), 400, "invalid_parameter")
    refused(await api.as_key("GET", f"{PATH}?waits=1"), 400, "invalid_parameter")


def full(taken: Iterable[tuple[str, str]], *, all_max: int) -> tuple[WaitingCalls, list[Wait], ExitStack]:
    """Let these accounts, each at its origin, wait; return what waits."""
    calls, opened = WaitingCalls(per_account_max=500, all_max=all_max), ExitStack()
    waits = [opened.enter_context(calls.counted(account, origin)) for account, origin in taken]
    assert all(isinstance(one, Wait) for one in waits)
    return calls, [one for one in waits if isinstance(one, Wait)], opened


def is_taken(calls: WaitingCalls, opened: ExitStack, account: str, origin: str) -> bool:
    """Whether another of these may wait."""
    found = opened.enter_context(calls.counted(account, origin))
    if isinstance(found, Refusal):
        assert found.code == "overloaded"
    return isinstance(found, Wait)


@pytest.mark.parametrize(("most", "said"), [(1, " 1 waiting request or"), (2, " 2 waiting requests or")])
def test_an_account_has_so_many_waits_and_no_more(most: int, said: str) -> None:
    calls = WaitingCalls(per_account_max=most, all_max=9)
    with ExitStack() as opened:
        for number in range(most):
            assert isinstance(opened.enter_context(calls.counted("a", f"origin {number}")), Wait)
        refused = opened.enter_context(calls.counted("a", "origin 0"))
        assert isinstance(refused, Refusal)
        assert refused.code == "rate_limit_exceeded"
        assert said in refused.message
    assert calls.count == 0


@pytest.mark.parametrize(
    ("attackers", "victims"),
    [
        # Many accounts at one address, and few at many: another address, and where it is the same, another account.
        (
            [(f"account {n % 8}", "one address") for n in range(64)],
            [("other", "another"), ("other", "one address")],
        ),
        ([(f"account {n % 5}", f"address {n}") for n in range(64)], [("other", "another"), ("other", "address 7")]),
        # An address is not known of anybody.
        ([(f"account {n % 8}", "unknown") for n in range(64)], [("other", "unknown")]),
    ],
)
def test_who_has_most_waits_loses_some_down_to_an_equal_share(
    attackers: list[tuple[str, str]], victims: list[tuple[str, str]]
) -> None:
    for account, origin in victims:
        calls, waits, opened = full(attackers, all_max=len(attackers))
        assert not is_taken(calls, opened, *attackers[0])
        served = 0
        while is_taken(calls, opened, account, origin):
            served += 1
        assert served >= len(attackers) // 9
        assert sum(one.is_over for one in waits) == served
        assert calls.count == len(attackers)
        # What was lost is not regained from those who have less.
        assert not is_taken(calls, opened, *attackers[-1])
        opened.close()
        assert calls.count == 0
        assert vars(calls) == vars(WaitingCalls(per_account_max=500, all_max=len(attackers)))


def test_callers_with_equal_shares_keep_them() -> None:
    calls, waits, opened = full([(f"account {n}", f"address {n}") for n in range(9)], all_max=9)
    assert not is_taken(calls, opened, "other", "another")
    assert not is_taken(calls, opened, "account 1", "address 1")
    assert not any(one.is_over for one in waits)
    opened.close()


async def test_a_wait_that_ends_for_another_is_answered_as_the_task_is(api: Api) -> None:
    await api.add_task(api.task(ID))
    api.change(waiting=WaitingCalls(per_account_max=9, all_max=2))
    statuses = []

    async def wait() -> None:
        statuses.append(ok(await api.as_key("GET", f"{PATH}?wait=60"))["status"])

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait)
        await begun(api, 2)
        refused(await api.as_key("GET", f"{PATH}?wait=60"), 503, "overloaded")
        with api.deps.following.waiting.counted(OTHER_ACCOUNT, "another") as one, trio.fail_after(58):
            assert isinstance(one, Wait)
            while not statuses:
                await trio.lowlevel.checkpoint()
        assert statuses == ["queued"]
        await write(api, progressed(api.task(ID), 2, "failed"), Extent.END)
    assert statuses == ["queued", "failed"]


@pytest.mark.parametrize("path", [f"{PATH}/stream", "/v2/control/stream"])
async def test_a_stream_that_ends_for_another_is_complete(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(account_following, "ACCOUNT_PAUSE_S", 0.0)
    await api.add_task(api.task(ID))
    api.change(waiting=WaitingCalls(per_account_max=9, all_max=2))
    credential = api.key if "task" in path else api.session
    async with (
        api.serving() as base,
        reading(base, credential, path=path) as first,
        reading(base, credential, path=path) as second,
    ):
        for stream in (first, second):
            assert await stream.next() is not None
        with api.deps.following.waiting.counted(OTHER_ACCOUNT, "another"):
            while await first.next() is not None:
                pass
        assert first.is_complete
        assert not second.is_complete


async def test_what_ended_before_it_was_watched_ends_the_watch(api: Api) -> None:
    one = Wait()
    one.end()
    with api.deps.following.changes.watch(ID) as watch, trio.fail_after(58):
        one.end_with(watch)
        await watch.wait(float("inf"), Extent.END)
        assert watch.is_ending


async def test_a_task_that_has_not_changed_is_not_sent_again(api: Api) -> None:
    await api.add_task(api.task(ID))
    first = await api.as_key("GET", PATH)
    assert first.headers["Cache-Control"] == "private, no-cache"
    tag = first.headers["ETag"]
    for sent in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        same = await api.as_key("GET", PATH, headers={"If-None-Match": sent})
        assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
        assert same.headers["Content-Type"] == first.headers["Content-Type"]
    await write(api, progressed(api.task(ID), 2, "processing"))
    changed = await api.as_key("GET", PATH, headers={"If-None-Match": tag})
    assert ok(changed)["status"] == "processing"
    assert changed.headers["ETag"] != tag


async def test_a_cached_task_is_sent_again_before_its_links_end(api: Api) -> None:
    output = OutputItem(
        index=0, asset_id="asset_" + "1" * 32, content_type="image/png", bytes=1, sha256="0" * 64,
        expires_at=api.now + timedelta(days=7),
    )  # fmt: skip
    task = progressed(api.task(ID), 2, "succeeded")
    state = msgspec.structs.replace(task.state, output=(output,))
    await api.add_task(msgspec.structs.replace(task, state=state, wake_at=None))
    first = await api.as_key("GET", PATH)
    tag, ttl_s = first.headers["ETag"], api.deps.urls.link_ttl_s
    for later_s in range(0, ttl_s, 60):
        now = api.now + timedelta(seconds=later_s)
        api.change(now=lambda now=now: now)
        again = await api.as_key("GET", PATH, headers={"If-None-Match": tag})
        if again.status_code == 200:
            break
        assert later_s <= ttl_s / 2
    assert ok(again)["output"][0]["url"] != ok(first)["output"][0]["url"]


async def test_an_account_that_has_not_changed_is_not_sent_again(api: Api) -> None:
    path = "/v2/control/account"
    tag = (await api.as_session("GET", path)).headers["ETag"]
    same = await api.as_session("GET", path, headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    await api.write(update(tables.accounts).where(tables.accounts.c.id == ACCOUNT).values(held_micro=1))
    assert ok(await api.as_session("GET", path, headers={"If-None-Match": tag}))["held_total"] == "0.000001"


async def test_one_account_is_not_taken_for_another_that_has_as_much(api: Api) -> None:
    sent = await api.add_key(ACCOUNT, "key_mine", scopes=("account:read",))
    other = await api.add_key(OTHER_ACCOUNT, "key_other", scopes=("account:read",))
    await api.write(update(tables.accounts).values(balance_micro=1, held_micro=0))
    path = "/v2/control/account"
    tag = (await api.call("GET", path, credential=sent.secret)).headers["ETag"]
    body = ok(await api.call("GET", path, credential=other.secret, headers={"If-None-Match": tag}))
    assert body["account_id"] == OTHER_ACCOUNT


@pytest.mark.parametrize("path", [f"{PATH}/stream", "/v2/control/stream"])
async def test_heads_of_streams_end_and_take_no_place(api: Api, path: str) -> None:
    await api.add_task(api.task(ID))
    response = await (api.as_key if "task" in path else api.as_session)("HEAD", path)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/event-stream")
    assert api.deps.following.waiting.count == 0


async def test_a_stream_sends_a_status_at_once_and_of_progress_the_newest(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 3600.0)
    await api.add_task(api.task(ID))
    async with api.serving() as base, reading(base, api.key, path=f"{PATH}/stream") as stream:
        first = await stream.next()
        assert first is not None
        seen, before = [shown(first)], api.rows.reads
        for version in range(2, 4):
            await write(api, progressed(api.task(ID), version, "queued"))
            await wait_all_tasks_blocked()
        for version, status, extent in [(4, "processing", Extent.STATUS), (5, "failed", Extent.END)]:
            await write(api, progressed(api.task(ID), version, status), extent)
            event = await stream.next()
            assert event is not None
            seen.append(shown(event))
        assert await stream.next() is None
        assert stream.is_complete
    assert api.rows.reads == before + 2
    assert seen == [("1", "queued", None), ("4", "processing", "version 4"), ("5", "failed", "version 5")]
    assert api.deps.following.waiting.count == 0


async def test_a_stream_reads_beside_the_requests_of_its_account(api: Api) -> None:
    await api.add_task(api.task(ID))
    async with (
        api.serving() as base,
        reading(base, api.key, path=f"{PATH}/stream") as stream,
        trio.open_nursery() as nursery,
    ):
        assert await stream.next() is not None
        for _ in range(READS_PER_CALLER_MAX):
            nursery.start_soon(api.deps.access.read_shares.run, ACCOUNT, trio.sleep_forever)
        await write(api, progressed(api.task(ID), 2, "failed"), Extent.END)
        event = await stream.next()
        assert event is not None
        assert event.data["status"] == "failed"
        nursery.cancel_scope.cancel()


def shown(event: Event) -> tuple[str, str, str | None]:
    return event.fields["id"], event.data["status"], event.data["error"]


async def test_a_reader_that_leaves_gives_its_place_back(api: Api) -> None:
    await api.add_task(api.task(ID))
    async with api.serving() as base:
        async with (
            reading(base, api.key, path=f"{PATH}/stream") as one,
            reading(base, api.session, path="/v2/control/stream") as other,
        ):
            assert await one.next() is not None
            assert await other.next() is not None
            assert api.deps.following.waiting.count == 2
        while api.deps.following.waiting.count:
            await trio.lowlevel.checkpoint()


async def test_the_stream_of_an_account_needs_both_scopes(api: Api) -> None:
    reader = await api.add_key(ACCOUNT, "key_reader", scopes=("account:read",))
    path = "/v2/control/stream"
    refused(await api.call("GET", path, credential=reader.secret), 403, "insufficient_scope")
    refused(await api.as_key("GET", path), 403, "insufficient_scope")


@pytest.mark.parametrize("path", [f"{PATH}/stream", "/v2/control/stream"])
async def test_the_streams_of_a_disabled_account_end(api: Api, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    for module in (following, account_following):
        monkeypatch.setattr(module, "CHECK_S", 0.0)
    monkeypatch.setattr(account_following, "ACCOUNT_PAUSE_S", 0.0)
    await api.add_task(api.task(ID))
    credential = api.key if "task" in path else api.session
    async with api.serving() as base, reading(base, credential, path=path) as stream:
        assert await stream.next() is not None
        await api.write(update(tables.accounts).values(disabled_at=api.now))
        while await stream.next() is not None:
            pass
        assert stream.is_complete


async def test_streams_of_accounts_are_read_and_sent_together(api: Api, mock_clock: MockClock) -> None:
    tasks = {account: [f"task_{number}{'0' * 31}" for number in numbers] for account, numbers in OWNED.items()}
    for account_id, ids in tasks.items():
        for request_id in ids:
            await api.add_task(msgspec.structs.replace(api.task(request_id), account_id=account_id))
    await api.add_session(OTHER_ACCOUNT, "ses_other", OTHER_SESSION)
    async with AsyncExitStack() as opened, api.serving() as base:
        streams = [
            (account_id, await opened.enter_async_context(reading(base, session, path="/v2/control/stream")))
            for account_id, session in ((ACCOUNT, api.session), (OTHER_ACCOUNT, OTHER_SESSION)) * 2
        ]
        for _, stream in streams:
            assert (await next_batch(stream))[-1:] == ["account"]
        await wait_all_tasks_blocked()
        mock_clock.jump(account_following.ACCOUNT_PAUSE_S + account_following.GROUP_S / 2)
        await wait_all_tasks_blocked()
        reads, chunks = api.rows.reads, [stream.chunks for _, stream in streams]
        changes = api.deps.following.changes
        changes.note(Change(account, each) for account, ids in tasks.items() for each in (*ids, account))
        await wait_all_tasks_blocked()
        assert api.rows.reads == reads
        mock_clock.jump(account_following.GROUP_S)
        for account_id, stream in streams:
            assert await next_batch(stream) == [*tasks[account_id], "account"]
        # The first reads alone; what the others ask for meanwhile is the next group.
        assert api.rows.reads == reads + 2
        assert [stream.chunks for _, stream in streams] == [count + 1 for count in chunks]
        mock_clock.rate = 100.0  # the server stops in its own time


async def test_the_stream_of_an_account_reads_only_what_notices_lack(api: Api, mock_clock: MockClock) -> None:
    await api.add_task(api.task(ID))
    head = AccountHead(ACCOUNT, version=2, operation_count=9, balance_micro=7_000_000, held_micro=2_000_000)
    rows = (head, TaskChangedRow(progressed(api.task(ID), 2, "processing"), "proc_1"))
    async with api.serving() as base, reading(base, api.session, path="/v2/control/stream") as stream:
        assert await next_batch(stream) == ["account"]
        first_read_at = trio.current_time()
        await wait_all_tasks_blocked()
        for begun_after_s, status, available in ((1.0, "processing", "5.00"), (-1.0, "queued", "9.76")):
            mock_clock.jump(5.0)
            await wait_all_tasks_blocked()
            reads = api.rows.reads
            api.deps.following.changes.commit([Unit(rows=rows)], first_read_at + begun_after_s)
            await wait_all_tasks_blocked()
            mock_clock.jump(account_following.GROUP_S)
            task, account = await stream.next(), await stream.next()
            assert task is not None
            assert account is not None
            assert (task.data["status"], account.data["available_balance"]) == (status, available)
            assert (api.rows.reads > reads) == (status == "queued")
        mock_clock.rate = 100.0  # the server stops in its own time


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the tasks that streams of accounts have rendered."""
    ids: list[str] = []

    def counted(deps: Dependencies, task: Task, *, now: datetime) -> TaskBody:
        ids.append(task.request_id)
        return task_body(deps, task, now=now)

    monkeypatch.setattr(account_following, "task_body", counted)
    return ids


@pytest.mark.parametrize(("is_ended", "made"), [(False, 1), (True, 2)])
async def test_streams_of_an_account_share_events_without_links(
    api: Api, mock_clock: MockClock, rendered: list[str], *, is_ended: bool, made: int
) -> None:
    task = progressed(api.task(ID), 2, "succeeded" if is_ended else "processing")
    if is_ended:
        output = OutputItem(index=0, asset_id="asset_" + "1" * 32, content_type="image/png")
        task = msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(output,)))
    async with AsyncExitStack() as opened, api.serving() as base:
        streams = [
            await opened.enter_async_context(reading(base, api.session, path="/v2/control/stream"))
            for _ in range(2)
        ]
        for stream in streams:
            assert await next_batch(stream) == ["account"]
        await wait_all_tasks_blocked()
        mock_clock.jump(account_following.ACCOUNT_PAUSE_S)
        await wait_all_tasks_blocked()
        api.deps.following.changes.commit([Unit(rows=(TaskChangedRow(task, "proc_1"),))], trio.current_time())
        shown = [await stream.next() for stream in streams]
        assert [event.data["status"] for event in shown if event is not None] == [task.status] * 2
        assert rendered == [ID] * made
        mock_clock.rate = 100.0  # the server stops in its own time


@pytest.mark.parametrize(("version", "made"), [(1, 0), (2, 1)])
async def test_streams_of_an_account_send_a_new_task_as_it_was_answered(
    api: Api, mock_clock: MockClock, rendered: list[str], *, version: int, made: int
) -> None:
    api.accounts.answer = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image", NOW)
    body = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}}
    async with api.serving() as base, reading(base, api.session, path="/v2/control/stream") as stream:
        assert await next_batch(stream) == ["account"]
        await wait_all_tasks_blocked()
        mock_clock.jump(account_following.ACCOUNT_PAUSE_S / 2)
        stored = msgspec.structs.replace(api.task(ID), version=version, status="processing")
        api.deps.following.changes.commit([Unit(rows=(NewTaskRow(stored),))], trio.current_time())
        response = await api.as_key("POST", "/v2/task/create", body)
        mock_clock.jump(account_following.ACCOUNT_PAUSE_S)
        shown = await stream.next()
        assert shown is not None
        assert (shown.data["status"], len(rendered)) == ("processing" if made else "queued", made)
        assert (shown.fields["data"] == response.text) == (not made)
        mock_clock.rate = 100.0  # the server stops in its own time


async def next_batch(stream: StreamReader) -> list[str]:
    """Return the ids of the tasks up to the next event of the account, and what that is called."""
    found = []
    while (event := await stream.next()) is not None and event.fields["event"] == "task":
        found.append(event.data["request_id"])
    assert event is not None
    return [*found, event.fields["event"]]


async def test_an_id_that_the_task_has_not_reached_hides_nothing(api: Api) -> None:
    """The reader may have it from before the database was restored."""
    await api.add_task(progressed(api.task(ID), 2, "canceled"))
    async with (
        api.serving() as base,
        reading(base, api.key, path=f"{PATH}/stream", Last_Event_ID="9" * 18) as stream,
    ):
        event = await stream.next()
        assert event is not None
        assert event.fields["id"] == "2"
        assert await stream.next() is None


async def test_the_stream_of_an_account_finds_what_no_notice_has_named(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (following, account_following):
        monkeypatch.setattr(module, "CHECK_S", 0.0)
    monkeypatch.setattr(account_following, "ACCOUNT_PAUSE_S", 0.0)
    async with api.serving() as base, reading(base, api.session, path="/v2/control/stream") as stream:
        assert await stream.next() is not None
        order = make_order("ord_" + "1" * 32, ACCOUNT, api.now)
        await api.add_order(order)
        await api.write(update(tables.accounts).where(tables.accounts.c.id == ACCOUNT).values(operation_count=7))
        event = await stream.next()
        assert event is not None
        assert (event.fields["event"], event.data["order_id"]) == ("order", order.order_id)
        event = await stream.next()
        assert event is not None
        assert event.fields["id"] == "7"
