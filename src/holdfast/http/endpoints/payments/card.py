"""Card payments: orders backed by a payment intent at the card provider, and the provider's webhook.

The order's row is durable before the provider is called, and the intent is created under the order's id, so that an
interrupted creation is resumed by the same request with its Idempotency-Key, or by the workers. The webhook
endpoint calls no external service for a payment, so that it responds quickly even if the provider does not.
"""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec
import structlog

from holdfast.actors.account.messages import (
    AttachIntent,
    ReceivePaymentEvent,
    RecordIntentRefused,
    SaveCard,
)
from holdfast.actors.runtime.faults import AccountAway
from holdfast.http.endpoints.payments.orders import CREATE_ERRORS, order_not_found, write_order
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.forwarding import ANSWER_S, forward_to_each
from holdfast.http.kit.other_cells import require_here, require_place
from holdfast.http.kit.refused_callbacks import SENDER_ERRORS, count_refused, refused_signature
from holdfast.http.kit.routes import IDEMPOTENCY_KEY, Outcome, Parameter, RouteTable
from holdfast.http.kit.values import ORDER_DECIMALS_MAX, read_amount, shown
from holdfast.http.schemas.payments import (
    CardOrderCreated,
    CardOrderRequest,
    EventIgnored,
    PaymentOrderBody,
    payment_order_body,
    render_order,
)
from holdfast.ledger.api_keys import ORDERS_WRITE
from holdfast.ledger.cells import Cells
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard
from holdfast.ledger.orders.transitions import can_expire
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.ledger.values import MICRO, format_amount, is_id, place_carried_by, place_of
from holdfast.persistence.queries.moves import find_unlisted, has_departed_since
from holdfast.persistence.queries.orders import order_of_account, order_of_event, top_up_of_account
from holdfast.providers.card.base import (
    CardFault,
    CardPayments,
    CardRateLimited,
    CardRejected,
    CardTimeout,
    IntentCreated,
    minor_from_micro,
)
from holdfast.providers.card.events import (
    EVENT_BYTES_MAX,
    SETUP_SUCCEEDED,
    SavedByCustomer,
    parse_card_event,
    parse_setup,
)
from holdfast.providers.signatures import verify_signature

route = RouteTable("Payments")

PROVIDER: Final = "cardprovider"
SIGNATURE_HEADER: Final = "Cardprovider-Signature"
PROVIDER_OWN_HEADER: Final = "Stripe-Signature"
"""The real provider's name of the same header; read if ours is absent."""

CARD_MIN_MICRO: Final = MICRO // 2
CARD_MAX_MICRO: Final = 999_999_990_000
"""The smallest and the largest payment that card providers accept: 0.50 and 999999.99."""

CARD_ERRORS: Final = (
    "provider_not_configured",
    "provider_unavailable",
    "provider_timeout",
    "provider_rejected",
    "provider_rate_limited",
)
"""The refusals of a request that needs the card provider."""
NOT_CONFIGURED: Final = Refusal(code="provider_not_configured", message="No card provider is configured.")
_CLIENT_SECRET = re.compile(rb'("client_secret"\s*:\s*)"(?:[^"\\]|\\.)*"', re.DOTALL)

log = structlog.get_logger(__name__)


@route(
    "POST",
    "/v2/control/payments/cardprovider",
    summary="Create a card payment order; the response has what the customer's browser needs to pay",
    auth=Auth.SESSION_OR_KEY,
    scope=ORDERS_WRITE,
    body=CardOrderRequest,
    reply=CardOrderCreated,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(*CREATE_ERRORS, "amount_too_small", *CARD_ERRORS),
)
async def create_card_order(call: Call) -> Outcome:
    """A failure at the provider leaves the order pending; a retry with the same Idempotency-Key resumes it.

    An order that an API key creates cannot be paid by a saved card.
    """
    settings, card = call.deps.settings, call.deps.payments.card
    amount_micro = read_card_amount(call.body(CardOrderRequest).amount, settings.order_max_micro)
    if card is None:
        if isinstance(amount_micro, Refusal):
            return amount_micro
        return NOT_CONFIGURED
    is_by_key = bool(call.known_key.key_id)
    saved = await call.read(partial(top_up_of_account, account_id=call.known_key.account_id))
    has_cards = saved is not None and bool(saved.cards) and saved.livemode == card.livemode
    written = await write_order(
        call,
        PROVIDER,
        amount_micro,
        ttl_s=settings.card_order_ttl_s,
        livemode=card.livemode,
        customer_id=saved.customer_id if saved is not None and has_cards and not is_by_key else None,
    )
    result = call.take_reply(written)
    if isinstance(result, Refusal):
        return result
    if is_by_key and result.order.request.customer_id is not None:
        # The owner's session made it: its secret and a saved card's id are all that it takes to charge that card.
        call.is_replay = False
        return IDEMPOTENCY_KEY_REUSED
    return await _with_intent(call, card, result.order)


