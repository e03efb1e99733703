"""The emulator's HTTP API: the part of the card provider's API that Holdfast and its customers' browsers use."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from holdfast.ledger.values import Now, utc_now
from holdfast_emulators.card import intents, reversals, saved_cards
from holdfast_emulators.card.browser import add_browser_parts, challenge_url
from holdfast_emulators.card.changes import Changes, Reply, StateFile, WebhookSender, load_state
from holdfast_emulators.card.controls import add_controls
from holdfast_emulators.card.state import ApiError, Store
from holdfast_emulators.card.wire import (
    Form,
    Json,
    fields,
    integer,
    only,
    parse_form,
    render,
    render_list,
    required,
    string,
)
from holdfast_emulators.serving import RETRY_DELAYS_S, serve_app

BODY_MAX_BYTES: Final = 1024 * 1024
PUBLIC_CALLS: Final = ("payment_intents.retrieve", "payment_intents.confirm", "setup_intents.confirm")
"""What a publishable key allows, with the client secret of the intent."""

SETTLE_DELAY_S = 1.0


class RequestHandler:
    """Turns a request into a response: API key, form, idempotency, errors."""

    def __init__(self, changes: Changes, api_key: str) -> None:
        self._changes = changes
        self._api_key = api_key.encode()

    async def post(self, call: str, allowed: Iterable[str], work: Callable[[Form], object]) -> Response:
        """Handle a request that changes something."""
        form = self._admit(await request.get_data(), call, allowed)
        named = f"{call} {request.path}"
        key = request.headers.get("Idempotency-Key")
        return _write(await self._changes.once(key, named, form, lambda: work(form)))

    async def get(self, call: str, allowed: Iterable[str], read: Callable[[Form], Json]) -> Response:
        """Handle a request that changes nothing."""
        form = self._admit(request.query_string, call, allowed)
        return _write(Reply(200, msgspec.json.encode(read(form))))

    def _admit(self, raw: bytes | str, call: str, allowed: Iterable[str]) -> Form:
        """Authorize and return the form: the secret key allows everything, a publishable key one intent."""
        form = parse_form(raw)
        public = ("client_secret",) if call in PUBLIC_CALLS else ()
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        is_customer = bool(public) and given.startswith(b"pk_") and self._has_client_secret(form)
        if not is_customer and not hmac.compare_digest(given, self._api_key):
            raise ApiError(401, "Invalid API Key provided.")
        only(form, (*allowed, *public, "expand"))
        return form

    def _has_client_secret(self, form: Form) -> bool:
        object_id = (request.view_args or {}).get("object_id", "")
        state = self._changes.store.state
        intent = state.intents.get(object_id) or state.setup_intents.get(object_id)
        given = (string(form, "client_secret") or "").encode("utf-8", "surrogatepass")
        return intent is not None and hmac.compare_digest(given, intent.client_secret.encode())


def create_card_emulator(changes: Changes, *, api_key: str) -> QuartTrio:
    """Return the application that serves ``changes``."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    handler = RequestHandler(changes, api_key)

    @app.errorhandler(ApiError)
    async def refuse(fault: ApiError) -> Response:
        return _write(Reply(fault.status, msgspec.json.encode(fault.body)))

    @app.errorhandler(HTTPException)
    async def unknown(fault: HTTPException) -> Response:
        return await refuse(ApiError(fault.code or 500, f"Unrecognized request: {request.path[:200]}"))

    _add_intents(app, handler, changes)
    _add_saved_cards(app, handler, changes)
    _add_reads(app, handler, changes)

    @app.post("/v1/refunds")
    async def create_refund() -> Response:
        store = changes.store

        def create(form: Form) -> Json:
            charge_id = store.intent(required(form, "payment_intent")).latest_charge
            if charge_id is None:
                raise ApiError(400, "This PaymentIntent has no charge to refund.", param="payment_intent")
            amount, metadata = integer(form, "amount"), fields(form, "metadata")
            return render(
                store, reversals.refund(store, store.charge(charge_id), amount=amount, metadata=metadata), form
            )

        return await handler.post("refunds.create", ("payment_intent", "amount", "metadata"), create)

    add_browser_parts(app)
    add_controls(app, changes)
    return app


def _add_intents(app: QuartTrio, handler: RequestHandler, changes: Changes) -> None:
    store = changes.store

    @app.post("/v1/payment_intents")
    async def create_intent() -> Response:
        def create(form: Form) -> Json:
            required(form, "amount")
            automatic = fields(form, "automatic_payment_methods")
            customer = string(form, "customer")
            if customer is not None:
                store.customer(customer)
            card = None
            if string(form, "confirm") == "true":
                card = intents.saved_card_of(store, customer, required(form, "payment_method"))
            intent = intents.create(
                store,
                amount=integer(form, "amount") or 0,
                currency=required(form, "currency"),
                metadata=fields(form, "metadata"),
                automatic_payment_methods={**automatic, "enabled": True} if automatic else None,
                customer=customer,
            )
            if card is not None:
                intents.charge_saved(store, intent, card)
            return render(store, intent, form)

        allowed = (
            "amount", "currency", "metadata", "automatic_payment_methods", "customer", "payment_method", "confirm",
            "off_session", "error_on_requires_action",
        )  # fmt: skip
        return await handler.post("payment_intents.create", allowed, create)

    @app.post("/v1/payment_intents/<object_id>/confirm")
    async def confirm_intent(object_id: str) -> Response:
        def confirm(form: Form) -> Json:
            intent, return_url = store.intent(object_id), string(form, "return_url")
            redirect = None if return_url is None else {"url": challenge_url(intent), "return_url": return_url}
            intents.confirm(store, intent, string(form, "payment_method"), redirect)
            return render(store, intent, form)

        return await handler.post("payment_intents.confirm", ("payment_method", "return_url"), confirm)

    @app.post("/v1/payment_intents/<object_id>/cancel")
    async def cancel_intent(object_id: str) -> Response:
        def cancel(form: Form) -> Json:
            intent = store.intent(object_id)
            intents.cancel(store, intent, string(form, "cancellation_reason"))
            return render(store, intent, form)

        return await handler.post("payment_intents.cancel", ("cancellation_reason",), cancel)


