"""The emulator's HTTP face: as much of the card provider's wire as this house and its customers' browsers speak."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from holdfast.providers.card.emulator import intents, reversals
from holdfast.providers.card.emulator.books import API_VERSION
from holdfast.providers.card.emulator.breaking import Breaker, broken
from holdfast.providers.card.emulator.controls import add_controls
from holdfast.providers.card.emulator.desk import Answer, Desk
from holdfast.providers.card.emulator.errors import WireError
from holdfast.providers.card.emulator.forms import Form, metadata, only, parse_form, required, string, whole
from holdfast.providers.card.emulator.objects import Charge, PaymentIntent
from holdfast.providers.card.emulator.rendering import Json, render, render_list

BODY_MAX_BYTES: Final = 1024 * 1024
PAGE: Final = ("limit", "starting_after", "ending_before", "expand")


class Wire:
    """How a request becomes an answer: key, outages, form, idempotency, errors."""

    def __init__(self, desk: Desk, api_key: str) -> None:
        self._desk = desk
        self._api_key = api_key.encode()

    async def post(self, call: str, allowed: Iterable[str], work: Callable[[Form], object]) -> Response:
        """Answer a request that changes something."""
        form = parse_form(await request.get_data())
        self._admit(form, call)
        outage = self._desk.take_outage(call)
        early = _early(outage)
        if early is not None:
            return early
        only(form, (*allowed, "expand", *(("client_secret",) if call == "payment_intents.confirm" else ())))
        named = f"{call} {request.path}"
        key = request.headers.get("Idempotency-Key")
        answer = await self._desk.once(key, named, form, lambda: work(form), outage)
        if outage is not None and outage.mode == "lose_answer":
            return broken()
        return _write(answer)

    async def get(self, call: str, allowed: Iterable[str], read: Callable[[Form], Json]) -> Response:
        """Answer a request that changes nothing."""
        form = parse_form(request.query_string)
        self._admit(form, call)
        outage = self._desk.take_outage(call)
        early = _early(outage)
        if early is not None:
            return early
        if outage is not None and outage.mode == "slow":
            await trio.sleep(outage.delay_s)
        if outage is not None and outage.mode == "lose_answer":
            return broken()
        only(form, (*allowed, "expand", *(("client_secret",) if call == "payment_intents.retrieve" else ())))
        return _write(Answer(200, msgspec.json.encode(read(form))))

    def _admit(self, form: Form, call: str) -> None:
        """The secret key opens everything; a publishable one, with a client secret, that one intent."""
        given = _given_key()
        if hmac.compare_digest(given, self._api_key):
            return
        if given.startswith(b"pk_") and call in ("payment_intents.retrieve", "payment_intents.confirm"):
            secret = string(form, "client_secret") or ""
            intent = self._desk.books.state.intents.get((request.view_args or {}).get("intent_id", ""))
            known = "" if intent is None else intent.client_secret
            if known and hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), known.encode()):
                return
        raise WireError(401, "Invalid API Key provided.")


def create_card_emulator(desk: Desk, *, api_key: str) -> QuartTrio:
    """The application over a desk."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    wire, books = Wire(desk, api_key), desk.books

    @app.errorhandler(WireError)
    async def refuse(fault: WireError) -> Response:
        return _write(Answer(fault.status, msgspec.json.encode(fault.body)))

    @app.errorhandler(HTTPException)
    async def unknown(fault: HTTPException) -> Response:
        path = request.path[:200]
        told = WireError(fault.code or 500, f"Unrecognized request ({request.method}: {path}).")
        return _write(Answer(told.status, msgspec.json.encode(told.body)))

    @app.after_request
    async def mark(response: Response) -> Response:
        response.headers["Request-Id"] = books.new_id("req")
        response.headers["Stripe-Version"] = API_VERSION
        if "Idempotency-Key" in request.headers:
            response.headers["Idempotency-Key"] = request.headers["Idempotency-Key"]
        return response

    _add_intents(app, wire, desk)
    _add_money(app, wire, desk)
    add_controls(app, desk)
    app.asgi_app = Breaker(app.asgi_app)  # type: ignore[method-assign]
    return app