@route(
    "POST",
    "/v2/control/payments/{order_id}/client-secret",
    summary="Retrieve again what the customer's browser needs to pay a card order",
    auth=Auth.SESSION,
    reply=CardOrderCreated,
    errors=("payment_order_not_found", "payment_order_expired", "payment_order_not_payable", *CARD_ERRORS),
)
async def continue_card_order(call: Call) -> Outcome:
    """For a page that is opened again. After a failed payment the order can be paid until it expires."""
    card, order_id, account_id = call.deps.payments.card, call.path["order_id"], call.session.account_id
    found = None
    if is_id(order_id):
        found = await call.read(partial(order_of_account, account_id=account_id, order_id=order_id))
    if found is None:
        return order_not_found(order_id)
    if card is None:
        return NOT_CONFIGURED
    if found.request.provider == PROVIDER and can_expire(found.request, found.status):
        if call.deps.now() < found.request.expires_at:
            return await _with_intent(call, card, found)
        code, ended = "payment_order_expired", "has expired"
    else:
        code, ended = "payment_order_not_payable", f"is {found.status} and cannot be paid by the customer"
    return Refusal(code=code, message=f"The payment order {shown(order_id)} {ended}.", final=True)


async def _with_intent(call: Call, card: CardPayments, order: Order) -> Outcome:
    intent = await _intent_of(call, card, order)
    if isinstance(intent, Refusal):
        # Asked for again by this request, whichever made the order.
        call.is_replay = False
        return intent
    # Every repetition of the request gets the same response, even if the order has changed since.
    state = msgspec.structs.replace(order.state, payment_id=intent.provider_payment_id)
    return render_order(
        CardOrderCreated,
        msgspec.structs.replace(order, state=state),
        client_secret=intent.client_secret,
        publishable_key=card.publishable_key,
    )


@route(
    "POST",
    "/v2/control/payments/cardprovider/webhook",
    summary="Receive a card provider's event about a payment",
    tag="Callbacks",
    auth=Auth.CARD_SIGNATURE,
    raw_body_bytes_max=EVENT_BYTES_MAX,
    raw_body_example={"id": "evt_1", "type": "payment_intent.succeeded", "data": {"object": {"id": "pi_1"}}},
    reply=PaymentOrderBody,
    other_reply=EventIgnored,
    parameters=(
        Parameter(
            name=SIGNATURE_HEADER,
            location="header",
            description=f"t=<unix>,v1=<hex HMAC-SHA256 of t.body>[,v1=…]; also read from {PROVIDER_OWN_HEADER}.",
            required=True,
        ),
    ),
    errors=(*SENDER_ERRORS, "payment_order_not_found", *CARD_ERRORS),
)
async def receive_card_webhook(call: Call) -> Outcome:
    """Respond with the order to applied, duplicate, stale and mismatching events, so that retries stop.

    Only an event that names an unknown order is refused, with 404, so that it is sent again. Events without effect
    are stored too.
    """
    outcome = await _receive_event(call)
    count_refused(call, PROVIDER, outcome)
    return outcome


async def _receive_event(call: Call) -> Outcome:
    deps, card, body = call.deps, call.deps.payments.card, call.raw
    secrets = () if card is None else card.webhook_secrets
    if card is None or not any(secret.strip() for secret in secrets):
        return NOT_CONFIGURED
    verdict = verify_signature(_signature(call), body, secrets, now=deps.wall())
    if verdict != "valid":
        return refused_signature(verdict, SIGNATURE_HEADER)
    event = parse_card_event(body)
    stored_body = _without_secrets(body)
    if isinstance(event, Refusal):
        # It has no usable id of its own to be stored under.
        await deps.payments.unmatched_events.store(
            f"sha256_{hashlib.sha256(body).hexdigest()}", "unreadable", event.code, stored_body
        )
        return event
    if event.type == SETUP_SUCCEEDED:
        setup = parse_setup(body)
        saved = None if setup is None else await _save_card(call, card, setup)
        if saved is not None:
            return saved if isinstance(saved, Refusal) else EventIgnored(event.event_id, ignored=False)
    if not event.is_handled:
        await deps.payments.unmatched_events.store(event.event_id, event.type, "ignored", stored_body)
        return EventIgnored(event.event_id)
    if event.order_id is not None:
        require_place(deps, call.request, place_carried_by(event.order_id))
    order = await deps.database.read(partial(order_of_event, provider=PROVIDER, event=event))
    if order is None and event.order_id is None:
        # It names a payment alone, and any cell may have its order.
        applied = await forward_to_each(deps, call.request, EventIgnored)
        if applied is not None:
            return applied
        if deps.cells is not None:
            await _require_all_asked(deps, deps.cells)
    if order is None:
        if event.order_id is not None:
            await require_here(deps, call.request, place_carried_by(event.order_id))
        await deps.payments.unmatched_events.store(event.event_id, event.type, "unmatched", stored_body)
        return EventIgnored(event.event_id) if event.order_id is None else order_not_found(event.order_id)
    command = ReceivePaymentEvent(order_id=order.order_id, event=event, body=stored_body)
    reply = await call.ask(deps.accounts.ref(order.account_id), command)
    return reply if isinstance(reply, Refusal) else payment_order_body(reply.order)


