"""Card events as bytes: what is read of each type, what is ignored, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.orders.facts import (
    BalanceTransaction,
    DisputeMoney,
    OrderFacts,
    PaymentAttempt,
    PaymentEvent,
    PaymentFacts,
    RefundFacts,
    ReviewVerdict,
    StatedPayment,
)
from holdfast.ledger.refusals import Refusal
from holdfast.providers.card.base import micro_per_minor
from holdfast.providers.card.events import EVENT_BYTES_MAX, HANDLED_TYPES, parse_card_event

if TYPE_CHECKING:
    from tests.ledger.conftest import CardProvider


def body(found: object, kind: object = "payment_intent.succeeded", **event: Any) -> bytes:
    return json.dumps({"id": "evt_1", "type": kind, "created": 5, "data": {"object": found}} | event).encode()


def paid_by(charge_ids: tuple[str, ...], *, at: int, livemode: bool | None = None) -> PaymentFacts:
    """Return a payment of ten dollars."""
    stated = StatedPayment(amount_micro=10_000_000, currency="USD", livemode=livemode)
    return PaymentFacts(at=at, stated=(stated,), charge_ids=charge_ids)


def test_a_paid_intent_is_read_whole(provider: CardProvider) -> None:
    card = provider.read("payment_intent.succeeded", provider.intent(), id="evt_7", created=99)
    assert (card.event_id, card.at, card.is_handled) == ("evt_7", 99, True)
    assert (card.order_id, card.payment_id, card.charge_id) == ("ord_1", "pi_1", "ch_1")
    assert card.facts == OrderFacts(
        payments={"pi_1": paid_by(("ch_1",), livemode=False, at=99)}, charges={"ch_1": "pi_1"}
    )


def test_the_latest_charge_may_be_an_id_an_object_or_missing(provider: CardProvider) -> None:
    line = provider.balance("txn_1", 1000, fee=59)
    whole = provider.read(
        "payment_intent.succeeded", provider.intent(latest_charge=provider.charge(balance_transaction=line))
    )
    assert whole.charge_id == "ch_1"
    paid = whole.facts.payments["pi_1"]
    line_read = whole.facts.balance["txn_1"]
    assert whole.facts == OrderFacts(
        payments={"pi_1": paid_by(("ch_1",), livemode=False, at=paid.at)},
        charges={"ch_1": "pi_1"},
        balance={"txn_1": line_read},
        charge_balances={"ch_1": "txn_1"},
    )
    without = provider.read("payment_intent.succeeded", provider.intent(latest_charge=None))
    assert without.charge_id is None
    assert without.facts == OrderFacts(payments={"pi_1": paid_by((), livemode=False, at=without.at)})
    older = provider.intent(latest_charge=None, charges={"data": [provider.charge()]})
    assert provider.read("payment_intent.succeeded", older).facts.charges == {"ch_1": "pi_1"}


def test_omitted_nulls_are_accepted() -> None:
    bare = {"id": "pi_1", "amount": 1000, "currency": "usd", "metadata": {"order_id": "ord_1"}}
    card = parse_card_event(body(bare | {"status": "succeeded"}))
    assert isinstance(card, PaymentEvent)
    assert card.facts == OrderFacts(payments={"pi_1": paid_by((), at=5)})
    failed = parse_card_event(body(bare | {"status": "canceled"}, "payment_intent.canceled"))
    assert isinstance(failed, PaymentEvent)
    assert failed.facts == OrderFacts(attempt=PaymentAttempt(status="canceled", at=5))
    assert failed.reason == "payment_canceled"


def test_livemode_is_read_from_the_event_if_the_object_has_none() -> None:
    found = {"id": "pi_1", "status": "succeeded", "amount": 1, "currency": "usd"}
    card = parse_card_event(body(found, livemode=True))
    assert isinstance(card, PaymentEvent)
    assert card.facts.payments["pi_1"].stated[0].livemode is True


def test_reversals_warnings_and_reviews_name_only_their_payment(provider: CardProvider) -> None:
    refund = provider.read("refund.created", provider.refund_object("re_1", "pending", 250))
    assert (refund.order_id, refund.payment_id, refund.charge_id) == (None, "pi_1", "ch_1")
    pending = RefundFacts(
        status="pending", seen=("pending",), amount_micro=2_500_000, charge_id="ch_1", payment_id="pi_1"
    )
    assert refund.facts == OrderFacts(refunds={"re_1": pending}, charges={"ch_1": "pi_1"})
    dispute = provider.read(
        "charge.dispute.funds_withdrawn",
        provider.dispute_object("needs_response", moves=(-1000,), reason="general"),
    )
    assert (dispute.order_id, dispute.payment_id, dispute.charge_id) == (None, "pi_1", "ch_1")
    seen, line = dispute.facts.disputes["dp_1"], dispute.facts.balance["txn_dp_1"]
    assert (seen.status, seen.reason, seen.withdrawn, seen.reinstated) == (
        "needs_response",
        "general",
        False,
        False,
    )
    assert (line.source_id, line.source_type, line.reporting_category) == ("dp_1", "dispute", "dispute")
    money = DisputeMoney(dispute_id="dp_1", transaction_id="txn_dp_1", amount_micro=-10_000_000, currency="USD")
    assert seen.money == {"txn_dp_1": money}
    found = {"id": "issfr_1", "charge": {"id": "ch_1"}}
    warning = provider.read("radar.early_fraud_warning.created", found)
    assert (warning.payment_id, warning.charge_id) == (None, "ch_1")
    assert warning.facts == OrderFacts(warnings=("issfr_1",))
    review = provider.read("review.closed", {"id": "prv_1", "payment_intent": "pi_1", "closed_reason": "approved"})
    assert review.facts == OrderFacts(reviews={"prv_1": "approved"})


@pytest.mark.parametrize(
    ("status", "attempt"),
    [("requires_payment_method", "pending"), ("requires_confirmation", "pending"), ("requires_capture", "pending"),
     ("requires_action", "requires_action"), ("processing", "processing"), ("canceled", "canceled"),
     ("under_moonlight", "pending")],
)  # fmt: skip
@pytest.mark.parametrize("kind", [each for each in HANDLED_TYPES if each.startswith("payment_intent.")])
def test_an_intent_is_paid_by_its_status_whatever_its_event_is_called(
    provider: CardProvider, kind: str, status: str, attempt: str
) -> None:
    card = provider.read(kind, provider.intent(status=status))
    assert (card.facts.payments, card.facts.attempt and card.facts.attempt.status) == ({}, attempt)
    assert provider.apply(provider.order(), card).net_micro == 0
    assert provider.apply(provider.order(), provider.read(kind, provider.intent())).net_micro == 10_000_000
    refused = parse_card_event(body(provider.intent(status=None), kind))
    assert isinstance(refused, Refusal)


@pytest.mark.parametrize(
    "unpaid",
    [{"status": "failed"}, {"status": "pending"}, {"status": None}, {"captured": False}, {"paid": False},
     {"paid": None}],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["charge.succeeded", "charge.captured", "charge.updated"])
def test_a_charge_pays_by_its_status_whatever_its_event_is_called(
    provider: CardProvider, kind: str, unpaid: dict[str, object]
) -> None:
    card = provider.read(kind, provider.charge(**unpaid))
    assert card.facts == OrderFacts(charges={"ch_1": "pi_1"})
    assert provider.apply(provider.order(), card).net_micro == 0


@pytest.mark.parametrize("kind", [each for each in HANDLED_TYPES if "refund." in each])
@pytest.mark.parametrize(("status", "left"), [("failed", 1000), ("canceled", 1000), ("succeeded", 750)])
def test_a_refund_counts_by_its_status_whatever_its_event_is_called(
    provider: CardProvider, kind: str, status: str, left: int
) -> None:
    refund = provider.read(kind, provider.refund_object("re_1", status, 250))
    assert provider.apply(provider.order(), provider.paid(), refund).net_micro == left * 10_000


@pytest.mark.parametrize(("is_open", "kind", "verdict"), [(True, "closed", "open"), (False, "opened", "approved")])
def test_a_review_is_closed_by_its_object_whatever_its_event_is_called(
    provider: CardProvider, is_open: bool, kind: str, verdict: ReviewVerdict
) -> None:
    found = {"id": "prv_1", "payment_intent": "pi_1", "open": is_open, "closed_reason": "approved"}
    assert provider.read(f"review.{kind}", found).facts == OrderFacts(reviews={"prv_1": verdict})


@pytest.mark.parametrize("kind", ["customer.created", "payment_intent.created", "charge.failed", "payout.paid"])
def test_unhandled_event_types_are_ignored(provider: CardProvider, kind: str) -> None:
    card = provider.read(kind, provider.intent())
    assert (card.is_handled, card.facts) == (False, OrderFacts())


def test_a_foreign_order_id_is_not_used(provider: CardProvider) -> None:
    for metadata in ({}, None, {"order_id": "1234"}, {"order_id": "ord_" + "x" * 80}, {"order_id": 5}):
        card = provider.read("payment_intent.succeeded", provider.intent(metadata=metadata))
        assert (card.order_id, card.payment_id) == (None, "pi_1")
    nameless = provider.read("refund.created", {"id": "re_1", "amount": 1, "currency": "usd", "status": "pending"})
    assert (nameless.is_handled, nameless.facts) == (False, OrderFacts())


def test_an_unknown_status_adds_no_fact(provider: CardProvider) -> None:
    refund = provider.read("refund.updated", provider.refund_object("re_1", "under_moonlight", 5))
    assert refund.facts == OrderFacts()
    dispute = provider.read("charge.dispute.updated", provider.dispute_object("under_moonlight", moves=(-1000,)))
    assert dispute.facts.disputes["dp_1"].status is None
    order = provider.apply(provider.order(), provider.paid())
    assert provider.apply(order, dispute).net_micro == 0


def test_a_balance_transaction_may_omit_derived_fields(provider: CardProvider) -> None:
    def line(**fields: Any) -> BalanceTransaction:
        found = {"id": "txn_1", "amount": 1000, "currency": "usd"} | fields
        return provider.read("charge.updated", provider.charge(balance_transaction=found)).facts.balance["txn_1"]

    bare = line()
    assert (bare.fee_micro, bare.net_micro, bare.type, bare.reporting_category) == (0, 10_000_000, "", "")
    assert line(fee=59).net_micro == 9_410_000
    assert line(fee=59, net=940).net_micro == 9_400_000
    assert (line(exchange_rate=0.92).exchange_rate, line(exchange_rate="much").exchange_rate) == ("0.92", None)


@pytest.mark.parametrize(("currency", "micro"), [("USD", 10_000), ("JPY", 1_000_000), ("KWD", 1_000)])
def test_minor_units_follow_the_currency(currency: str, micro: int) -> None:
    assert micro_per_minor(currency) == micro


def test_free_text_of_the_provider_is_not_recorded_in_the_history(provider: CardProvider) -> None:
    error = {"message": "Card <script> declined", "code": "not a code at all"}
    event = provider.attempt("payment_failed", last_payment_error=error)
    assert event.reason == "payment_failed"


def test_an_event_survives_its_json_form(provider: CardProvider) -> None:
    line = provider.balance("txn_1", 1000, fee=59)
    events = [
        provider.charged(balance_transaction=line, amount_refunded=10),
        provider.attempt("processing"),
        provider.refund("re_1", "pending", 3),
        provider.dispute("closed", "won", moves=(-1000, 500)),
        provider.warning(),
        provider.review("opened", "rule"),
    ]
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=PaymentEvent) == event


GOOD = {"id": "pi_1", "amount": 1000, "currency": "usd", "metadata": {"order_id": "ord_1"}}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        b"[]",
        b"null",
        b"{}",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b" " * (EVENT_BYTES_MAX + 1),
        body(GOOD, id=None),
        body(GOOD, id=""),
        body(GOOD, id="evt 1"),
        body(GOOD, id="evt_\x00"),
        body(GOOD, id="e" * 300),
        body(GOOD, None),
        body(GOOD, "no such\ntype"),
        body(GOOD, created="5"),
        body(GOOD, created=True),
        body(GOOD, created=-1),
        body(GOOD, created=10**30),
        body(GOOD, data=None),
        body(GOOD, data={"object": []}),
        body(None),
        body(GOOD | {"id": 7}),
        body(GOOD | {"amount": "1000"}),
        body(GOOD | {"amount": 10.5}),
        body(GOOD | {"amount": True}),
        body(GOOD | {"amount": -1}),
        body(GOOD | {"amount": 10**20}),
        body(GOOD | {"currency": "us"}),
        body(GOOD | {"currency": "\x00\x00\x00"}),
        body(GOOD | {"currency": None}),
        body(GOOD | {"amount_received": "x"}),
        body(GOOD | {"amount_received": -5}),
        body(GOOD | {"latest_charge": {"id": "ch_1"}}),
        body({"id": "dp_1", "charge": "ch_1", "amount": 5}, "charge.dispute.created"),
        body(
            {"id": "dp_1", "charge": "ch_1", "amount": 5, "currency": "usd", "balance_transactions": [{}]},
            "charge.dispute.created",
        ),
    ],
)
def test_a_body_that_is_not_an_event_is_refused(raw: bytes) -> None:
    refused = parse_card_event(raw)
    assert isinstance(refused, Refusal)
    assert refused.code == "invalid_event"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = """
    id amount amount_received amount_captured amount_refunded currency status livemode latest_charge charge charges
    payment_intent balance_transaction balance_transactions metadata last_payment_error reason paid captured refunds
"""


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(HANDLED_TYPES),
    changes=st.dictionaries(st.sampled_from(FIELDS.split()), JSON, max_size=4),
    is_charge=st.booleans(),
)
def test_any_object_is_read_or_refused(
    provider: CardProvider, kind: str, changes: dict[str, object], is_charge: bool
) -> None:
    found = (provider.charge() if is_charge else provider.intent()) | changes
    read = parse_card_event(body(found, kind))
    if isinstance(read, Refusal):
        assert read.code == "invalid_event"
    elif read.is_handled:
        provider.apply(provider.order(), read)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    assert isinstance(parse_card_event(raw), Refusal)
