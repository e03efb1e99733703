"""Automatic top-ups of accounts on a real database, charged at the in-tree card provider by workers run by hand."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlalchemy import text
from tests.running_bank import RunningBank

from holdfast.actors.account.messages import (
    AdjustCredit,
    PutWebhook,
    Recharge,
    RemoveCard,
    SetAccess,
    SetAlerts,
    SetAutoTopUp,
    SwitchOffTopUp,
    TaskAccepted,
)
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.journaled import LogFields
from holdfast.actors.workers.order_checks import UNDECIDED_FOR, OrderChecks
from holdfast.actors.workers.reconciler import OrderSweeper, Reconciler, TopUpWorker
from holdfast.ledger.orders.top_ups import CHARGE_PERIOD_S, FAILED_PER_DAY_MAX
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.records.event_rows import MAIL_URL
from holdfast.providers.card.base import CardTimeout
from holdfast.telemetry.reports.conditions import Conditions

from .account_checks import CREDIT, Clock, StartSystem, acted_on, keyed, settle_command
from .order_checks import HARDY, silent_bank
from .top_up_setup import SETTINGS, Setup

BEGIN = datetime(2026, 11, 23, 10, tzinfo=UTC)


@pytest.fixture
def clock() -> Clock:
    """The clock of the service and of the provider."""
    return Clock(BEGIN)


@pytest.fixture
async def bank(tmp_path: Path, clock: Clock) -> AsyncIterator[RunningBank]:
    """A card emulator whose webhooks go nowhere."""
    async with silent_bank(tmp_path / "card", now=clock) as bank:
        yield bank


@pytest.fixture
async def setup(start_system: StartSystem, bank: RunningBank, clock: Clock) -> Setup:
    system = await start_system(now=clock)
    account_id, key_id = await system.open_account(8 * CREDIT)
    setup = Setup(system, bank, account_id, clock, key_id)
    await setup.save_card()
    return setup


async def test_credit_below_the_limit_is_topped_up_once(setup: Setup) -> None:
    on = await setup.switch_on()
    assert (on.enabled, on.open_order_id) == (True, None)
    await setup.spend(3)
    assert await setup.orders() == []
    accepted = await setup.spend(1)
    assert isinstance(accepted, TaskAccepted)
    [order] = await setup.orders()
    assert (order.request.origin, order.status, order.request.amount_micro) == ("top_up", "pending", 10 * CREDIT)
    assert (await setup.top_up()).open_order_id == order.order_id
    assert await setup.charges() == []
    assert await setup.work() == 1
    [charge] = await setup.charges()
    [after] = await setup.orders()
    assert (after.status, charge["amount"]) == ("credited", 1000)
    assert after.state.history[-1].reason == "top_up_succeeded"
    assert await setup.balance() == 18 * CREDIT
    top_up = await setup.top_up()
    assert (top_up.open_order_id, top_up.attempts.today, top_up.enabled) == (None, 1, True)
    await setup.spend(5)
    assert len(await setup.orders()) == 1
    setup.assert_audit_clean()


async def test_nothing_is_charged_while_it_is_off(setup: Setup) -> None:
    await setup.ask(SetAutoTopUp(SETTINGS, False))
    await setup.spend(7)
    assert await setup.orders() == []
    assert (await setup.top_up()).enabled is False


async def test_many_crossings_at_once_open_one_attempt(setup: Setup) -> None:
    await setup.switch_on()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(setup.spend, 1)
    assert len(setup.holds) == 8
    assert len(await setup.orders()) == 1
    for _ in range(3):
        await setup.work()
    assert len(await setup.charges()) == 1
    setup.assert_audit_clean()


async def test_two_processes_open_one_attempt(start_system: StartSystem, bank: RunningBank, clock: Clock) -> None:
    systems = [await start_system(now=clock, limits=HARDY) for _ in range(2)]
    account_id, key_id = await systems[0].open_account(20 * CREDIT)
    setups = [Setup(system, bank, account_id, clock, key_id) for system in systems]
    await setups[0].save_card()
    await setups[0].switch_on(below_micro=19 * CREDIT)

    async def spend(setup: Setup) -> None:
        # As much in all as one attempt adds: the credit after it is not below the limit, which would open another.
        for _ in range(5):
            try:
                await setup.spend(1)
            except (AskFault, Crashed):
                continue

    async with trio.open_nursery() as nursery:
        for setup in setups:
            nursery.start_soon(spend, setup)
    assert len(await setups[0].orders()) == 1
    async with trio.open_nursery() as nursery:
        for setup in setups:
            nursery.start_soon(setup.work)
    assert len(await setups[0].charges()) == 1
    setups[0].assert_audit_clean()


async def test_charges_that_are_not_enough_stop_at_the_limit_of_the_day(setup: Setup) -> None:
    await setup.switch_on(below_micro=100 * CREDIT, max_per_day=2)
    for _ in range(5):
        await setup.work()
    assert len(await setup.charges()) == 2
    top_up = await setup.top_up()
    assert (top_up.open_order_id, top_up.attempts.today) == (None, 2)
    assert top_up.resume_at == datetime(2026, 11, 24, tzinfo=UTC)
    await setup.spend(1)
    assert len(await setup.orders()) == 2
    # The next day begins without any operation.
    setup.clock.at = datetime(2026, 11, 24, 0, 0, 1, tzinfo=UTC)
    for _ in range(5):
        await setup.work()
    assert len(await setup.charges()) == 4
    setup.assert_audit_clean()
    # Five in a month.
    setup.clock.at += timedelta(days=1)
    for _ in range(5):
        await setup.work()
    assert len(await setup.charges()) == 5
    assert (await setup.top_up()).resume_at == datetime(2026, 12, 1, tzinfo=UTC)
    setup.assert_audit_clean()


async def test_credit_from_elsewhere_ends_the_wait_for_the_next_day(setup: Setup) -> None:
    await setup.switch_on(below_micro=100 * CREDIT, max_per_day=1)
    await setup.work()
    assert (await setup.top_up()).resume_at is not None
    await setup.ask(Recharge(200 * CREDIT))
    assert (await setup.top_up()).resume_at is None


async def test_switching_it_on_with_little_credit_charges_at_once(setup: Setup) -> None:
    await setup.spend(7)
    on = await setup.switch_on()
    [order] = await setup.orders()
    assert on.open_order_id == order.order_id
    # Setting it again opens no second one.
    assert (await setup.switch_on()).open_order_id == order.order_id
    assert len(await setup.orders()) == 1


async def test_an_adjustment_and_a_capture_can_be_crossings_too(setup: Setup) -> None:
    await setup.switch_on(below_micro=4 * CREDIT)
    accepted = await setup.spend(4)
    assert isinstance(accepted, TaskAccepted)
    await setup.ask(await settle_command(setup.database, accepted.request_id, None))
    assert await setup.orders() == []
    action_id = await acted_on(setup.database, setup.account_id)
    await setup.ask(AdjustCredit(-5 * CREDIT, action_id, "taken", keyed("adjustment")))
    assert len(await setup.orders()) == 1


async def test_a_disabled_account_is_not_charged(setup: Setup) -> None:
    await setup.switch_on()
    accepted = await setup.spend(2)
    assert isinstance(accepted, TaskAccepted)
    await setup.ask(SetAccess(True))
    refused = await setup.ask(SetAutoTopUp(SETTINGS, True))
    assert isinstance(refused, Refusal)
    assert refused.code == "account_disabled"
    action_id = await acted_on(setup.database, setup.account_id)
    await setup.ask(AdjustCredit(-3 * CREDIT, action_id, "taken", keyed("adjustment")))
    assert await setup.orders() == []


async def test_what_an_account_has_set_outlives_its_actor(setup: Setup, start_system: StartSystem) -> None:
    await setup.switch_on()
    other = Setup(await start_system(now=setup.clock), setup.bank, setup.account_id, setup.clock, setup.key_id)
    await other.spend(4)
    assert len(await setup.orders()) == 1
    assert (await setup.top_up()).cards[0].last4 == "4242"


# --------------------------------------------------------------------------------------- what the provider answers


@pytest.mark.parametrize(
    ("test_card", "reason"),
    [
        ("pm_card_chargeCustomerFail", "generic_decline"),
        ("pm_card_authenticationRequired", "authentication_required"),
    ],
)
async def test_a_decline_switches_it_off(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, test_card: str, reason: str
) -> None:
    await setup.save_card(test_card)
    await setup.switch_on()
    webhook = PutWebhook(new_id("wh"), is_new=True, url="https://a.example/", events=("top_up.failed",))
    await setup.ask(webhook)
    await setup.ask(SetAlerts(balance_below_micro=None, limit_share=1.0, email=True))
    await setup.spend(4)
    lines: dict[str, LogFields] = {}
    monkeypatch.setattr("holdfast.actors.runtime.journaled.log_event", lines.__setitem__)
    await setup.work()
    [order] = await setup.orders()
    assert lines["order failed"] == {
        "order_id": order.order_id,
        "account_id": setup.account_id,
        "provider": "cardprovider",
        "amount_micro": 10 * CREDIT,
        "reason": reason,
        "top_up_off": reason,
    }
    outbox = text("select url, kind, snapshot from outbox where account_id = :id order by url")
    found = await setup.database.read(lambda rows: rows.execute(outbox, {"id": setup.account_id}).all())
    failed = {"account_id": setup.account_id, "order_id": order.order_id, "amount": "10.00", "reason": reason}
    assert [(each.kind, each.snapshot) for each in found] == [("top_up.failed", failed)] * 2
    assert [each.url for each in found] == ["https://a.example/", MAIL_URL]
    assert (order.status, order.state.facts.attempt and order.state.facts.attempt.reason) == ("failed", reason)
    top_up = await setup.top_up()
    assert (top_up.enabled, top_up.off_reason, top_up.open_order_id) == (False, reason, None)
    assert top_up.attempts.today == 0
    await setup.spend(1)
    for kind in (TopUpWorker, Reconciler, OrderSweeper):
        setup.clock.at += timedelta(days=2)
        await setup.work(kind)
    assert len(await setup.orders()) == 1
    assert len(await setup.list_of("payment_intents")) == 1
    [order] = await setup.orders()
    assert (order.status, order.statuses.reconcile_status) == ("failed", "reconciled")
    setup.assert_audit_clean()


async def test_a_card_that_is_declined_is_charged_so_often_a_day(setup: Setup) -> None:
    await setup.save_card("pm_card_chargeCustomerFail")
    for _ in range(FAILED_PER_DAY_MAX):
        await setup.switch_on()
        if not setup.holds:
            await setup.spend(4)
        await setup.work()
        assert not (await setup.top_up()).enabled
    refused = await setup.ask(SetAutoTopUp(SETTINGS, True))
    assert isinstance(refused, Refusal)
    assert refused.code == "rate_limit_exceeded"
    assert len(await setup.orders()) == len(await setup.list_of("payment_intents")) == FAILED_PER_DAY_MAX
    setup.clock.at += timedelta(days=1)
    await setup.switch_on()
    assert len(await setup.orders()) == FAILED_PER_DAY_MAX + 1
    setup.assert_audit_clean()


async def test_a_slow_card_keeps_the_attempt_open_and_no_second_one_begins(setup: Setup) -> None:
    await setup.save_card("pm_card_slow")
    await setup.switch_on()
    await setup.spend(4)
    for _ in range(4):
        await setup.work()
        await setup.work(Reconciler)
        await setup.work(OrderSweeper)
        await setup.spend(1)
        setup.clock.at += timedelta(days=3)
    [intent] = await setup.list_of("payment_intents")
    [order] = await setup.orders()
    assert (order.status, order.statuses.processing_status) == ("pending", "processing")
    await setup.bank.press("payment_intents", intent["id"], "pay")
    await setup.work()
    [order] = await setup.orders()
    assert order.status == "credited"
    assert (await setup.top_up()).open_order_id is None
    setup.assert_audit_clean()


async def test_a_provider_that_refuses_the_card_switches_it_off(setup: Setup) -> None:
    top_up = await setup.top_up()
    await setup.switch_on()
    await setup.bank.provider.detach_card(top_up.cards[0].card_id)
    await setup.spend(4)
    await setup.work()
    [order] = await setup.orders()
    assert order.status == "failed"
    assert (await setup.top_up()).off_reason == "payment_method_unexpected_state"
    assert await setup.charges() == []


@pytest.mark.parametrize("mode", ["refuse", "error", "rate_limit", "lose_answer"])
@pytest.mark.parametrize("call", ["payment_intents.create", "payment_intents.retrieve"])
async def test_a_failing_provider_is_asked_again_and_charges_once(setup: Setup, call: str, mode: str) -> None:
    await setup.switch_on()
    await setup.spend(4)
    await setup.bank.outage(mode, call=call, times=2)
    for _ in range(2):
        await setup.work()
        await setup.spend(1)
        [order] = await setup.orders()
        assert order.status == "pending"
        assert (await setup.top_up()).open_order_id == order.order_id
    await setup.bank.recover()
    await setup.work()
    await setup.assert_charged_once()
    setup.assert_audit_clean()


async def test_a_lost_charge_is_found_after_its_key_is_forgotten(setup: Setup) -> None:
    await setup.switch_on()
    await setup.spend(4)
    await setup.bank.outage("lose_answer", call="payment_intents.create", times=1)
    await setup.work()
    assert len(await setup.charges()) == 1
    setup.clock.at += timedelta(seconds=CHARGE_PERIOD_S + 1)
    # What it does not remember it would charge again.
    await setup.bank.outage("error", call="payment_intents.create")
    await setup.work()
    [order] = await setup.orders()
    assert (order.status, order.state.history[-1].reason) == ("credited", "late_payment")
    assert len(await setup.charges()) == 1
    setup.assert_audit_clean()


async def test_a_charge_that_was_not_made_in_time_is_never_made_but_another_one(setup: Setup) -> None:
    await setup.switch_on()
    await setup.spend(4)
    await setup.bank.outage("refuse", call="payment_intents.create", times=1)
    await setup.work()
    setup.clock.at += timedelta(seconds=CHARGE_PERIOD_S)
    await setup.bank.outage("refuse", call="payment_intents.list", times=1)
    await setup.work()
    [order] = await setup.orders()
    assert order.status == "pending"
    await setup.work()
    late, other = await setup.orders()
    assert (late.status, late.state.history[-1].reason) == ("failed", "create_refused: not_charged_in_time")
    top_up = await setup.top_up()
    assert (top_up.enabled, top_up.open_order_id, top_up.attempts.today) == (True, other.order_id, 1)
    assert await setup.charges() == []
    for _ in range(2):
        await setup.work()
    [charge] = await setup.charges()
    assert charge["metadata"]["order_id"] == other.order_id
    setup.assert_audit_clean()


async def test_an_attempt_of_a_customer_unknown_to_the_provider_fails(setup: Setup, tmp_path: Path) -> None:
    """The service was given another account at the provider while the attempt was open."""
    await setup.switch_on()
    await setup.spend(4)
    async with silent_bank(tmp_path / "another", now=setup.clock) as setup.bank:
        await setup.work()
        [order] = await setup.orders()
        assert order.status == "pending"
        setup.clock.at += timedelta(seconds=CHARGE_PERIOD_S)
        await setup.work()
    [order] = await setup.orders()
    assert (order.status, order.state.history[-1].reason) == ("failed", "create_refused: resource_missing")
    top_up = await setup.top_up()
    assert (top_up.open_order_id, top_up.off_reason) == (None, "resource_missing")
    setup.assert_audit_clean()


async def test_operators_get_a_report_of_a_silent_provider(setup: Setup) -> None:
    reports: list[str] = []
    setup.system.reporter.listen(lambda report: reports.append(report.reason))
    setup.conditions = Conditions(setup.system.reporter)
    await setup.switch_on()
    await setup.spend(4)
    await setup.bank.outage("refuse", call="payment_intents.create", times=2)
    await setup.work()
    assert reports == []
    setup.clock.at += UNDECIDED_FOR + timedelta(seconds=1)
    await setup.work()
    [text_] = reports
    assert text_.startswith("it is not known whether a saved card was charged")
    await setup.work()
    assert [each for each in reports[1:] if each] == ["it is known whether the saved card was charged"]


# ------------------------------------------------------------------------------------------- a crash at each step


class Killed(BaseException):
    """Ends the worker where a kill would."""


@pytest.mark.parametrize(
    "where",
    ["before the call", "after the charge", "before it is attached", "after it is attached", "after the read"],
)
async def test_a_worker_that_dies_at_any_step_leaves_one_charge_and_one_credit(
    setup: Setup, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setup.switch_on()
    await setup.spend(4)
    provider = setup.bank.provider

    def dying(function: Any, *, before: bool) -> Any:
        async def call(*given: Any, **options: Any) -> Any:
            if not before:
                await function(*given, **options)
            raise Killed

        return call

    with monkeypatch.context() as patched:
        match where:
            case "before the call":
                patched.setattr(provider, "charge_saved_card", dying(provider.charge_saved_card, before=True))
            case "after the charge":
                patched.setattr(provider, "charge_saved_card", dying(provider.charge_saved_card, before=False))
            case "before it is attached" | "after it is attached":
                is_before, ask = where.startswith("before"), OrderChecks._ask
                patched.setattr(OrderChecks, "_ask", dying(ask, before=is_before))
            case _:
                patched.setattr(provider, "retrieve", dying(provider.retrieve, before=False))
        with pytest.raises(BaseExceptionGroup) as ended:
            await setup.work()
        assert ended.group_contains(Killed)
    await setup.spend(1)
    [order] = await setup.orders()
    assert order.status == "pending"
    for _ in range(2):
        await setup.work()
    await setup.assert_charged_once()
    setup.assert_audit_clean()


async def test_a_decision_that_is_void_opens_no_second_attempt(setup: Setup) -> None:
    await setup.switch_on()
    sql = "update accounts set version = version + 1 where id = :id"
    await setup.database.work(lambda rows: rows.execute(text(sql), {"id": setup.account_id}))
    # The decision is void, and made again on the newer row.
    await setup.spend(4)
    assert len(await setup.orders()) == 1
    assert (await setup.top_up()).attempts.today == 1
    setup.assert_audit_clean()


async def test_two_workers_at_once_make_one_charge(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if both have the order, as after a claim that has lapsed while its worker was slow."""
    await setup.switch_on()
    await setup.spend(4)
    [order] = await setup.orders()
    checks = OrderChecks(
        database=setup.database, accounts=setup.system.accounts, card=setup.bank.provider, env="test",
        now=setup.clock,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(checks.check_order, order)
    await setup.work()
    await setup.assert_charged_once()


# ----------------------------------------------------------------------------------- afterwards, and switching off


async def test_a_refund_takes_the_credit_and_is_not_charged_again_for_that(setup: Setup) -> None:
    await setup.switch_on()
    await setup.spend(4)
    await setup.work()
    [charge] = await setup.charges()
    await setup.bank.press("charges", charge["id"], "refund")
    await setup.work(Reconciler)
    [order] = await setup.orders()
    assert order.statuses.reversal_status == "refunded"
    assert await setup.balance() == 8 * CREDIT
    assert (await setup.top_up()).enabled
    assert len(await setup.orders()) == 1
    # A task that the credit does not suffice for is spending, too.
    refused = [await setup.spend(10) for _ in range(2)]
    assert [each.code for each in refused if isinstance(each, Refusal)] == ["insufficient_credit"] * 2
    assert len(await setup.orders()) == 2
    await setup.work()
    assert isinstance(await setup.spend(10), TaskAccepted)
    setup.assert_audit_clean()


async def test_a_disputed_top_up_switches_it_off(setup: Setup) -> None:
    await setup.switch_on()
    await setup.spend(4)
    await setup.work()
    [charge] = await setup.charges()
    await setup.bank.press("charges", charge["id"], "dispute")
    await setup.work(Reconciler)
    top_up = await setup.top_up()
    assert (top_up.enabled, top_up.off_reason) == (False, "disputed")
    assert await setup.balance() == 8 * CREDIT
    await setup.spend(1)
    assert len(await setup.orders()) == 1
    setup.assert_audit_clean()


async def test_an_operator_switches_it_off_and_an_open_attempt_is_finished(setup: Setup) -> None:
    await setup.switch_on(below_micro=100 * CREDIT)
    off = await setup.ask(SwitchOffTopUp())
    assert (off.enabled, off.off_reason) == (False, "operator")
    await setup.work()
    [order] = await setup.orders()
    assert order.status == "credited"
    await setup.spend(1)
    assert len(await setup.orders()) == 1


async def test_removing_the_only_card_switches_it_off(setup: Setup) -> None:
    on = await setup.switch_on()
    removed = await setup.ask(RemoveCard(on.cards[0].card_id))
    assert (removed.enabled, removed.off_reason, removed.cards) == (False, "card_removed", ())
    again = await setup.ask(RemoveCard(on.cards[0].card_id))
    assert isinstance(again, Refusal)
    refused = await setup.ask(SetAutoTopUp(SETTINGS, True))
    assert isinstance(refused, Refusal)
    assert (again.code, refused.code) == ("card_not_found", "card_required")


# ------------------------------------------------------------------------------------------------- random histories


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
async def test_no_history_charges_more_than_the_limits_or_loses_a_charge(
    setup: Setup, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the provider's own record: one charge a top-up, at most so many a day, and credit for each."""
    chance = random.Random(seed)
    cards = ["pm_card_visa", "pm_card_slow", "pm_card_chargeCustomerFail"]
    await setup.switch_on(max_per_day=2, max_per_month=6)
    recharged = 8 * CREDIT
    for _ in range(60):
        setup.clock.at += timedelta(minutes=chance.choice([1, 30, 300]))
        step = chance.random()
        if step < 0.4:
            await setup.spend(chance.randint(1, 4))
        elif step < 0.55 and setup.holds:
            request_id = setup.holds.pop(chance.randrange(len(setup.holds)))
            await setup.ask(await settle_command(setup.database, request_id, chance.choice([None, CREDIT])))
        elif step < 0.6:
            await setup.ask(Recharge(CREDIT))
            recharged += CREDIT
        elif step < 0.65:
            await setup.save_card(chance.choice(cards)) if len((await setup.top_up()).cards) < 10 else None
        elif step < 0.7:
            await setup.switch_on(max_per_day=2, max_per_month=6)
        elif step < 0.75:
            mode = chance.choice(["refuse", "lose_answer", "error", "rate_limit"])
            call = chance.choice(["payment_intents.create", "payment_intents.retrieve", "*"])
            await setup.bank.outage(mode, call=call, times=1)
            await setup.work()
            await setup.bank.recover()
        elif step < 0.8:
            for intent in await setup.list_of("payment_intents"):
                if intent["status"] == "processing":
                    await setup.bank.press("payment_intents", intent["id"], chance.choice(["pay", "decline"]))
        else:
            await setup.work(chance.choice([TopUpWorker, TopUpWorker, Reconciler, OrderSweeper]))
        opened = [each for each in await setup.orders() if each.status == "pending"]
        assert len(opened) <= 1
    await setup.bank.recover()
    for intent in await setup.list_of("payment_intents"):
        if intent["status"] == "processing":
            await setup.bank.press("payment_intents", intent["id"], "pay")
    for _ in range(4):
        await setup.ask(SwitchOffTopUp())
        await setup.work()
    orders, charges = await setup.orders(), await setup.charges()
    credited = {each.order_id: each for each in orders if each.status == "credited"}
    assert sorted(each["metadata"]["order_id"] for each in charges) == sorted(credited)
    days = [each.request.created_at.date() for each in credited.values()]
    assert all(days.count(day) <= 2 for day in days)
    assert len(days) <= 6
    costs = text("select coalesce(-sum(amount_micro), 0) from postings where ledger_account = 'revenue'")
    spent = await setup.database.read(lambda rows: int(rows.execute(costs).scalar_one()))
    assert await setup.balance() == recharged + 10 * CREDIT * len(charges) + spent
    setup.assert_audit_clean()


async def test_a_call_that_times_out_after_the_charge_is_charged_once(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setup.switch_on()
    await setup.spend(4)
    charge = setup.bank.provider.charge_saved_card

    async def too_late(*given: Any, **options: Any) -> str:
        await charge(*given, **options)
        raise CardTimeout("no response in time")

    with monkeypatch.context() as patched:
        patched.setattr(setup.bank.provider, "charge_saved_card", too_late)
        for _ in range(3):
            await setup.work()
    assert len(await setup.charges()) == 1
    await setup.work()
    [order] = await setup.orders()
    assert order.status == "credited"
    assert len(await setup.charges()) == 1