async def _require_all_asked(deps: Dependencies, cells: Cells) -> None:
    """Raise :class:`AccountAway` if there is a cell that was not asked for an order when it had it."""
    if await deps.database.read(partial(has_departed_since, since=timedelta(seconds=ANSWER_S), cells=cells)):
        raise AccountAway("the order may be of an account that was moved, to a cell that was not asked then")
    if await deps.database.read(partial(find_unlisted, cells=cells)):
        raise AccountAway("the order may be in a cell that is not in this process's list")


async def _save_card(call: Call, card: CardPayments, setup: SavedByCustomer) -> Refusal | AutoTopUp | None:
    """Save the card that a customer has set up, with what the provider says of it.

    None if the setup is not one of this service's, or the card was detached since. Refuses what a fault of the
    provider does, so that the event is sent again.
    """
    deps = call.deps
    require_place(deps, call.request, place_of(setup.account_id))
    known = await deps.database.read(partial(top_up_of_account, account_id=setup.account_id))
    if known is None:
        await require_here(deps, call.request, place_of(setup.account_id))
    if known is None or known.customer_id != setup.customer_id:
        return None
    try:
        found = await card.provider.retrieve_card(setup.card_id)
    except CardFault as fault:
        log.debug("card provider fault", account_id=setup.account_id, reason=str(fault))
        return refusal_of_card(fault)
    if found.customer_id != setup.customer_id:
        return None
    saved = SavedCard(
        card_id=found.card_id,
        brand=found.brand,
        last4=found.last4,
        exp_month=found.exp_month,
        exp_year=found.exp_year,
        saved_at=deps.now(),
    )
    return await call.ask(deps.accounts.ref(setup.account_id), SaveCard(saved))


def read_card_amount(text: str, max_micro: int) -> int | Refusal:
    """Parse the amount of a card payment. Refuses as ``read_amount``, and what card providers do not accept."""
    amount_micro = read_amount(text, max_micro=max_micro, decimals_max=ORDER_DECIMALS_MAX)
    if isinstance(amount_micro, Refusal):
        return amount_micro
    if amount_micro < CARD_MIN_MICRO:
        code, rule = "amount_too_small", f"below the minimum of {format_amount(CARD_MIN_MICRO)}"
    elif amount_micro > CARD_MAX_MICRO:
        code, rule = "amount_too_large", f"above the maximum of {format_amount(CARD_MAX_MICRO)}"
    else:
        return amount_micro
    return Refusal(code=code, message=f"The amount {shown(text)} is {rule}.", param="amount")


async def _intent_of(call: Call, card: CardPayments, order: Order) -> IntentCreated | Refusal:
    """Create the order's intent, or find the one created before, and attach it to the order."""
    deps, request = call.deps, order.request
    amount_minor = minor_from_micro(request.amount_micro, request.currency)
    try:
        create = partial(
            card.provider.create_intent,
            request.order_id,
            request.account_id,
            amount_minor,
            request.currency,
            env=deps.settings.env,
            customer_id=request.customer_id,
        )
        intent = await deps.payments.card_shares.run(request.account_id, create)
    except CardRejected as fault:
        recorded = await call.ask(
            deps.accounts.ref(request.account_id), RecordIntentRefused(request.order_id, fault.provider_code)
        )
        log.warning(
            "card provider refused an intent",
            order_id=request.order_id,
            code=fault.provider_code,
            param=fault.param,
            reason=fault.reason,
        )
        return recorded if isinstance(recorded, Refusal) else refusal_of_card(fault)
    except CardFault as fault:
        log.debug("card provider fault", order_id=request.order_id, reason=str(fault))
        return refusal_of_card(fault)
    attached = await call.ask(
        deps.accounts.ref(request.account_id), AttachIntent(request.order_id, intent.provider_payment_id)
    )
    return attached if isinstance(attached, Refusal) else intent


def refusal_of_card(fault: CardFault) -> Refusal:
    """Return the response to a fault of the card provider."""
    retry_after_s = None
    match fault:
        case CardRejected():
            message = "The card provider refused the request."
            return Refusal(code="provider_rejected", message=message, provider_code=fault.provider_code)
        case CardRateLimited():
            code, what = "provider_rate_limited", "limits the rate of calls"
            retry_after_s = fault.retry_after_s
        case CardTimeout():
            code, what = "provider_timeout", "did not respond in time"
        case _:
            code, what = "provider_unavailable", "cannot be reached"
    message = f"The card provider {what}; repeat the request with its Idempotency-Key."
    return Refusal(code=code, message=message, retry_after_s=retry_after_s)


def _without_secrets(body: bytes) -> bytes:
    """Return an event as it may be stored: without the client secret by which the customer pays."""
    return _CLIENT_SECRET.sub(rb"\1null", body)


def _signature(call: Call) -> str:
    headers = call.request.headers
    sent = headers.getlist(SIGNATURE_HEADER) or headers.getlist(PROVIDER_OWN_HEADER)
    return ",".join(sent)
