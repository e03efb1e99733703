"""The emulator's HTTP API: the part of the card provider's API that Holdfast and its customers' browsers use."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from holdfast.standins.card import intents, reversals
from holdfast.standins.card.changes import Changes, Reply
from holdfast.standins.card.controls import add_controls
from holdfast.standins.card.errors import ApiError
from holdfast.standins.card.forms import Form, metadata, only, parse_form, required, string, whole
from holdfast.standins.card.objects import Charge, PaymentIntent
from holdfast.standins.card.rendering import Json, render, render_list
from holdfast.standins.card.state import API_VERSION

BODY_MAX_BYTES: Final = 1024 * 1024
PAGE: Final = ("limit", "starting_after", "ending_before", "expand")


class RequestHandler:
    """Turns a request into a response: API key, form, idempotency, errors."""

    def __init__(self, changes: Changes, api_key: str) -> None:
        self._changes = changes
        self._api_key = api_key.encode()

    async def post(self, call: str, allowed: Iterable[str], work: Callable[[Form], object]) -> Response:
        """Handle a request that changes something."""
        form = parse_form(await request.get_data())
        self._admit(form, call)
        only(form, (*allowed, "expand", *(("client_secret",) if call == "payment_intents.confirm" else ())))
        named = f"{call} {request.path}"
        key = request.headers.get("Idempotency-Key")
        return _write(await self._changes.once(key, named, form, lambda: work(form)))

    async def get(self, call: str, allowed: Iterable[str], read: Callable[[Form], Json]) -> Response:
        """Handle a request that changes nothing."""
        form = parse_form(request.query_string)
        self._admit(form, call)
        only(form, (*allowed, "expand", *(("client_secret",) if call == "payment_intents.retrieve" else ())))
        return _write(Reply(200, msgspec.json.encode(read(form))))

    def _admit(self, form: Form, call: str) -> None:
        """Authorize: the secret key allows everything; a publishable key with a client secret, that one intent."""
        given = _given_key()
        if hmac.compare_digest(given, self._api_key):
            return
        if given.startswith(b"pk_") and call in ("payment_intents.retrieve", "payment_intents.confirm"):
            secret = string(form, "client_secret") or ""
            intent = self._changes.store.state.intents.get((request.view_args or {}).get("intent_id", ""))
            known = "" if intent is None else intent.client_secret
            if known and hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), known.encode()):
                return
        raise ApiError(401, "Invalid API Key provided.")


def create_card_emulator(changes: Changes, *, api_key: str) -> QuartTrio:
    """Return the application that serves ``changes``."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    handler, store = RequestHandler(changes, api_key), changes.store

    @app.errorhandler(ApiError)
    async def refuse(fault: ApiError) -> Response:
        return _write(Reply(fault.status, msgspec.json.encode(fault.body)))

    @app.errorhandler(HTTPException)
    async def unknown(fault: HTTPException) -> Response:
        path = request.path[:200]
        error = ApiError(fault.code or 500, f"Unrecognized request ({request.method}: {path}).")
        return _write(Reply(error.status, msgspec.json.encode(error.body)))

    @app.after_request
    async def mark(response: Response) -> Response:
        response.headers["Request-Id"] = store.new_id("req")
        response.headers["Stripe-Version"] = API_VERSION
        if "Idempotency-Key" in request.headers:
            response.headers["Idempotency-Key"] = request.headers["Idempotency-Key"]
        return response

    _add_intents(app, handler, changes)
    _add_money(app, handler, changes)
    add_controls(app, changes)
    return app


