"""Alerts: each crossing is announced once, whatever operations cross it; and what is said about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.alerts.account_events import (
    PAYLOADS,
    SUBSCRIPTIONS,
    TEST,
    AccountClosing,
    AccountDisabled,
    AccountEmailChanged,
    AccountEventData,
    AccountEventKind,
    AnyEventKind,
    BalanceBelow,
    CreditExpiring,
    LimitReached,
    PaymentCredited,
    PaymentReversed,
    TopUpFailed,
    WebhookTest,
    account_payload,
    data_of,
    kind_of,
    receives,
    unknown_subscriptions,
)
from holdfast.ledger.alerts.alerts import (
    MAIL_PAUSE,
    MAILED,
    MAILS_IN_PAUSE_MAX,
    Alerts,
    balance_alert,
    mail_text,
)
from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.tasks.events import EVENT_KINDS
from holdfast.persistence.records.event_rows import MAIL_URL, WebhookRow, account_event_rows

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
EVENTS: tuple[AccountEventData, ...] = (
    BalanceBelow("acct_1", "1.50", "2.00"),
    LimitReached("acct_1", "key_1", "5.00", "day", "4.00", 0.8, "2026-11-24T00:00:00.000Z"),
    PaymentCredited("acct_1", "ord_1", "10.00", "12.00"),
    PaymentReversed("acct_1", "ord_1", "10.00", "2.00"),
    CreditExpiring("acct_1", 3, "3.00", "2026-12-01T00:00:00.000Z"),
    TopUpFailed("acct_1", None, "20.00", "card_declined"),
    AccountDisabled("acct_1", "2026-11-23T12:00:00.000Z"),
    AccountClosing("acct_1", "2026-11-30T12:00:00.000Z"),
    AccountEmailChanged("acct_1", "2026-11-23T12:00:00.000Z"),
    WebhookTest("acct_1", "wh_1"),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("balance"), st.integers(-10, 20)),
            st.tuples(st.just("held"), st.integers(0, 20)),
            st.tuples(st.just("alert"), st.one_of(st.none(), st.integers(1, 20))),
        ),
        max_size=30,
    )
)
def test_each_crossing_is_announced_once(changes: list[tuple[str, int | None]]) -> None:
    alerts, state = Alerts(), AccountState("acct_1")
    announced: list[tuple[str, str]] = []
    expected: list[tuple[str, str]] = []
    # The model: whether it was announced, at whatever threshold, and not crossed back since.
    is_below = False
    for what, value in changes:
        if what == "alert":
            alerts = msgspec.structs.replace(alerts, balance_below_micro=value)
        elif what == "balance":
            state.balance_micro = value or 0
        else:
            state.held_micro = value or 0
        alerts, event = balance_alert(alerts, state)
        if event is not None:
            announced.append((event.available_balance, event.balance_below))
        threshold = alerts.balance_below_micro
        if threshold is None or state.balance_micro - state.held_micro >= threshold:
            is_below = False
        elif not is_below:
            is_below = True
            available = state.balance_micro - state.held_micro
            sign = "-" if available < 0 else ""
            expected.append((f"{sign}0.{abs(available):06}", f"0.{threshold:06}"))
        assert bool(alerts.announced) == is_below
    assert [(float(a), float(b)) for a, b in announced] == [(float(a), float(b)) for a, b in expected]


def test_a_limit_is_announced_again_in_a_new_window_or_once_crossed_back() -> None:
    alerts = Alerts()
    steps = [(None, False), ("mon", True), ("mon", False), (None, False), ("mon", True), ("tue", True)]
    for marker, is_new in steps:
        alerts, found = alerts.noted("key_1", marker)
        assert found is is_new
    assert alerts.announced == {"key_1": "tue"}
    assert alerts.noted("key_2", None)[0] is alerts


def test_every_kind_has_data_that_survives_its_row() -> None:
    assert {kind_of(each) for each in EVENTS} == set(get_args(AccountEventKind)) == PAYLOADS.keys()
    for data in EVENTS:
        kind = kind_of(data)
        stored = msgspec.json.encode(data).decode()
        assert data_of(kind, stored) == data
        sent = account_payload("evt_1", kind, "2026-11-23T12:00:00.000Z", stored)
        shown = msgspec.to_builtins(msgspec.json.decode(sent, type=PAYLOADS[kind]))
        assert shown["data"] == msgspec.to_builtins(data)
        assert (shown["id"], shown["type"]) == ("evt_1", kind)


@pytest.mark.parametrize(
    ("events", "received"),
    [
        (("*",), {"task.failed", "task.processing", "balance.below"}),
        (("task.*",), {"task.failed", "task.processing"}),
        (("task.failed", "balance.below"), {"task.failed", "balance.below"}),
        ((TEST,), set()),
    ],
)
def test_subscriptions_are_kinds_all_of_tasks_or_all(events: tuple[str, ...], received: set[str]) -> None:
    kinds: tuple[AnyEventKind, ...] = ("task.failed", "task.processing", "balance.below")
    assert {kind for kind in kinds if receives(events, kind)} == received


def test_a_subscription_is_one_that_exists() -> None:
    assert set(EVENT_KINDS) < set(SUBSCRIPTIONS)
    assert unknown_subscriptions([*SUBSCRIPTIONS]) == []
    assert unknown_subscriptions(["task.failed", "task", "balance.*", TEST, ""]) == ["task", "balance.*", TEST, ""]


def test_an_event_goes_to_the_webhooks_that_receive_it_and_by_mail() -> None:
    webhooks = [
        WebhookRow("acct_1", f"wh_{name}", f"https://{name}.example", events, enabled, NOON, NOON)
        for name, events, enabled in (
            ("all", ("*",), True),
            ("tasks", ("task.*",), True),
            ("off", ("*",), False),
            ("own", ("balance.below",), True),
        )
    ]

    def receivers(data: AccountEventData, *, is_mailed: bool) -> list[tuple[str | None, str]]:
        rows = account_event_rows("acct_1", webhooks, data, NOON, is_mailed=is_mailed)
        assert len({row.event_id for row in rows}) == len(rows)
        return [(row.webhook_id, row.url) for row in rows]

    to_webhooks = [("wh_all", "https://all.example"), ("wh_own", "https://own.example")]
    assert receivers(EVENTS[0], is_mailed=True) == [*to_webhooks, (None, MAIL_URL)]
    assert receivers(EVENTS[0], is_mailed=False) == to_webhooks
    assert receivers(EVENTS[2], is_mailed=False) == to_webhooks[:1]


@pytest.mark.parametrize("data", EVENTS, ids=kind_of)
def test_what_needs_the_owner_is_mailed_unless_unwanted(data: AccountEventData) -> None:
    after, is_mailed = Alerts().mailed_about(data, NOON)
    assert is_mailed is (kind_of(data) in MAILED)
    assert bool(after.mailed) is is_mailed
    for silent in (Alerts(email=False), Alerts(mail_stopped="bounced"), Alerts(mail_stopped="unsubscribed")):
        assert silent.mailed_about(data, NOON) == (silent, False)


def test_a_subject_is_mailed_once_in_a_pause() -> None:
    alerts, pause_s = Alerts(), int(MAIL_PAUSE.total_seconds())
    sent = []
    for minute in range(0, 3 * pause_s // 60, 5):
        at = NOON + timedelta(minutes=minute)
        alerts, is_mailed = alerts.mailed_about(EVENTS[0], at)
        sent += [minute] * is_mailed
    assert sent == [0, 60, 120]
    # Each limit is a subject of its own; of credit that expires, each lot is not.
    other_window = msgspec.structs.replace(EVENTS[1], window="week")
    other_lot = msgspec.structs.replace(EVENTS[4], lot=4)
    alerts, found = Alerts(), list[bool]()
    for data in (EVENTS[1], other_window, EVENTS[1], EVENTS[4], other_lot, EVENTS[5]):
        alerts, is_mailed = alerts.mailed_about(data, NOON)
        found.append(is_mailed)
    assert found == [True, True, False, True, False, True]


def test_an_account_gets_few_mails_however_many_subjects_it_invents() -> None:
    alerts, sent = Alerts(), 0
    for number in range(5 * MAILS_IN_PAUSE_MAX):
        data = msgspec.structs.replace(EVENTS[1], api_key_id=f"key_{number}")
        alerts, is_mailed = alerts.mailed_about(data, NOON)
        sent += is_mailed
    assert sent == len(alerts.mailed) == MAILS_IN_PAUSE_MAX
    alerts, is_mailed = alerts.mailed_about(EVENTS[0], NOON + MAIL_PAUSE)
    assert (is_mailed, list(alerts.mailed)) == (True, ["balance.below"])


def test_each_mail_names_what_it_is_about() -> None:
    mailed = [each for each in EVENTS if kind_of(each) in MAILED]
    texts = [mail_text(each) for each in mailed]
    assert len({subject for subject, _ in texts}) == len(mailed) == 4
    for subject, text in texts:
        assert subject.isprintable()
        assert "None" not in subject + text
