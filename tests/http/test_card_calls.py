"""Saved cards and automatic top-up over HTTP: the fields of each response, and each refusal."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import sqlalchemy
import trio
from msgspec.structs import replace
from tests.clients import code_of, refused
from tests.http.order_stand_ins import FakeCard

from holdfast.actors.account.messages import RecordCustomer, RemoveCard, SaveCard, SetAutoTopUp, SwitchOffTopUp
from holdfast.http.kit.dependencies import CARD_CALLS_MAX, CARD_CALLS_WAITING_MAX
from holdfast.ledger.orders.top_ups import CARDS_MAX, AutoTopUp, SavedCard, TopUpAttempts, TopUpSettings, utc_day
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import AutoTopUpRow
from holdfast.providers.card.base import CardDetails, CardTimeout, CardUnavailable, SetupIntentCreated
from holdfast.providers.signatures import sign

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api
    from tests.http.page_reader import PageReader

SETUP, CARDS, TOP_UP = "/v2/control/cards/setup", "/v2/control/cards", "/v2/control/auto-top-up"
ORDERS = "/v2/control/payments/cardprovider"
WEBHOOK = "/v2/control/payments/cardprovider/webhook"
SECRET = "card-webhook-secret"
BODY = {"below": "5.00", "amount": "10.00", "max_per_day": 2, "max_per_month": 10, "enabled": True}
SETTINGS = TopUpSettings(below_micro=5_000_000, amount_micro=10_000_000, max_per_day=2, max_per_month=10)


def card(api: Api, number: int = 1) -> SavedCard:
    return SavedCard(
        card_id=f"pm_{number}", brand="visa", last4="4242", exp_month=12, exp_year=2035, saved_at=api.now
    )


def known(api: Api, **fields: Any) -> AutoTopUp:
    state = AutoTopUp(account_id=api.account_id, customer_id="cus_1", cards=(card(api),))
    return replace(state, **fields)


async def store(api: Api, state: AutoTopUp) -> None:
    row = AutoTopUpRow.of(state)
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    await api.write(tables.auto_top_ups.insert().values(**values | {"state": msgspec.to_builtins(state)}))


async def put(api: Api, **changed: Any) -> httpx2.Response:
    return await api.as_session("PUT", TOP_UP, json={**BODY, **changed})


async def test_it_is_off_before_anything_is_set(api: Api) -> None:
    for response in (await api.as_session("GET", TOP_UP), await api.as_session("GET", TOP_UP)):
        assert response.json() == {
            "enabled": False,
            "status": "off",
            "below": None,
            "amount": None,
            "max_per_day": None,
            "max_per_month": None,
            "today": 0,
            "this_month": 0,
            "card": None,
            "open_order_id": None,
            "resumes_at": None,
            "disabled_reason": None,
            "disabled_at": None,
        }
    assert (await api.as_session("GET", CARDS)).json() == {"data": []}


@pytest.mark.parametrize(
    ("fields", "payer"), [({}, "cus_1"), ({"cards": ()}, None), ({"livemode": True}, None)]
)  # fmt: skip
async def test_saved_cards_can_pay_an_order(api: Api, fields: dict[str, Any], payer: str | None) -> None:
    rules, (provider, _) = api.use_order_rules(), api.configure_card()
    await store(api, known(api, **fields))
    created = (await api.as_session("POST", ORDERS, json={"amount": "10.00"})).json()
    again = await api.as_session("POST", f"/v2/control/payments/{created['order_id']}/client-secret")
    assert again.status_code == 200
    assert provider.payers == [payer, payer]
    assert rules.orders[created["order_id"]].request.customer_id == payer


async def test_a_key_orders_nothing_that_a_saved_card_can_pay(api: Api) -> None:
    """Nor does it get the secret of an order of the owner's, by the Idempotency-Key of that."""
    rules, (provider, _) = api.use_order_rules(), api.configure_card()
    await store(api, known(api))
    key = (await api.add_key(api.account_id, "key_o", scopes=("orders:write", "orders:read"))).secret
    sent: dict[str, Any] = {"json": {"amount": "10.00"}}
    created = await api.call("POST", ORDERS, credential=key, headers={"Idempotency-Key": "keys"}, **sent)
    order_id = created.json()["order_id"]
    assert (rules.orders[order_id].request.customer_id, provider.payers) == (None, [None])
    again = await api.call("POST", ORDERS, credential=key, headers={"Idempotency-Key": "keys"}, **sent)
    assert (again.json()["order_id"], again.headers["Idempotent-Replayed"]) == (order_id, "true")
    own = await api.as_session("POST", ORDERS, headers={"Idempotency-Key": "owners"}, **sent)
    assert rules.orders[own.json()["order_id"]].request.customer_id == "cus_1"
    stolen = await api.call("POST", ORDERS, credential=key, headers={"Idempotency-Key": "owners"}, **sent)
    refused(stolen, 422, "idempotency_key_reused")
    assert "secret" not in stolen.text
    path = f"/v2/control/payments/{own.json()['order_id']}/client-secret"
    refused(await api.call("POST", path, credential=key), 401, "wrong_credential_type")
    assert (await api.call("GET", f"/v2/control/payments/{order_id}", credential=key)).status_code == 200