def _add_intents(app: QuartTrio, handler: RequestHandler, changes: Changes) -> None:
    store = changes.store

    def create(form: Form) -> Json:
        amount = whole(form, "amount")
        if amount is None:
            raise ApiError(400, "Missing required param: amount.", code="parameter_missing", param="amount")
        automatic = form.get("automatic_payment_methods")
        intent = intents.create(
            store,
            amount=amount,
            currency=required(form, "currency"),
            metadata=metadata(form),
            capture_method=string(form, "capture_method") or "automatic_async",
            automatic_payment_methods=_automatic(automatic) if isinstance(automatic, dict) else None,
            payment_method=string(form, "payment_method"),
            description=string(form, "description"),
        )
        if string(form, "confirm") == "true":
            attempt(intent, form)
        return render(store, intent, form)

    def attempt(intent: PaymentIntent, form: Form) -> None:
        method = intents.begin(intent, string(form, "payment_method"))
        if method.decline is not None:
            raise intents.decline(store, intent, method.decline)
        if method.action:
            intents.require_action(store, intent)
        elif method.processing:
            intents.process(store, intent)
        else:
            intents.pay(store, intent)

    @app.post("/v1/payment_intents")
    async def create_intent() -> Response:
        allowed = (
            *("amount", "currency", "metadata", "capture_method", "automatic_payment_methods", "confirm"),
            *("payment_method", "payment_method_types", "description", "receipt_email", "return_url"),
        )
        return await handler.post("payment_intents.create", allowed, create)

    @app.get("/v1/payment_intents")
    async def list_intents() -> Response:
        def read(form: Form) -> Json:
            return render_list(store, "/v1/payment_intents", store.state.intents.values(), form)

        return await handler.get("payment_intents.list", PAGE, read)

    @app.get("/v1/payment_intents/<intent_id>")
    async def retrieve_intent(intent_id: str) -> Response:
        return await handler.get(
            "payment_intents.retrieve", (), lambda form: render(store, store.intent(intent_id), form)
        )

    @app.post("/v1/payment_intents/<intent_id>/confirm")
    async def confirm_intent(intent_id: str) -> Response:
        def confirm(form: Form) -> Json:
            intent = store.intent(intent_id)
            attempt(intent, form)
            return render(store, intent, form)

        return await handler.post("payment_intents.confirm", ("payment_method", "return_url"), confirm)

    @app.post("/v1/payment_intents/<intent_id>/cancel")
    async def cancel_intent(intent_id: str) -> Response:
        def cancel(form: Form) -> Json:
            intent = store.intent(intent_id)
            intents.cancel(store, intent, string(form, "cancellation_reason"))
            return render(store, intent, form)

        return await handler.post("payment_intents.cancel", ("cancellation_reason",), cancel)


def _add_money(app: QuartTrio, handler: RequestHandler, changes: Changes) -> None:
    store, state = changes.store, changes.store.state

    def add_reads(
        name: str, collection: Callable[[], dict[str, Any]], one: Callable[[str], Any], *filters: str
    ) -> None:
        """Add a GET of the list, filtered by the fields named, and a GET of one object."""

        async def list_() -> Response:
            def read(form: Form) -> Json:
                wanted = {each: string(form, each) for each in filters}
                found = [
                    thing
                    for thing in collection().values()
                    if all(value is None or getattr(thing, each) == value for each, value in wanted.items())
                ]
                return render_list(store, f"/v1/{name}", found, form)

            return await handler.get(f"{name}.list", (*PAGE, *filters), read)

        async def retrieve(thing_id: str) -> Response:
            return await handler.get(f"{name}.retrieve", (), lambda form: render(store, one(thing_id), form))

        app.add_url_rule(f"/v1/{name}", f"list_{name}", list_, methods=["GET"])
        app.add_url_rule(f"/v1/{name}/<thing_id>", f"retrieve_{name}", retrieve, methods=["GET"])

    add_reads("charges", lambda: state.charges, store.charge, "payment_intent")
    add_reads("refunds", lambda: state.refunds, store.refund, "charge", "payment_intent")
    add_reads("disputes", lambda: state.disputes, store.dispute, "charge", "payment_intent")
    add_reads("balance_transactions", lambda: state.transactions, store.transaction, "source", "type")
    add_reads("events", lambda: state.events, store.event, "type")

    @app.post("/v1/refunds")
    async def create_refund() -> Response:
        def create(form: Form) -> Json:
            amount, reason = whole(form, "amount"), string(form, "reason")
            refund = reversals.refund(
                store, _charge_of(form), amount=amount, reason=reason, metadata=metadata(form)
            )
            return render(store, refund, form)

        def _charge_of(form: Form) -> Charge:
            charge_id = string(form, "charge")
            if charge_id is None:
                charge_id = store.intent(required(form, "payment_intent")).latest_charge
            if charge_id is None:
                raise ApiError(400, "This PaymentIntent has no charge to refund.", param="payment_intent")
            return store.charge(charge_id)

        return await handler.post(
            "refunds.create", ("charge", "payment_intent", "amount", "reason", "metadata"), create
        )


def _automatic(given: Form) -> dict[str, object]:
    return {"enabled": given.get("enabled") == "true", "allow_redirects": given.get("allow_redirects", "always")}


def _given_key() -> bytes:
    """Return the API key of the request: its bearer token, or the user name of basic authentication."""
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[0]
        except ValueError:
            return b""
    return value.encode("utf-8", "surrogateescape") if kind.lower() == "bearer" else b""


def _write(reply: Reply) -> Response:
    response = Response(reply.body, status=reply.status, content_type="application/json")
    if reply.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response