def _add_intents(app: QuartTrio, wire: Wire, desk: Desk) -> None:
    books = desk.books

    def make(form: Form) -> Json:
        amount = whole(form, "amount")
        if amount is None:
            raise WireError(400, "Missing required param: amount.", code="parameter_missing", param="amount")
        automatic = form.get("automatic_payment_methods")
        intent = intents.create(
            books,
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
        return render(books, intent, form)

    def attempt(intent: PaymentIntent, form: Form) -> None:
        method = intents.begin(intent, string(form, "payment_method"))
        if method.decline is not None:
            raise intents.decline(books, intent, method.decline)
        if method.action:
            intents.require_action(books, intent)
        elif method.processing:
            intents.process(books, intent)
        else:
            intents.pay(books, intent)

    @app.post("/v1/payment_intents")
    async def create_intent() -> Response:
        allowed = (
            *("amount", "currency", "metadata", "capture_method", "automatic_payment_methods", "confirm"),
            *("payment_method", "payment_method_types", "description", "receipt_email", "return_url"),
        )
        return await wire.post("payment_intents.create", allowed, make)

    @app.get("/v1/payment_intents")
    async def list_intents() -> Response:
        def read(form: Form) -> Json:
            return render_list(books, "/v1/payment_intents", books.state.intents.values(), form)

        return await wire.get("payment_intents.list", PAGE, read)

    @app.get("/v1/payment_intents/<intent_id>")
    async def retrieve_intent(intent_id: str) -> Response:
        return await wire.get(
            "payment_intents.retrieve", (), lambda form: render(books, books.intent(intent_id), form)
        )

    @app.post("/v1/payment_intents/<intent_id>/confirm")
    async def confirm_intent(intent_id: str) -> Response:
        def confirm(form: Form) -> Json:
            intent = books.intent(intent_id)
            attempt(intent, form)
            return render(books, intent, form)

        return await wire.post("payment_intents.confirm", ("payment_method", "return_url"), confirm)

    @app.post("/v1/payment_intents/<intent_id>/cancel")
    async def cancel_intent(intent_id: str) -> Response:
        def cancel(form: Form) -> Json:
            intent = books.intent(intent_id)
            intents.cancel(books, intent, string(form, "cancellation_reason"))
            return render(books, intent, form)

        return await wire.post("payment_intents.cancel", ("cancellation_reason",), cancel)


def _add_money(app: QuartTrio, wire: Wire, desk: Desk) -> None:
    books, state = desk.books, desk.books.state

    def add_reading(
        name: str, kept: Callable[[], dict[str, Any]], one: Callable[[str], Any], *filters: str
    ) -> None:
        """GET a list, filtered by the fields named, and GET one."""

        async def list_() -> Response:
            def read(form: Form) -> Json:
                wanted = {each: string(form, each) for each in filters}
                found = [
                    thing
                    for thing in kept().values()
                    if all(value is None or getattr(thing, each) == value for each, value in wanted.items())
                ]
                return render_list(books, f"/v1/{name}", found, form)

            return await wire.get(f"{name}.list", (*PAGE, *filters), read)

        async def retrieve(thing_id: str) -> Response:
            return await wire.get(f"{name}.retrieve", (), lambda form: render(books, one(thing_id), form))

        app.add_url_rule(f"/v1/{name}", f"list_{name}", list_, methods=["GET"])
        app.add_url_rule(f"/v1/{name}/<thing_id>", f"retrieve_{name}", retrieve, methods=["GET"])

    add_reading("charges", lambda: state.charges, books.charge, "payment_intent")
    add_reading("refunds", lambda: state.refunds, books.refund, "charge", "payment_intent")
    add_reading("disputes", lambda: state.disputes, books.dispute, "charge", "payment_intent")
    add_reading("balance_transactions", lambda: state.transactions, books.transaction, "source", "type")
    add_reading("events", lambda: state.events, books.event, "type")

    @app.post("/v1/refunds")
    async def create_refund() -> Response:
        def make(form: Form) -> Json:
            amount, reason = whole(form, "amount"), string(form, "reason")
            made = reversals.refund(books, _charge_of(form), amount=amount, reason=reason, metadata=metadata(form))
            return render(books, made, form)

        def _charge_of(form: Form) -> Charge:
            charge_id = string(form, "charge")
            if charge_id is None:
                charge_id = books.intent(required(form, "payment_intent")).latest_charge
            if charge_id is None:
                raise WireError(400, "This PaymentIntent has no charge to refund.", param="payment_intent")
            return books.charge(charge_id)

        return await wire.post("refunds.create", ("charge", "payment_intent", "amount", "reason", "metadata"), make)


def _early(outage: Any) -> Response | None:
    """The answer of an outage that shows before anything is done."""
    if outage is None:
        return None
    if outage.mode == "refuse":
        return broken()
    if outage.mode == "rate_limit":
        told = WireError(429, "Too many requests.", code="rate_limit")
        response = _write(Answer(429, msgspec.json.encode(told.body)))
        response.headers["Retry-After"] = str(outage.retry_after_s)
        return response
    if outage.mode == "error":
        told = WireError(500, "Something went wrong on our end.", kind="api_error")
        return _write(Answer(500, msgspec.json.encode(told.body)))
    return None


def _automatic(given: Form) -> dict[str, object]:
    return {"enabled": given.get("enabled") == "true", "allow_redirects": given.get("allow_redirects", "always")}


def _given_key() -> bytes:
    """The key of the request, as a bearer or as the user of basic authentication."""
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[0]
        except ValueError:
            return b""
    return value.encode("utf-8", "surrogateescape") if kind.lower() == "bearer" else b""


def _write(answer: Answer) -> Response:
    response = Response(answer.body, status=answer.status, content_type="application/json")
    if answer.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response
