"""Attempts at one request: once a later one has begun, an earlier one creates nothing, at whichever process."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from holdfast.actors.account.messages import BeginAttempt, RequestAttempt, RevokeApiKey, TaskAccepted
from holdfast.actors.account.replies import RecentReplies
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.refusals import SUPERSEDED, Refusal
from holdfast.ledger.values import utc_now
from holdfast.persistence.queries.replies import attempt_probe, find_reply
from holdfast.persistence.records.rows import StoredReply
from holdfast.supervision.keyed_group import KeyedLimits

from .account_checks import CREDIT, NewTask, StartSystem, assert_audit_clean, in_parallel, read_totals

GROUP = "equal requests"
NONE, FIRST, SECOND = RequestAttempt(GROUP), RequestAttempt(GROUP, "attempt_1"), RequestAttempt(GROUP, "attempt_2")


def begin(attempt: RequestAttempt, key_id: str) -> BeginAttempt:
    return BeginAttempt(attempt, key_id, "tasks:write")


async def newest(system: Any, account_id: str) -> bytes | None:
    """The id of the newest attempt in the rows."""
    oldest = utc_now() - timedelta(minutes=1)
    stored = await system.database.read(
        lambda rows: find_reply(rows, attempt_probe(account_id, GROUP), oldest=oldest)
    )
    return None if stored is None else stored.fingerprint


@pytest.mark.parametrize("process", ["the same", "another", "passivated"])
async def test_a_create_that_does_not_know_of_a_later_attempt_is_refused(
    start_system: StartSystem, new_task: NewTask, process: str
) -> None:
    limits = KeyedLimits(idle_s=0.05) if process == "passivated" else None
    system, other = await start_system(limits=limits), await start_system()
    account_id, key_id = await system.open_account(9 * CREDIT)
    late = replace(new_task(key_id, key="late"), after=NONE)
    decided = replace(new_task(key_id, key="decided"), after=NONE)
    first = await system.ask(account_id, decided)
    assert isinstance(first, TaskAccepted)

    begins = other if process == "another" else system
    assert await begins.ask(account_id, begin(FIRST, key_id)) is None
    while process == "passivated" and system.accounts.active_count:  # noqa: ASYNC110 - passivation has no event
        await trio.sleep(0.01)
    assert await system.ask(account_id, late) == SUPERSEDED
    # It was decided before, and changes nothing now.
    assert await system.ask(account_id, decided) == Replayed(first)
    assert isinstance(await system.ask(account_id, replace(late, after=FIRST)), TaskAccepted)
    assert isinstance(
        await system.ask(account_id, replace(new_task(key_id), after=RequestAttempt("other"))), TaskAccepted
    )
    assert isinstance(await system.ask(account_id, new_task(key_id)), TaskAccepted)

    assert await system.ask(account_id, begin(SECOND, key_id)) is None
    for known in (NONE, FIRST):
        assert await other.ask(account_id, replace(new_task(key_id, key="new"), after=known)) == SUPERSEDED
    assert await newest(system, account_id) == b"attempt_2"
    assert await read_totals(system.database, account_id) == (9 * CREDIT, 4 * CREDIT, 5)
    assert_audit_clean(system.database)


async def test_of_attempts_that_begin_together_the_newest_may_create(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(30 * CREDIT)
    attempts = [RequestAttempt(GROUP, f"attempt_{n}") for n in range(20)]
    creates = {each: replace(new_task(key_id, key=each.attempt_id), after=each) for each in (NONE, *attempts)}

    async def decided(command: Any) -> Any:
        return await system.ask(account_id, command)

    begun = [partial(decided, begin(each, key_id)) for each in attempts]
    *begun_replies, early = await in_parallel([*begun, partial(decided, creates[NONE])])
    assert begun_replies == [None] * 20
    replies = dict(
        zip(attempts, await in_parallel([partial(decided, creates[each]) for each in attempts]), strict=True)
    )
    stored = await newest(system, account_id)
    assert {each.attempt_id.encode() for each, reply in replies.items() if reply != SUPERSEDED} == {stored}
    tasks = [each for each in (early, *replies.values()) if isinstance(each, TaskAccepted)]
    assert await read_totals(system.database, account_id) == (30 * CREDIT, len(tasks) * CREDIT, 1 + len(tasks))
    assert early == SUPERSEDED or len(tasks) == 2


async def test_equal_requests_are_decided_in_one_batch(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(200 * CREDIT)
    creates = [replace(new_task(key_id, key=f"create_{n}"), after=NONE) for n in range(200)]
    replies = await in_parallel([partial(system.ask, account_id, each) for each in creates])
    assert len({each.request_id for each in replies}) == 200


async def test_an_attempt_needs_a_key_that_may_create(system: Any) -> None:
    account_id, key_id = await system.open_account(CREDIT)
    await system.ask(account_id, RevokeApiKey(key_id))
    refused = await system.ask(account_id, begin(FIRST, key_id))
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid_api_key"
    assert await newest(system, account_id) is None


def test_an_attempt_counts_as_long_as_its_row() -> None:
    replies, at = RecentReplies("acct_1", replies_max=3, ttl_s=60), utc_now()
    replies.begin(FIRST, at)
    for after_s, known, expected in ((0, NONE, True), (59, NONE, True), (59, FIRST, False), (60, NONE, False)):
        now = partial(at.__add__, timedelta(seconds=after_s))
        assert replies.is_superseded(known, now) == expected


def test_the_attempt_of_an_earlier_release_counts() -> None:
    replies = RecentReplies("acct_1", replies_max=3, ttl_s=60)
    replies.learn([(attempt_probe("acct_1", GROUP), StoredReply(b"attempt_1", b"null"))])
    assert replies.is_superseded(NONE, utc_now)
