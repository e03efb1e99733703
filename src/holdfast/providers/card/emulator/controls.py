"""What only a stand-in has: buttons. Things done to payments from outside, webhooks and calls made to fail.

All of it is JSON under ``/control``; the page at ``/`` presses the same buttons. Nobody is asked for a key, since
the emulator listens on loopback in development only; a JSON body is insisted on so that no foreign web page can
press a button through somebody's browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from holdfast.providers.card.emulator import intents, reversals
from holdfast.providers.card.emulator.books import Books, Outage, State, WebhookFaults
from holdfast.providers.card.emulator.desk import Desk
from holdfast.providers.card.emulator.errors import WireError
from holdfast.providers.card.emulator.page import page_response
from holdfast.providers.card.emulator.postroom import ReleaseOrder

SHOWN_INTENTS_COUNT: Final = 50
SHOWN_EVENTS_COUNT: Final = 100


class Press(msgspec.Struct, frozen=True):
    """What may be said with a button; each takes what concerns it. Amounts in minor units, None for all of it."""

    amount: int | None = None
    amount_received: int | None = None
    currency: str | None = None
    decline_code: str = "generic_decline"
    reason: str | None = None
    pending: bool = False
    inquiry: bool = False


class Release(msgspec.Struct, frozen=True):
    """How to let held webhooks go."""

    order: ReleaseOrder = "as_is"
    seed: int = 0


class OwnEvent(msgspec.Struct, frozen=True):
    """An event of the tester's own making."""

    type: str
    object: dict[str, Any]


Button = Callable[[Books, str, Press], object]
S = TypeVar("S", bound=msgspec.Struct)


def _decline(books: Books, thing_id: str, press: Press) -> None:
    intents.decline(books, books.intent(thing_id), press.decline_code)


BUTTONS: Final[Mapping[tuple[str, str], Button]] = {
    ("payment_intents", "pay"): lambda books, key, press: intents.pay(
        books, books.intent(key), amount_received=press.amount_received, currency=press.currency
    ),
    ("payment_intents", "decline"): _decline,
    ("payment_intents", "require_action"): lambda books, key, _: intents.require_action(books, books.intent(key)),
    ("payment_intents", "process"): lambda books, key, _: intents.process(books, books.intent(key)),
    ("payment_intents", "cancel"): lambda books, key, press: intents.cancel(books, books.intent(key), press.reason),
    ("charges", "settle"): lambda books, key, _: intents.settle(books, books.charge(key).id),
    ("charges", "refund"): lambda books, key, press: reversals.refund(
        books, books.charge(key), amount=press.amount, reason=press.reason, pending=press.pending
    ),
    ("charges", "dispute"): lambda books, key, press: reversals.open_dispute(
        books,
        books.charge(key),
        amount=press.amount,
        reason=press.reason or "fraudulent",
        inquiry=press.inquiry,
    ),
    ("charges", "warn"): lambda books, key, _: reversals.warn_of_fraud(books, books.charge(key)),
    ("refunds", "succeed"): lambda books, key, _: reversals.finish_refund(books, books.refund(key)),
    ("refunds", "fail"): lambda books, key, press: reversals.fail_refund(
        books, books.refund(key), press.reason or "lost_or_stolen_card"
    ),
    ("disputes", "respond"): lambda books, key, _: reversals.respond(books, books.dispute(key)),
    ("disputes", "escalate"): lambda books, key, _: reversals.escalate(books, books.dispute(key)),
    ("disputes", "win"): lambda books, key, press: reversals.win(books, books.dispute(key), amount=press.amount),
    ("disputes", "lose"): lambda books, key, _: reversals.lose(books, books.dispute(key)),
    ("disputes", "close"): lambda books, key, _: reversals.close_inquiry(books, books.dispute(key)),
}


def add_controls(app: QuartTrio, desk: Desk) -> None:
    """Put the buttons and their page on the application."""
    books = desk.books

    @app.get("/")
    async def page() -> Response:
        return page_response()

    @app.get("/control/state")
    async def state() -> Response:
        return _json(show(books.state))

    @app.post("/control/<kind>/<thing_id>/<action>")
    async def press(kind: str, thing_id: str, action: str) -> Response:
        button = BUTTONS.get((kind, action))
        if button is None:
            raise WireError(404, f"There is no button {kind}/{action}.")
        said = await _body(Press)
        made = await desk.change(lambda: button(books, thing_id, said))
        return _json({"ok": True, "id": getattr(made, "id", None) or thing_id})

    @app.put("/control/webhooks")
    async def set_webhooks() -> Response:
        books.state.webhooks = await _body(WebhookFaults)
        await desk.change(lambda: None)
        return _json(books.state.webhooks)

    @app.post("/control/webhooks/release")
    async def release() -> Response:
        said = await _body(Release)
        return _json({"released": desk.postroom.release(said.order, said.seed)})

    @app.post("/control/events/<event_id>/resend")
    async def resend(event_id: str) -> Response:
        await _body(Press)
        desk.postroom.resend(books.event(event_id))
        return _json({"ok": True, "id": event_id})

    @app.post("/control/events")
    async def send_own() -> Response:
        said = await _body(OwnEvent)
        event = await desk.change(lambda: books.emit(said.type, said.object))
        return _json({"ok": True, "id": event.id})

    @app.post("/control/outages")
    async def add_outage() -> Response:
        outage = await _body(Outage)
        await desk.change(lambda: books.state.outages.append(outage))
        return _json(books.state.outages)

    @app.delete("/control/outages")
    async def lift_outages() -> Response:
        await desk.change(books.state.outages.clear)
        return _json([])


def show(state: State) -> Mapping[str, object]:
    """What the page shows: the newest payments with what hangs on them, the newest events, and all switches."""
    shown = list(state.intents.values())[: -SHOWN_INTENTS_COUNT - 1 : -1]
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
        "events": [
            {"id": event.id, "type": event.type, "created": event.created, "delivery": state.outbound.get(event.id)}
            for event in list(state.events.values())[: -SHOWN_EVENTS_COUNT - 1 : -1]
        ],
        "webhooks": state.webhooks,
        "outages": state.outages,
        "declines": intents.DECLINES,
        "dispute_reasons": reversals.DISPUTE_REASONS,
    }


def _of(kept: Mapping[str, Any], intent_id: str) -> list[Any]:
    return [each for each in kept.values() if each.payment_intent == intent_id]


async def _body(shape: type[S]) -> S:
    """The JSON body as ``shape``; an empty one is all defaults."""
    if request.mimetype != "application/json":
        raise WireError(415, "Controls take JSON.")
    raw = await request.get_data()
    try:
        return msgspec.json.decode(raw or b"{}", type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise WireError(400, f"Not understood: {fault}") from None


def _json(content: object) -> Response:
    return Response(
        msgspec.json.encode(content), content_type="application/json", headers={"Cache-Control": "no-store"}
    )