async def test_what_is_set_is_shown(api: Api) -> None:
    attempts = TopUpAttempts(on=utc_day(api.now), today=1, this_month=4)
    state = known(
        api, settings=SETTINGS, attempts=attempts, off_reason="insufficient_funds", off_at=api.now,
        open_order_id="ord_1",
    )  # fmt: skip
    await store(api, state)
    found = (await api.as_session("GET", TOP_UP)).json()
    assert (found["status"], found["below"], found["amount"], found["max_per_day"]) == ("open", "5.00", "10.00", 2)
    assert (found["today"], found["this_month"], found["open_order_id"]) == (1, 4, "ord_1")
    assert (found["disabled_reason"], found["disabled_at"]) == ("insufficient_funds", "2026-11-20T12:00:00.000Z")
    shown = {
        "card_id": "pm_1",
        "brand": "visa",
        "last4": "4242",
        "exp_month": 12,
        "exp_year": 2035,
        "saved_at": "2026-11-20T12:00:00.000Z",
    }
    assert found["card"] == shown
    assert (await api.as_session("GET", CARDS)).json() == {"data": [shown]}


async def test_setting_it_asks_the_account(api: Api) -> None:
    api.configure_card()
    api.accounts.answer = known(api, settings=SETTINGS, enabled=True)
    response = await put(api)
    assert (response.status_code, response.json()["enabled"], response.json()["status"]) == (200, True, "on")
    assert api.accounts.asked[-1][1] == SetAutoTopUp(SETTINGS, True)
    off = {name: value for name, value in BODY.items() if name != "enabled"}
    await api.as_session("PUT", TOP_UP, json=off)
    assert api.accounts.asked[-1][1] == SetAutoTopUp(SETTINGS, False)


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"below": "-1"}, "invalid_amount", "below"),
        ({"below": "0"}, "invalid_amount", "below"),
        ({"below": "NaN"}, "invalid_amount", "below"),
        ({"below": 5}, "invalid_parameter", "below"),
        ({"amount": "-10.00"}, "invalid_amount", "amount"),
        ({"amount": "10.001"}, "invalid_amount", "amount"),
        ({"amount": "0.49"}, "amount_too_small", "amount"),
        ({"amount": "10000.01"}, "invalid_amount", "amount"),
        ({"max_per_day": 0}, "invalid_parameter", "max_per_day"),
        ({"max_per_day": 101}, "invalid_parameter", "max_per_day"),
        ({"max_per_day": 1.5}, "invalid_parameter", "max_per_day"),
        ({"max_per_month": -1}, "invalid_parameter", "max_per_month"),
        ({"max_per_month": None}, "invalid_parameter", "max_per_month"),
        ({"enabled": "yes"}, "invalid_parameter", "enabled"),
    ],
)
async def test_each_wrong_value_has_its_own_error(api: Api, changed: dict[str, Any], code: str, param: str) -> None:
    api.configure_card()
    error = refused(await put(api, **changed), 400, code)
    assert error["param"] == param
    assert api.accounts.asked == []


async def test_what_the_account_refuses_is_the_response(api: Api) -> None:
    api.configure_card()
    for refusal, status in ((ACCOUNT_DISABLED, 403), (Refusal(code="card_required", message="x"), 409)):
        api.accounts.answer = refusal
        refused(await put(api), status, refusal.code)


async def test_without_a_card_provider_nothing_is_saved_or_switched_on(api: Api) -> None:
    refused(await put(api), 503, "provider_not_configured")
    refused(await api.as_session("POST", SETUP), 503, "provider_not_configured")
    refused(await api.as_session("DELETE", f"{CARDS}/pm_1"), 503, "provider_not_configured")


