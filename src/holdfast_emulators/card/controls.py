"""The emulator's control API: actions on payments, and resending an event.

Everything is JSON under ``/control``; the page at ``/`` uses the same endpoints. No key is required, since the
emulator listens on loopback in development only; the JSON content type is required so that no other web page can
call them through a developer's browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from holdfast_emulators.card import intents, reversals, saved_cards
from holdfast_emulators.card.browser import add_page
from holdfast_emulators.card.changes import Changes
from holdfast_emulators.card.state import ApiError, State, Store

PAGE_INTENTS_COUNT: Final = 50
PAGE_EVENTS_COUNT: Final = 100


class ActionOptions(msgspec.Struct, frozen=True):
    """The parameters of an action; each uses those it needs. Amounts in minor units, None for all of it."""

    amount: int | None = None
    amount_received: int | None = None
    currency: str | None = None
    decline_code: str = "generic_decline"
    reason: str | None = None
    payment_method: str = "pm_card_visa"
    pending: bool = False
    inquiry: bool = False


Action = Callable[[Store, str, ActionOptions], object]
S = TypeVar("S", bound=msgspec.Struct)


def _decline(store: Store, thing_id: str, options: ActionOptions) -> None:
    intents.decline(store, store.intent(thing_id), options.decline_code)


ACTIONS: Final[Mapping[tuple[str, str], Action]] = {
    ("payment_intents", "pay"): lambda store, key, options: intents.pay(
        store, store.intent(key), amount_received=options.amount_received, currency=options.currency
    ),
    ("payment_intents", "decline"): _decline,
    ("payment_intents", "require_action"): lambda store, key, _: intents.require_action(store, store.intent(key)),
    ("payment_intents", "fail_authentication"): lambda store, key, _: intents.fail_authentication(
        store, store.intent(key)
    ),
    ("payment_intents", "process"): lambda store, key, _: intents.process(store, store.intent(key)),
    ("payment_intents", "cancel"): lambda store, key, options: intents.cancel(
        store, store.intent(key), options.reason
    ),
    ("setup_intents", "confirm"): lambda store, key, options: saved_cards.confirm(
        store, store.setup_intent(key), options.payment_method
    ),
    ("charges", "settle"): lambda store, key, _: intents.settle(store, key),
    ("charges", "refund"): lambda store, key, options: reversals.refund(
        store, store.charge(key), amount=options.amount, pending=options.pending
    ),
    ("charges", "dispute"): lambda store, key, options: reversals.open_dispute(
        store,
        store.charge(key),
        amount=options.amount,
        reason=options.reason or "fraudulent",
        inquiry=options.inquiry,
    ),
    ("charges", "warn"): lambda store, key, _: reversals.issue_fraud_warning(store, store.charge(key)),
    ("refunds", "succeed"): lambda store, key, _: reversals.finish_refund(store, store.refund(key)),
    ("refunds", "fail"): lambda store, key, _: reversals.fail_refund(store, store.refund(key)),
    ("disputes", "respond"): lambda store, key, _: reversals.respond(store, store.dispute(key)),
    ("disputes", "escalate"): lambda store, key, _: reversals.escalate(store, store.dispute(key)),
    ("disputes", "win"): lambda store, key, options: reversals.win(
        store, store.dispute(key), amount=options.amount
    ),
    ("disputes", "lose"): lambda store, key, _: reversals.lose(store, store.dispute(key)),
    ("disputes", "close"): lambda store, key, _: reversals.close_inquiry(store, store.dispute(key)),
}


def add_controls(app: QuartTrio, changes: Changes) -> None:
    """Add the control endpoints and their page to the application."""
    store = changes.store

    add_page(app, "/", "page.html", "frame-ancestors 'none'; img-src data:")

    @app.get("/control/state")
    async def state() -> Response:
        return json_response(show(store.state))

    @app.post("/control/<kind>/<thing_id>/<action>")
    async def act(kind: str, thing_id: str, action: str) -> Response:
        run = ACTIONS.get((kind, action))
        if run is None:
            raise ApiError(404, f"The action '{kind}/{action}' does not exist.")
        options = await read_body(ActionOptions)
        result = await changes.apply(lambda: run(store, thing_id, options))
        return json_response({"ok": True, "id": getattr(result, "id", None) or thing_id})

    @app.post("/control/events/<event_id>/resend")
    async def resend(event_id: str) -> Response:
        await read_body(ActionOptions)
        changes.webhook_sender.start([store.event(event_id)])
        return json_response({"ok": True, "id": event_id})


def show(state: State) -> Mapping[str, object]:
    """Return what the page shows: the newest payments with their objects and the newest events."""
    shown = list(state.intents.values())[: -PAGE_INTENTS_COUNT - 1 : -1]
    return {
        "payments": [
            {
                "intent": {**msgspec.to_builtins(intent), "client_secret": None},
                "charges": _of(state.charges, intent.id),
                "refunds": _of(state.refunds, intent.id),
                "disputes": _of(state.disputes, intent.id),
            }
            for intent in shown
        ],
        "setups": [
            {**msgspec.to_builtins(each), "client_secret": None}
            for each in list(state.setup_intents.values())[: -PAGE_INTENTS_COUNT - 1 : -1]
        ],
        "events": [
            {"id": event.id, "type": event.type, "created": event.created, "delivery": state.outbound.get(event.id)}
            for event in list(state.events.values())[: -PAGE_EVENTS_COUNT - 1 : -1]
        ],
        "declines": intents.DECLINES,
        "saved_cards": [*intents.SAVED_CARDS],
        "dispute_reasons": reversals.DISPUTE_REASONS,
    }


def _of(collection: Mapping[str, Any], intent_id: str) -> list[Any]:
    return [each for each in collection.values() if each.payment_intent == intent_id]


async def read_body(shape: type[S]) -> S:
    """Parse the JSON body as ``shape``; an empty one is all defaults."""
    if request.mimetype != "application/json":
        raise ApiError(415, "The content type must be application/json.")
    raw = await request.get_data()
    try:
        return msgspec.json.decode(raw or b"{}", type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise ApiError(400, f"The body is not valid: {fault}") from None


def json_response(content: object) -> Response:
    return Response(
        msgspec.json.encode(content), content_type="application/json", headers={"Cache-Control": "no-store"}
    )
