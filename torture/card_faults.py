"""Faults for the card emulator: calls that fail and webhooks that are lost, delayed, duplicated or reordered.

The emulator itself has no faults. This module replaces its webhook sender, wraps its application and adds control
endpoints: ``PUT /control/webhooks``, ``POST /control/webhooks/release``, and ``POST`` and ``DELETE
/control/outages``. The faults are not stored: a restart ends them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response, g, request
from quart_trio import QuartTrio

from holdfast_emulators.card.app import create_card_emulator, serve_card_emulator
from holdfast_emulators.card.changes import SIGNATURE_HEADER, Changes, Reply, WebhookSender
from holdfast_emulators.card.controls import json_response, read_body
from holdfast_emulators.card.state import ApiError, Event, Store
from holdfast_emulators.serving import SignedSender

ABORT_HEADER = "x-abort-connection"
SERVER_ERROR = "Something went wrong on our end."

DelayS = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Outage(msgspec.Struct, kw_only=True):
    """A fault to inject. ``call`` is the name of a call such as ``payment_intents.create``, or ``*``.

    ``refuse`` aborts the connection before the request is handled, ``lose_answer`` after it; ``slow`` delays the
    response by ``delay_s``, or until the outages are removed; ``error`` is a transient 500, ``error_kept`` one that
    is stored under the idempotency key. ``times`` None lasts until removed.
    """

    call: str = "*"
    mode: Literal["refuse", "lose_answer", "slow", "rate_limit", "error", "error_kept"]
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None
    delay_s: DelayS = 30.0
    retry_after_s: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 1


class WebhookFaults(msgspec.Struct, kw_only=True):
    """Faults in the delivery of webhooks. ``types`` empty means all; ``hold`` retains them until released."""

    drop: bool = False
    hold: bool = False
    duplicate: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    reorder: bool = False
    delay_s: DelayS = 0.0
    wrong_signature: bool = False
    types: list[str] = []


class Release(msgspec.Struct, frozen=True):
    """How to release held webhooks."""

    order: Literal["as_is", "reversed", "shuffled"] = "as_is"
    seed: int = 0


class FaultySender(WebhookSender):
    """Delivers events subject to ``faults``."""

    def __init__(self, store: Store, secret: str, webhook_url: Callable[[], str], **options: Any) -> None:
        super().__init__(store, secret, webhook_url, **options)
        self.faults = WebhookFaults()
        self._outbound = store.state.outbound
        self._wrongly_signed = partial(
            SignedSender, "card", f"not {secret}", header=SIGNATURE_HEADER, now=options["now"]
        )

    def send(self, events: list[Event]) -> None:
        """Deliver the events of one change, as far as no fault prevents it."""
        batch: list[Event] = []
        for event in events:
            if self._affects(event) and (self.faults.drop or self.faults.hold):
                self._outbound[event.id].state = "dropped" if self.faults.drop else "held"
            else:
                batch.append(event)
        self.start(batch[::-1] if self.faults.reorder else batch)

    def release(self, how: Release) -> int:
        """Send all held events; returns how many."""
        held = self.in_state("held")
        if how.order == "reversed":
            held.reverse()
        elif how.order == "shuffled":
            random.Random(how.seed).shuffle(held)
        self.start(held)
        return len(held)

    async def deliver(self, nursery: trio.Nursery, batch: list[Event]) -> None:
        """Attempt each event once, after the delay and as often as the faults of this moment require."""
        faults = self.faults
        for event in batch:
            if self._affects(event):
                await trio.sleep(faults.delay_s)
                for _ in range(faults.duplicate):
                    nursery.start_soon(self.attempt, event)
            await super().deliver(nursery, [event])

    async def attempt(self, event: Event) -> bool:
        """Send an event once, wrongly signed while that fault is set."""
        if not self.faults.wrong_signature or not self._affects(event):
            return await super().attempt(event)
        self._outbound[event.id].tries += 1
        sender = self._wrongly_signed()
        try:
            return await sender.send(self._url(), msgspec.json.encode(event))
        finally:
            with trio.CancelScope(shield=True):
                await sender.close()

    def _affects(self, event: Event) -> bool:
        return not self.faults.types or event.type in self.faults.types


class Outages:
    """The faults to inject into the next calls."""

    def __init__(self) -> None:
        self.coming: list[Outage] = []
        self._removed = trio.Event()

    def take(self, call: str) -> Outage | None:
        """Return the fault to inject into this call, and count it."""
        for outage in self.coming:
            if outage.call in ("*", call):
                if outage.times is not None:
                    outage.times -= 1
                    if outage.times <= 0:
                        self.coming.remove(outage)
                return outage
        return None

    async def delay(self, outage: Outage) -> None:
        """Wait as long as a slow call takes."""
        with trio.move_on_after(outage.delay_s):
            await self._removed.wait()

    def remove(self) -> None:
        """Remove all; calls that are delayed go on."""
        self.coming.clear()
        self._removed.set()
        self._removed = trio.Event()


_failing: ContextVar[Outage | None] = ContextVar("failing", default=None)
"""The outage of the running request."""


def create_faulty_emulator(changes: Changes, *, api_key: str) -> QuartTrio:
    """Return the emulator's application with outages and the endpoints that control faults."""
    outages = Outages()
    run_once = changes.run_once

    async def run_once_or_fail(key: str | None, fingerprint: str, work: Callable[[], object]) -> Reply:
        outage = _failing.get()

        def fail() -> object:
            raise ApiError(500, SERVER_ERROR, kind="api_error")

        is_stored = outage is not None and outage.mode == "error_kept"
        reply = await run_once(key, fingerprint, fail if is_stored else work)
        if outage is not None and outage.mode == "slow":
            # The key is in use meanwhile.
            await outages.delay(outage)
        return reply

    changes.run_once = run_once_or_fail  # type: ignore[method-assign]
    app = create_card_emulator(changes, api_key=api_key)

    @app.before_request
    async def fail() -> Response | None:
        if not request.path.startswith("/v1/"):
            return None
        g.outage = outage = outages.take(_call_name())
        _failing.set(outage)
        match None if outage is None else outage.mode:
            case "refuse":
                return Response("", headers={ABORT_HEADER: "1"})
            case "rate_limit":
                assert outage is not None
                body = ApiError(429, "Too many requests.", code="rate_limit").body
                headers = {"Retry-After": str(outage.retry_after_s)}
                return Response(
                    msgspec.json.encode(body), status=429, content_type="application/json", headers=headers
                )
            case "error":
                body = ApiError(500, SERVER_ERROR, kind="api_error").body
                return Response(msgspec.json.encode(body), status=500, content_type="application/json")
            case "slow" if request.method == "GET":
                assert outage is not None
                await outages.delay(outage)
        return None

    @app.after_request
    async def lose(response: Response) -> Response:
        outage = g.get("outage")
        return Response("", headers={ABORT_HEADER: "1"}) if outage and outage.mode == "lose_answer" else response

    _add_controls(app, changes, outages)
    app.asgi_app = AbortMiddleware(app.asgi_app)  # type: ignore[method-assign]
    return app