def _add_saved_cards(app: QuartTrio, handler: RequestHandler, changes: Changes) -> None:
    store = changes.store

    @app.post("/v1/customers")
    async def create_customer() -> Response:
        def create(form: Form) -> Json:
            customer = saved_cards.create_customer(store, metadata=fields(form, "metadata"))
            return render(store, customer, form)

        return await handler.post("customers.create", ("metadata",), create)

    @app.post("/v1/setup_intents")
    async def create_setup_intent() -> Response:
        def create(form: Form) -> Json:
            customer = store.customer(required(form, "customer"))
            usage = string(form, "usage") or "off_session"
            intent = saved_cards.create_setup_intent(
                store, customer, usage=usage, metadata=fields(form, "metadata")
            )
            return render(store, intent, form)

        allowed = ("customer", "usage", "metadata", "automatic_payment_methods")
        return await handler.post("setup_intents.create", allowed, create)

    @app.post("/v1/setup_intents/<object_id>/confirm")
    async def confirm_setup_intent(object_id: str) -> Response:
        def confirm(form: Form) -> Json:
            intent = store.setup_intent(object_id)
            saved_cards.confirm(store, intent, string(form, "payment_method"))
            return render(store, intent, form)

        return await handler.post("setup_intents.confirm", ("payment_method", "return_url"), confirm)

    @app.post("/v1/payment_methods/<object_id>/detach")
    async def detach_payment_method(object_id: str) -> Response:
        def detach(form: Form) -> Json:
            card = store.payment_method(object_id)
            saved_cards.detach(store, card)
            return render(store, card, form)

        return await handler.post("payment_methods.detach", (), detach)


def _add_reads(app: QuartTrio, handler: RequestHandler, changes: Changes) -> None:
    store, state = changes.store, changes.store.state

    def add(name: str, collection: dict[str, Any], one: Callable[[str], object], *filters: str) -> None:
        """Add a GET of the list, filtered by the fields named, and a GET of one object."""

        async def list_() -> Response:
            def read(form: Form) -> Json:
                wanted = {each: value for each in filters if (value := string(form, each)) is not None}
                if "customer" in wanted:
                    store.customer(wanted["customer"])
                since = integer({**fields(form, "created")}, "gte") or 0
                found = [
                    thing
                    for thing in collection.values()
                    if thing.created >= since
                    and all(getattr(thing, each) == value for each, value in wanted.items())
                ]
                return render_list(store, f"/v1/{name}", found, form)

            return await handler.get(f"{name}.list", ("limit", "starting_after", "created", *filters), read)

        async def retrieve(object_id: str) -> Response:
            return await handler.get(f"{name}.retrieve", (), lambda form: render(store, one(object_id), form))

        app.add_url_rule(f"/v1/{name}", f"list_{name}", list_, methods=["GET"])
        app.add_url_rule(f"/v1/{name}/<object_id>", f"retrieve_{name}", retrieve, methods=["GET"])

    add("payment_intents", state.intents, store.intent, "customer")
    add("customers", state.customers, store.customer)
    add("setup_intents", state.setup_intents, store.setup_intent, "customer")
    add("payment_methods", state.payment_methods, store.payment_method, "customer")
    add("charges", state.charges, store.charge, "payment_intent")
    add("refunds", state.refunds, store.refund, "payment_intent")
    add("disputes", state.disputes, store.dispute, "payment_intent")
    add("events", state.events, store.event)


def _write(reply: Reply) -> Response:
    return Response(reply.body, status=reply.status, content_type="application/json")


async def serve_card_emulator(
    *,
    api_key: str,
    webhook_secret: str,
    webhook_url: Callable[[], str],
    files_dir: Path,
    bound: socket.socket | None = None,
    settle_delay_s: float = SETTLE_DELAY_S,
    retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    now: Now = utc_now,
    sender: type[WebhookSender] = WebhookSender,
    create: Callable[..., QuartTrio] = create_card_emulator,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the port. ``bound`` is as for :func:`serve_app`.

    ``api_key`` authorizes calls, ``webhook_secret`` signs events, ``webhook_url`` returns where to send them, or an
    empty string while there is no receiver. The state is stored in ``files_dir`` and loaded at the next start.
    ``sender`` and ``create`` are replaced by test harnesses that inject faults.

    Raises ``ValueError`` for an empty key or secret.
    """
    if not api_key.strip() or not webhook_secret.strip():
        raise ValueError("the card emulator needs an API key and a webhook signing secret")
    state = await trio.to_thread.run_sync(load_state, files_dir, limiter=trio.CapacityLimiter(1))
    store = Store(state, now=now)
    webhook_sender = sender(store, webhook_secret, webhook_url, now=now, retry_delays_s=retry_delays_s)
    changes = Changes(store, StateFile(store, files_dir), webhook_sender, settle_delay_s=settle_delay_s)
    app = create(changes, api_key=api_key)

    async with trio.open_nursery() as nursery:
        await nursery.start(changes.run)
        address = await nursery.start(partial(serve_app, app, bound=bound))
        task_status.started(urlsplit(address).port or 0)
