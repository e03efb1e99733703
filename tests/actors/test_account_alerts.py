"""Webhooks and alerts of accounts on a real database: what is written with each change, and after crashes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select
from tests.http.fake_parts import FakeMailer

from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import (
    AllowMail,
    CreateOrder,
    DeleteWebhook,
    PutWebhook,
    ReceivePaymentEvent,
    Recharge,
    SetAccess,
    SetAlerts,
    StopMail,
)
from holdfast.actors.workers.outbox import PER_RECEIVER_MAX
from holdfast.ledger.alerts.alerts import MAIL_PAUSE, Alerts
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.events import DeliveryResponse
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.claims.outbox import FIRST, DueEvent, claim_due, end_events
from holdfast.persistence.journal import writer
from holdfast.persistence.journal.statements import draft_of
from holdfast.persistence.journal.units import Committed, Fence, Unit
from holdfast.persistence.queries.loading import load_task
from holdfast.persistence.queries.webhooks import alerts_of_account, webhooks_of_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import TaskChangedRow
from holdfast.providers.mail.base import MailFault
from holdfast.wiring.alert_mail import AlertMail

from .account_checks import CREDIT, assert_audit_clean, capacity_of, settle_command
from .actor_system import ActorSystem, Payments, StartSystem, create_task


def alerts(below_micro: int | None, **more: Any) -> SetAlerts:
    return SetAlerts(**{"balance_below_micro": below_micro, "limit_share": 1.0, "email": False, **more})


async def add_webhook(system: ActorSystem, account_id: str, *events: str, url: str = "https://a.example/") -> str:
    webhook = await system.ask(account_id, PutWebhook(new_id("wh"), is_new=True, url=url, events=events))
    return str(webhook.webhook_id)


async def events_of(system: ActorSystem, account_id: str) -> list[Any]:
    """All events of an account, the oldest first."""
    table = tables.outbox
    query = select(table).where(table.c.account_id == account_id).order_by(table.c.created_at, table.c.event_id)
    return list(await system.database.read(lambda rows: rows.execute(query).all()))


async def kinds_of(system: ActorSystem, account_id: str) -> list[str]:
    return [event.kind for event in await events_of(system, account_id)]


async def claim(system: ActorSystem) -> list[DueEvent]:
    due, _ = await system.database.work(
        claim_due,
        utc_now(),
        after=FIRST,
        named=(),
        capacity=capacity_of(100, 100, PER_RECEIVER_MAX, {}),
        learned={},
        lease_s=20.0,
    )
    return due


async def test_an_event_is_written_with_the_change_it_is_about(system: ActorSystem, payments: Payments) -> None:
    account_id, _ = await system.open_account()
    webhook_id = await add_webhook(system, account_id, "*")
    order = payments.request(account_id)
    await system.ask(account_id, CreateOrder(order))
    for event in (payments.paid(order.order_id), payments.refunded(order.order_id, 4_000_000)):
        for _ in range(2):
            await system.ask(account_id, ReceivePaymentEvent(order.order_id, event, b"{}"))
    await system.ask(account_id, SetAccess(is_disabled=True))
    await system.ask(account_id, SetAccess(is_disabled=True))
    found = await events_of(system, account_id)
    assert [(each.kind, each.webhook_id, each.receiver, each.request_id) for each in found] == [
        (kind, webhook_id, webhook_id, None)
        for kind in ("payment.credited", "payment.reversed", "account.disabled")
    ]
    assert [each.snapshot["amount"] for each in found[:2]] == ["10.00", "4.00"]
    assert [each.snapshot["balance"] for each in found[:2]] == ["10.00", "6.00"]


async def test_a_hold_that_crosses_is_announced_once_and_again_after_its_release(system: ActorSystem) -> None:
    account_id, key_id = await system.open_account(2 * CREDIT)
    await add_webhook(system, account_id, "balance.below")
    await system.ask(account_id, alerts(CREDIT))
    assert await events_of(system, account_id) == []
    first = await system.ask(account_id, create_task(key_id, hold_micro=1_500_000))
    # Further below is no further crossing.
    await system.ask(account_id, create_task(key_id, hold_micro=100_000))
    [event] = await events_of(system, account_id)
    assert event.snapshot == {"account_id": account_id, "available_balance": "0.50", "balance_below": "1.00"}
    await system.ask(account_id, await settle_command(system.database, first.request_id, None))
    await system.ask(account_id, create_task(key_id, hold_micro=1_500_000))
    assert await kinds_of(system, account_id) == ["balance.below"] * 2
    # Another threshold that is above too is no further crossing. One that was crossed back is announced at once.
    for below_micro, events in ((3 * CREDIT, 2), (2 * CREDIT, 2), (1, 2), (3 * CREDIT, 3), (CREDIT, 3)):
        await system.ask(account_id, alerts(below_micro))
        assert len(await events_of(system, account_id)) == events
    reply = await system.ask(account_id, alerts(None))
    assert reply.announced == {}


async def test_what_was_announced_survives_a_restart_of_the_actor(start_system: StartSystem) -> None:
    first = await start_system()
    account_id, key_id = await first.open_account(CREDIT)
    await add_webhook(first, account_id, "*")
    await first.ask(account_id, alerts(CREDIT))
    await first.ask(account_id, create_task(key_id, hold_micro=500_000))
    second = await start_system()
    await second.ask(account_id, create_task(key_id, hold_micro=100_000))
    # The first one is outdated: its unit fails its fence, and it reads what the second has written.
    await first.ask(account_id, Recharge(5 * CREDIT))
    await second.ask(account_id, create_task(key_id, hold_micro=5 * CREDIT))
    assert await kinds_of(first, account_id) == ["balance.below"] * 2
    webhooks = await second.ask(
        account_id, DeleteWebhook(webhook_id=(await events_of(second, account_id))[0].webhook_id)
    )
    assert not isinstance(webhooks, Refusal)
    assert_audit_clean(first.database)


async def play(
    system: ActorSystem, again: Callable[[], Awaitable[ActorSystem]], steps: list[tuple[str, int]]
) -> None:
    """Run steps on a new account, and compare its events with a model of its alert."""
    account_id, key_id = await system.open_account()
    await add_webhook(system, account_id, "balance.below")
    balance, holds = 0, dict[str, int]()
    threshold: int | None = None
    announced, expected = False, 0
    for what, number in steps:
        amount = number * CREDIT
        if what == "recharge":
            await system.ask(account_id, Recharge(amount))
            balance += amount
        elif what == "hold":
            reply = await system.ask(account_id, create_task(key_id, hold_micro=amount))
            if not isinstance(reply, Refusal):
                holds[reply.request_id] = amount
        elif what == "end" and holds:
            request_id, held = holds.popitem()
            charge = min(held, amount // 2)
            await system.ask(account_id, await settle_command(system.database, request_id, charge))
            balance -= charge
        elif what == "alert":
            threshold = amount or None
            await system.ask(account_id, alerts(threshold))
        elif what == "restart":
            system = await again()
        available = balance - sum(holds.values())
        if threshold is None or available >= threshold:
            announced = False
        elif not announced:
            announced, expected = True, expected + 1
    assert await kinds_of(system, account_id) == ["balance.below"] * expected


@pytest.mark.parametrize("seed", range(6))
async def test_any_history_announces_each_crossing_once(start_system: StartSystem, seed: int) -> None:
    rng = random.Random(seed)
    names = ("recharge", "hold", "hold", "end", "alert", "restart")
    system = await start_system()
    for _ in range(4):
        steps = [(rng.choice(names), rng.randint(1, 4)) for _ in range(16)]
        await play(system, start_system, steps)
    assert_audit_clean(system.database)


async def test_webhooks_are_limited_and_only_the_accounts_own(start_system: StartSystem) -> None:
    system = await start_system(account_limits=AccountLimits(webhooks_max=3))
    (ada, _), (eve, _) = [await system.open_account() for _ in range(2)]
    ids = [await add_webhook(system, ada, "*") for _ in range(3)]
    over = await system.ask(ada, PutWebhook(new_id("wh"), is_new=True, url="https://a.example", events=("*",)))
    assert over.code == "webhook_limit_reached"
    for refused in (PutWebhook(ids[0], is_new=False, enabled=False), DeleteWebhook(ids[0])):
        assert (await system.ask(eve, refused)).code == "webhook_not_found"
    changed = await system.ask(ada, PutWebhook(ids[0], is_new=False, enabled=False))
    assert (changed.url, changed.events, changed.enabled) == ("https://a.example/", ("*",), False)
    await system.ask(ada, DeleteWebhook(ids[1]))
    assert (await system.ask(ada, DeleteWebhook(ids[1]))).code == "webhook_not_found"
    await add_webhook(system, ada, "task.*")
    stored = await system.database.read(webhooks_of_account, ada)
    assert {each.webhook_id for each in stored} > {ids[0], ids[2]}
    assert len(stored) == 3


async def test_a_thousand_webhooks_each_get_the_event(start_system: StartSystem) -> None:
    system = await start_system(account_limits=AccountLimits(webhooks_max=1000))
    account_id, key_id = await system.open_account(CREDIT)
    for number in range(1000):
        await add_webhook(system, account_id, "*" if number % 2 else "task.*", url=f"https://h{number}.example/")
    refused = await system.ask(
        account_id, PutWebhook(new_id("wh"), is_new=True, url="https://x.example", events=("*",))
    )
    assert refused.code == "webhook_limit_reached"
    task = await system.ask(account_id, create_task(key_id))
    await end_task(system, account_id, task.request_id)
    await system.ask(account_id, SetAccess(is_disabled=True))
    found = Counter(await kinds_of(system, account_id))
    assert found == {"task.canceled": 1000, "account.disabled": 500}


async def end_task(system: ActorSystem, account_id: str, request_id: str) -> None:
    """Cancel a task, as its actor does."""
    command = await settle_command(system.database, request_id, None)
    row, *more = command.rows
    assert isinstance(row, TaskChangedRow)
    rows = (msgspec.structs.replace(row, kinds=("task.canceled",)), *more)
    assert isinstance(await system.ask(account_id, msgspec.structs.replace(command, rows=rows)), Settlement)


async def test_a_task_that_runs_already_is_announced_to_a_new_webhook(system: ActorSystem) -> None:
    account_id, key_id = await system.open_account(5 * CREDIT)
    tasks = [(await system.ask(account_id, create_task(key_id))).request_id for _ in range(2)]
    await end_task(system, account_id, tasks[0])
    assert await events_of(system, account_id) == []
    ids = {await add_webhook(system, account_id, each) for each in ("task.*", "task.canceled", "task.failed")}
    off = await add_webhook(system, account_id, "*")
    await system.ask(account_id, PutWebhook(off, is_new=False, enabled=False))
    await end_task(system, account_id, tasks[1])
    found = await events_of(system, account_id)
    assert [(each.kind, each.request_id) for each in found] == [("task.canceled", tasks[1])] * 2
    assert {each.webhook_id for each in found} < ids
    assert len({each.event_id for each in found}) == 2
    assert all(each.snapshot["status"] == "canceled" and each.tries == 0 for each in found)
    assert_audit_clean(system.database)


async def test_a_step_that_settles_nothing_is_announced_too(system: ActorSystem) -> None:
    account_id, key_id = await system.open_account(5 * CREDIT)
    webhook_id = await add_webhook(system, account_id, "task.processing")
    request_id = (await system.ask(account_id, create_task(key_id))).request_id
    task = await system.database.read(load_task, request_id)
    after = msgspec.structs.replace(task, version=2, status="processing")
    row = TaskChangedRow(after, "proc_1", has_new_usage=True, kinds=("task.processing",))
    unit = Unit(fences=(Fence("task", request_id, 1),), rows=(row,))
    assert isinstance(await system.journal.write(unit), Committed)
    # Of a void step nothing is announced.
    await system.journal.write(Unit(fences=(Fence("task", request_id, 1),), rows=(row,)))
    [event] = await events_of(system, account_id)
    assert (event.kind, event.webhook_id) == ("task.processing", webhook_id)


async def test_a_batch_without_webhooks_has_no_further_statement(
    system: ActorSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[list[str]] = []

    def counted(units: Any, watched: Any = ()) -> Any:
        draft = real(units, watched)
        drafts.append([sql.split("(")[0] for sql, _ in draft.statements])
        return draft

    real = draft_of
    monkeypatch.setattr(writer, "draft_of", counted)
    account_id, key_id = await system.open_account(5 * CREDIT)
    for with_webhook in (False, True):
        if with_webhook:
            await add_webhook(system, account_id, "*")
        request_id = (await system.ask(account_id, create_task(key_id))).request_id
        drafts.clear()
        await end_task(system, account_id, request_id)
        [statements] = drafts
        assert [each for each in statements if "outbox" in each] == ["insert into outbox "] * with_webhook


async def test_events_for_a_deleted_or_disabled_webhook_are_given_up(system: ActorSystem) -> None:
    account_id, _ = await system.open_account(CREDIT)
    gone, off, moved = [await add_webhook(system, account_id, "*", url=f"https://{n}.example/") for n in "abc"]
    await system.ask(account_id, SetAccess(is_disabled=True))
    await system.ask(account_id, SetAccess(is_disabled=False))
    await system.ask(account_id, DeleteWebhook(gone))
    await system.ask(account_id, PutWebhook(off, is_new=False, enabled=False))
    await system.ask(account_id, PutWebhook(moved, is_new=False, url="https://new.example/"))
    due = {event.webhook_id: event for event in await claim(system)}
    assert {webhook_id: event.ended for webhook_id, event in due.items()} == {
        gone: "the webhook was deleted",
        off: "the webhook is disabled",
        moved: None,
    }
    # What waits is sent to the new address.
    assert due[moved].url == "https://new.example/"


async def test_the_events_that_wait_for_a_webhook_are_ended_together(system: ActorSystem) -> None:
    account_id, _ = await system.open_account(CREDIT)
    gone, other = [await add_webhook(system, account_id, "*") for _ in range(2)]
    await system.ask(account_id, SetAccess(is_disabled=True))
    [under_way] = [event for event in await claim(system) if event.webhook_id == gone]
    assert not await system.database.work(end_events, gone, utc_now(), reason="the webhook was deleted")
    found = {event.webhook_id: event for event in await events_of(system, account_id)}
    assert (found[gone].status, found[gone].due_at, found[gone].reason) == (
        "given_up",
        None,
        "the webhook was deleted",
    )
    assert found[other].status == "pending"
    # The delivery that was under way changes nothing any more.
    assert found[gone].round_at > under_way.round_at


async def test_a_silent_endpoint_takes_no_turn_of_another_one_of_its_account(system: ActorSystem) -> None:
    account_id, key_id = await system.open_account(50 * CREDIT)
    silent, calm = [await add_webhook(system, account_id, "task.canceled") for _ in range(2)]
    for _ in range(PER_RECEIVER_MAX + 2):
        request_id = (await system.ask(account_id, create_task(key_id))).request_id
        await end_task(system, account_id, request_id)
    first = Counter(event.webhook_id for event in await claim(system))
    assert first == {silent: PER_RECEIVER_MAX, calm: PER_RECEIVER_MAX}
    due, _ = await system.database.work(
        claim_due,
        utc_now(),
        after=FIRST,
        named=(),
        capacity=capacity_of(100, 100, PER_RECEIVER_MAX, {silent: PER_RECEIVER_MAX}),
        learned={silent: True},
        lease_s=20.0,
    )
    assert Counter((event.webhook_id, event.is_silent) for event in due) == {(calm, True): 2}


async def test_a_webhook_counts_as_silent_until_its_address_answers(system: ActorSystem) -> None:
    """A new one costs nothing, and neither does another address of one that has answered."""
    account_id, key_id = await system.open_account(50 * CREDIT)
    webhook_id = await add_webhook(system, account_id, "task.canceled")

    async def is_silent(learned: bool | None = None) -> bool:
        request_id = (await system.ask(account_id, create_task(key_id))).request_id
        await end_task(system, account_id, request_id)
        [event], _ = await system.database.work(
            claim_due,
            utc_now(),
            after=FIRST,
            named=(),
            capacity=capacity_of(9, 9, PER_RECEIVER_MAX, {}),
            learned={} if learned is None else {webhook_id: learned},
            lease_s=20.0,
        )
        return event.is_silent

    assert await is_silent()
    assert not await is_silent(learned=False)
    await system.ask(account_id, PutWebhook(webhook_id, is_new=False, events=("*",), url="https://a.example/"))
    assert not await is_silent()
    assert await is_silent(learned=True)
    assert not await is_silent(learned=False)
    await system.ask(account_id, PutWebhook(webhook_id, is_new=False, url="https://b.example/"))
    assert await is_silent()
    # Nothing is left of a webhook that was deleted.
    await system.ask(account_id, DeleteWebhook(webhook_id))
    count = select(func.count()).select_from(tables.silent_receivers)
    assert await system.database.read(lambda rows: rows.scalar(count)) == 0


async def test_mail_has_a_limit_of_its_own(system: ActorSystem) -> None:
    for _ in range(3):
        account_id, key_id = await system.open_account(CREDIT)
        await system.ask(account_id, alerts(CREDIT, email=True))
        await system.ask(account_id, create_task(key_id, hold_micro=1))

    async def claimed(to_mail: int, quick: int) -> int:
        capacity = capacity_of(0, quick, PER_RECEIVER_MAX, {}, to_mail=to_mail)
        due, _ = await system.database.work(
            claim_due, utc_now(), after=FIRST, named=(), capacity=capacity, learned={}, lease_s=20.0
        )
        assert all(event.is_mail and not event.is_silent for event in due)
        return len(due)

    assert [await claimed(*each) for each in ((0, 9), (2, 0), (9, 0))] == [0, 2, 1]


async def deliver_mail(system: ActorSystem, mailer: FakeMailer) -> list[DeliveryResponse]:
    """Make an attempt for each mail that is due."""
    urls = PublicUrls(base="https://holdfast.example", link_keys=(b"k" * 32,), link_ttl_s=60)
    mail = AlertMail(system.database, system.accounts, mailer, urls)
    return [await mail.send(event) for event in await claim(system) if event.is_mail]


async def test_an_alert_is_mailed_unless_it_is_refused_or_unwanted(
    system: ActorSystem,
) -> None:
    mailer = FakeMailer()

    async def crossed(**settings: Any) -> tuple[str, list[DeliveryResponse]]:
        account_id, key_id = await system.open_account(CREDIT)
        await system.ask(account_id, alerts(CREDIT, email=True))
        await system.ask(account_id, create_task(key_id, hold_micro=1))
        if settings:
            await system.ask(account_id, StopMail(**settings))
        return account_id, await deliver_mail(system, mailer)

    account_id, [sent] = await crossed()
    assert sent.is_success
    [(email, alert)] = mailer.alerts
    assert email == f"{account_id}@example.com"
    assert "1.00" in alert.subject
    assert (alert.unsubscribe_url or "").startswith(
        "https://holdfast.example/v2/control/alerts/unsubscribe?account_id=acct_"
    )
    # Between the event and the attempt the owner has unsubscribed.
    _, [unwanted] = await crossed(why="unsubscribed")
    assert (unwanted.is_final, unwanted.error) == (True, "the account's mail: unsubscribed")
    mailer.fault = MailFault("the mail server did not accept the message in time")
    _, [late] = await crossed()
    assert not late.is_final
    mailer.fault = MailFault("the mail server refused the address: 550", is_refused=True)
    refused_id, [refused] = await crossed()
    assert refused.is_final
    stored = await system.database.read(alerts_of_account, refused_id)
    assert (stored.mail_stopped, stored.sends_mail) == ("bounced", False)
    # The owner cannot undo that; an operator can.
    assert (await system.ask(refused_id, alerts(None, email=True))).mail_stopped == "bounced"
    assert (await system.ask(refused_id, StopMail("unsubscribed"))).mail_stopped == "bounced"
    assert (await system.ask(refused_id, AllowMail())).sends_mail
    assert len(mailer.alerts) == 1


async def test_a_balance_that_hovers_is_mailed_once_in_a_pause(start_system: StartSystem) -> None:
    """The events for webhooks are not fewer; and what was mailed survives a restart of the actor."""
    began_at, later = utc_now(), timedelta()

    def now() -> datetime:
        return began_at + later

    system = await start_system(now=now)
    account_id, key_id = await system.open_account(2 * CREDIT)
    await add_webhook(system, account_id, "balance.below")
    await system.ask(account_id, alerts(CREDIT, email=True))

    async def cross() -> Counter[bool]:
        for _ in range(3):
            task = await system.ask(account_id, create_task(key_id, hold_micro=1_500_000))
            await system.ask(account_id, await settle_command(system.database, task.request_id, None))
        return Counter(event.receiver.startswith("mail:") for event in await events_of(system, account_id))

    assert await cross() == {False: 3, True: 1}
    system = await start_system(now=now)
    assert await cross() == {False: 6, True: 1}
    # As many alerts as are set: each threshold is beyond what is available.
    for number in range(5):
        await system.ask(account_id, alerts(10 * CREDIT + number, email=True))
        await system.ask(account_id, alerts(None, email=True))
    assert (await cross())[True] == 1
    later = MAIL_PAUSE
    await system.ask(account_id, alerts(CREDIT, email=True))
    assert (await cross())[True] == 2
    assert_audit_clean(system.database)


async def test_an_owner_who_unsubscribed_may_want_mail_again(system: ActorSystem) -> None:
    account_id, _ = await system.open_account()
    assert (await system.ask(account_id, StopMail("unsubscribed"))).sends_mail is False
    assert (await system.ask(account_id, alerts(None, email=False))).mail_stopped == "unsubscribed"
    assert (await system.ask(account_id, alerts(None, email=True))) == Alerts()