serve_faulty_card_emulator = partial(serve_card_emulator, sender=FaultySender, create=create_faulty_emulator)
"""The emulator with faults; the arguments are those of :func:`serve_card_emulator`."""


def _add_controls(app: QuartTrio, changes: Changes, outages: Outages) -> None:
    sender = changes.webhook_sender
    assert isinstance(sender, FaultySender)

    @app.put("/control/webhooks")
    async def set_webhooks() -> Response:
        sender.faults = await read_body(WebhookFaults)
        return json_response(sender.faults)

    @app.post("/control/webhooks/release")
    async def release() -> Response:
        return json_response({"released": sender.release(await read_body(Release))})

    @app.post("/control/outages")
    async def add_outage() -> Response:
        outages.coming.append(await read_body(Outage))
        return json_response(outages.coming)

    @app.delete("/control/outages")
    async def remove_outages() -> Response:
        outages.remove()
        return json_response([])


def _call_name() -> str:
    """Return the name of the requested call, such as ``payment_intents.create``."""
    kind, *rest = request.path.removeprefix("/v1/").split("/")
    if request.method == "GET":
        return f"{kind}.retrieve" if rest else f"{kind}.list"
    return f"{kind}.{rest[1]}" if len(rest) > 1 else f"{kind}.create"


class AbortMiddleware:
    """ASGI middleware that aborts a response with :data:`ABORT_HEADER`: it starts and is never completed.

    The server closes a connection whose response ended short of its announced length, which is what a client sees
    of a provider that dies while responding.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one ASGI scope."""
        aborted = False

        async def send_or_abort(message: Any) -> None:
            nonlocal aborted
            if aborted:
                return
            if message["type"] == "http.response.start":
                aborted = any(name.lower() == ABORT_HEADER.encode() for name, _ in message["headers"])
                if aborted:
                    headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
                    message = {**message, "headers": headers}
                    await send(message)
                    message = {"type": "http.response.body", "body": b"{", "more_body": True}
            await send(message)

        await self._app(scope, receive, send_or_abort)