async def test_saving_a_card_creates_its_customer_once(api: Api) -> None:
    fake, _ = api.configure_card()
    api.accounts.answer = AutoTopUp(account_id=api.account_id, customer_id=f"cus_{api.account_id}")
    response = await api.as_session("POST", SETUP)
    assert response.json() == {
        "setup_intent_id": f"seti_cus_{api.account_id}",
        "client_secret": f"seti_cus_{api.account_id}_secret",
        "publishable_key": "pk_test",
    }
    assert api.accounts.asked[-1][1] == RecordCustomer(f"cus_{api.account_id}", None)
    await store(api, known(api))
    again = await api.as_session("POST", SETUP)
    assert again.json()["setup_intent_id"] == "seti_cus_1"
    assert fake.customers == [api.account_id]


async def test_there_are_so_many_cards(api: Api) -> None:
    api.configure_card()
    await store(api, known(api, cards=tuple(card(api, number) for number in range(CARDS_MAX))))
    refused(await api.as_session("POST", SETUP), 409, "card_limit_reached")


async def test_a_fault_of_the_provider_saves_and_removes_nothing(api: Api) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.fault = CardTimeout("no response in time")
    refused(await api.as_session("POST", SETUP), 504, "provider_timeout")
    refused(await api.as_session("DELETE", f"{CARDS}/pm_1"), 504, "provider_timeout")
    assert api.accounts.asked == []


class HeldCard(FakeCard):
    """Answers no call until it may, and counts those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = trio.Event()
        self.callers: Counter[str] = Counter()

    async def create_setup_intent(self, customer_id: str, account_id: str, *, env: str) -> SetupIntentCreated:
        self.callers[account_id] += 1
        await self.may_answer.wait()
        return await super().create_setup_intent(customer_id, account_id, env=env)


async def test_one_accounts_calls_leave_the_provider_to_others(api: Api) -> None:
    held = HeldCard()
    api.configure_card(provider=held)
    await store(api, known(api))
    replies: list[httpx2.Response] = []

    async def set_up() -> None:
        replies.append(await api.as_session("POST", SETUP))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(CARD_CALLS_WAITING_MAX + 3):
                nursery.start_soon(set_up)
            # The others have their responses already, and each that waits has its turn.
            while len(replies) < 3 or held.callers[api.account_id] < CARD_CALLS_MAX:
                await trio.lowlevel.checkpoint()
            assert [(each.status_code, code_of(each)) for each in replies] == [(503, "overloaded")] * 3
            assert held.callers == {api.account_id: CARD_CALLS_MAX}
            await api.deps.payments.card_shares.run(api.other_account_id, trio.lowlevel.checkpoint)
            held.may_answer.set()
    assert Counter(each.status_code for each in replies) == {200: CARD_CALLS_WAITING_MAX, 503: 3}


async def test_a_card_is_detached_before_it_is_removed(api: Api) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.cards["pm_1"] = details("pm_1")
    refused(await api.as_session("DELETE", f"{CARDS}/pm_2"), 404, "card_not_found")
    api.accounts.answer = known(api, cards=())
    response = await api.as_session("DELETE", f"{CARDS}/pm_1")
    assert response.json() == {"card_id": "pm_1", "deleted": True}
    assert fake.cards["pm_1"].customer_id is None
    assert api.accounts.asked[-1][1] == RemoveCard("pm_1")


# ------------------------------------------------------------------------------------------------------ the webhook


def details(card_id: str, customer_id: str | None = "cus_1") -> CardDetails:
    return CardDetails(
        card_id=card_id, customer_id=customer_id, brand="visa", last4="4242", exp_month=12, exp_year=2035
    )


async def send(api: Api, *, secret: str = SECRET, **changed: Any) -> httpx2.Response:
    """The event of a card that the account's customer has set up."""
    intent = {
        "id": "seti_1", "object": "setup_intent", "status": "succeeded", "customer": "cus_1",
        "payment_method": "pm_9", "metadata": {"account_id": api.account_id, "env": "development"}, **changed,
    }  # fmt: skip
    event = {"id": "evt_1", "type": "setup_intent.succeeded", "created": 1, "data": {"object": intent}}
    body = json.dumps(event).encode()
    headers = {"Cardprovider-Signature": sign(secret, body, at=int(api.now.timestamp()))}
    return await api.http.post(WEBHOOK, content=body, headers=headers)


async def test_a_card_that_was_set_up_is_saved_with_what_may_be_shown(api: Api) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.cards["pm_9"] = details("pm_9")
    api.accounts.answer = known(api)
    response = await send(api)
    assert response.json() == {"event_id": "evt_1", "received": True, "ignored": False}
    [(account_id, command)] = api.accounts.asked
    assert account_id == api.account_id
    assert command == SaveCard(replace(card(api), card_id="pm_9"))


@pytest.mark.parametrize(
    "changed", [{"customer": "cus_2"}, {"metadata": {}}, {"metadata": {"account_id": "acct_9"}}]
)
async def test_a_card_of_someone_else_is_ignored(api: Api, changed: dict[str, Any]) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.cards["pm_9"] = details("pm_9")
    response = await send(api, **changed)
    assert response.json() == {"event_id": "evt_1", "received": True, "ignored": True}
    assert api.accounts.asked == []


async def test_a_card_that_was_detached_meanwhile_is_ignored(api: Api) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.cards["pm_9"] = details("pm_9", None)
    assert (await send(api)).json()["ignored"] is True
    assert api.accounts.asked == []


async def test_an_event_is_sent_again_if_the_card_cannot_be_read(api: Api) -> None:
    fake, _ = api.configure_card()
    await store(api, known(api))
    fake.fault = CardUnavailable("away")
    refused(await send(api), 502, "provider_unavailable")


async def test_a_forged_event_saves_no_card(api: Api) -> None:
    api.configure_card()
    await store(api, known(api))
    refused(await send(api, secret="wrong"), 401, "invalid_signature")
    assert api.accounts.asked == []


# -------------------------------------------------------------------------------------------------------- operators


async def test_an_operator_sees_it_and_switches_it_off(api: Api) -> None:
    await store(api, known(api, settings=SETTINGS, enabled=True))
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    path = f"/ops/api/accounts/{api.account_id}"
    seen = (await api.call("GET", path, headers=headers)).json()["auto_top_up"]
    assert (seen["enabled"], seen["amount"], seen["card"]["card_id"]) == (True, "10.00", "pm_1")
    api.accounts.answer = known(api, settings=SETTINGS, off_reason="operator", off_at=api.now)
    reason = {"reason": "stolen"}
    response = await api.call("POST", f"{path}/auto-top-up/disable", json=reason, headers=headers)
    assert (response.status_code, response.json()["disabled_reason"]) == (200, "operator")
    assert api.accounts.asked[-1][1] == SwitchOffTopUp()
    unknown = "/ops/api/accounts/acct_9/auto-top-up/disable"
    refused(await api.call("POST", unknown, json=reason, headers=headers), 404, "account_not_found")


async def test_operators_list_the_top_ups_that_were_switched_off(api: Api, browser: PageReader) -> None:
    for number in range(3):
        await api.add_account(f"acct_off{number}")
        off_at = api.now - timedelta(hours=number)
        off = known(
            api, account_id=f"acct_off{number}", settings=SETTINGS, off_reason="card_declined", off_at=off_at
        )
        await store(api, off)
    await store(api, known(api, settings=SETTINGS, enabled=True))
    await api.add_account("acct_bad")
    await api.write(
        sqlalchemy.text(
            "insert into auto_top_ups (account_id, off_at, state) values ('acct_bad', '2026-11-20T11:30:00Z', '[]')"
        )
    )
    path, listed = "/ops/api/switched-off-top-ups?limit=2", []
    first = (await browser.get(path)).json()
    assert first["unreadable"] == ["acct_bad"]
    rest = (await browser.get(f"{path}&cursor={first['next_cursor']}")).json()
    assert rest["next_cursor"] is None
    listed = first["data"] + rest["data"]
    assert [each["account_id"] for each in listed] == ["acct_off0", "acct_off1", "acct_off2"]
    assert listed[0]["email"] == "acct_off0@example.com"
    assert (listed[1]["auto_top_up"]["disabled_reason"], listed[1]["auto_top_up"]["amount"]) == (
        "card_declined",
        "10.00",
    )
    page = await browser.read("/ops/top-ups")
    for words in (
        "acct_off2@example.com",
        "card declined",
        "10.00",
        "4242",
        "Stored rows that cannot be read: acct_bad",
    ):
        assert words in page.text, words


async def test_an_operator_at_the_overview_sees_that_a_top_up_was_switched_off(
    api: Api, browser: PageReader
) -> None:
    for number, hours in enumerate((1, 23, 25)):
        await api.add_account(f"acct_off{number}")
        off_at = api.now - timedelta(hours=hours)
        await store(api, known(api, account_id=f"acct_off{number}", off_reason="card_declined", off_at=off_at))
    page = (await browser.get("/ops")).text
    assert '<a href="/ops/top-ups">Switched-off top-ups<span class="count warn">2</span></a>' in page
    [tile] = re.findall(r'<a class="tile warn" href="/ops/top-ups">(.*?)</a>', page, re.DOTALL)
    assert '<span class="value">2</span>' in tile
