"""The card emulator on a thread of its own, outside the service, with its control calls."""

from __future__ import annotations

import json
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import trio
from tests.clients import Customer, loopback_client, ok, until
from torture.card_faults import serve_faulty_card_emulator

from holdfast.providers.signatures import sign

from .service_process import Service

API_KEY = "sk_test_journeys"
WEBHOOK_SECRET = "whsec_journeys_0123456789abcdef0123456789"
PUBLISHABLE_KEY = "pk_test_journeys"
CARDS = "/v2/control/cards"
WEBHOOK = "/v2/control/payments/cardprovider/webhook"
SIGNATURE_HEADER = "Cardprovider-Signature"
SETTLE_S = 0.02
RETRY_DELAYS_S = (0.0, 0.2, 0.5, *[1.0] * 60)


@dataclass
class CardProviderProcess:
    """Where the emulator listens, and where its webhooks go (nowhere while ``webhook_url`` is empty)."""

    url: str
    webhook_url: str = ""

    def settings(self, **more: str) -> dict[str, str]:
        """Return the settings of a service that uses this card provider."""
        return {
            "CARD_API_KEY": API_KEY,
            "CARD_API_BASE": self.url,
            "CARD_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "CARD_PUBLISHABLE_KEY": PUBLISHABLE_KEY,
            **more,
        }

    def serve(self, service: Service) -> None:
        """Send webhooks to this service from now on."""
        self.webhook_url = service.url + WEBHOOK

    async def act(self, kind: str, thing_id: str, action: str, **body: object) -> str:
        """Perform an action on an object, and return the id of the result."""
        return str((await self._control("POST", f"{kind}/{thing_id}/{action}", body))["id"])

    async def webhooks(self, **faults: object) -> None:
        """Make webhooks fail; without arguments, deliver them normally again."""
        await self._control("PUT", "webhooks", faults)

    async def fail(self, call: str, mode: str, **how: object) -> None:
        """Make API calls fail."""
        await self._control("POST", "outages", {"call": call, "mode": mode, **how})

    async def recover(self) -> None:
        """End all failures of API calls; calls that they delay go on."""
        await self._control("DELETE", "outages", None)

    async def intent_of(self, order_id: str) -> dict[str, Any] | None:
        """Return the payment intent of an order, if there is one."""
        found = await self._read("payment_intents")
        return next((each for each in found if each["metadata"]["order_id"] == order_id), None)

    async def charge_of(self, intent_id: str) -> str:
        """Return the id of the charge that paid an intent."""
        return str((await self._read(f"payment_intents/{intent_id}"))["latest_charge"])

    async def is_booked(self, charge_id: str) -> bool:
        """Whether a charge has its balance transaction."""
        return (await self._read(f"charges/{charge_id}"))["balance_transaction"] is not None

    async def refunds_of(self, intent_id: str) -> list[dict[str, Any]]:
        """Return the refunds of an intent, newest first."""
        return list(await self._read(f"refunds?payment_intent={intent_id}"))

    async def events(self) -> list[dict[str, Any]]:
        """Return all events, newest first."""
        return list(await self._read("events"))

    async def events_of(self, intent_id: str, among: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return the events of an intent and its objects, oldest first; ``among`` are events already read."""
        found = await self.events() if among is None else among
        about = [
            e for e in found if intent_id in (e["data"]["object"]["id"], e["data"]["object"].get("payment_intent"))
        ]
        return list(reversed(about))

    async def quiet(self, intent_id: str) -> None:
        """Wait until every event of an intent was delivered or dropped."""
        wanted = {event["id"] for event in await self.events_of(intent_id)}

        async def all_delivered() -> bool:
            state = await self._control("GET", "state", None)
            states = {each["id"]: (each["delivery"] or {}).get("state") for each in state["events"]}
            open_states = (None, "waiting", "held", "given_up")
            return all(states.get(event_id, "dropped") not in open_states for event_id in wanted)

        await until(all_delivered)

    async def _read(self, path: str) -> Any:
        divider = "&" if "?" in path else "?"
        url = f"{self.url}/v1/{path}" + ("" if "/" in path else f"{divider}limit=100")
        async with loopback_client(headers={"Authorization": f"Bearer {API_KEY}"}) as http:
            body = ok(await http.get(url))
            while body.get("object") == "list" and body["has_more"]:
                more = ok(await http.get(f"{url}&starting_after={body['data'][-1]['id']}"))
                body = {**more, "data": [*body["data"], *more["data"]]}
        return body["data"] if body.get("object") == "list" else body

    async def _control(self, method: str, path: str, body: object) -> Any:
        async with loopback_client() as http:
            answer = await http.request(method, f"{self.url}/control/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def run_card_provider() -> Iterator[CardProviderProcess]:
    """Run the emulator on loopback."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-card-"))
    found: queue.SimpleQueue[tuple[int, trio.CancelScope, trio.lowlevel.TrioToken]] = queue.SimpleQueue()
    card_provider = CardProviderProcess("")

    async def run() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                serve = partial(
                    serve_faulty_card_emulator,
                    api_key=API_KEY,
                    webhook_secret=WEBHOOK_SECRET,
                    webhook_url=lambda: card_provider.webhook_url,
                    files_dir=folder,
                    settle_delay_s=SETTLE_S,
                    retry_delays_s=RETRY_DELAYS_S,
                )
                port = await nursery.start(serve)
                found.put((port, scope, trio.lowlevel.current_trio_token()))

    thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
    thread.start()
    port, scope, token = found.get(timeout=60)
    card_provider.url = f"http://127.0.0.1:{port}"
    try:
        yield card_provider
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(30)
        shutil.rmtree(folder, ignore_errors=True)


def signed(body: bytes, *, secret: str = WEBHOOK_SECRET, shift_s: int = 0) -> dict[str, str]:
    """Return the headers of a signed webhook."""
    header = sign(secret, body, at=int(time.time()) + shift_s)
    return {SIGNATURE_HEADER: header, "Content-Type": "application/json"}


def written(event: dict[str, Any]) -> bytes:
    """Render an event as it is sent."""
    return json.dumps(event).encode()


@dataclass
class Payer:
    """A customer who pays by card."""

    customer: Customer
    card_provider: CardProviderProcess

    async def order(self, amount: str = "10.00", *, key: str | None = None) -> dict[str, Any]:
        """Order credit by card."""
        return ok(await self.try_order(amount, key=key))

    async def try_order(self, amount: str = "10.00", *, key: str | None = None) -> httpx2.Response:
        """Request a card order and return the response, whatever it is."""
        path = "/v2/control/payments/cardprovider"
        return await self.customer.as_session("POST", path, {"amount": amount}, key=key)

    async def paid_order(self, amount: str = "10.00") -> dict[str, Any]:
        """Create, pay and await a credited order."""
        order = await self.order(amount)
        await self.card_provider.act("payment_intents", order["provider_payment_id"], "pay")
        return await self.wait_for(order["order_id"], status="credited")

    async def read(self, order_id: str) -> dict[str, Any]:
        """Read an order."""
        return ok(await self.customer.as_session("GET", f"/v2/control/payments/{order_id}"))

    async def wait_for(self, order_id: str, *, within_s: float = 60.0, **fields: object) -> dict[str, Any]:
        """Wait until an order has these values, and return it."""
        seen: dict[str, Any] = {}

        async def is_so() -> dict[str, Any] | None:
            seen.update(await self.read(order_id))
            return seen if all(seen[name] == value for name, value in fields.items()) else None

        try:
            return await until(is_so, within_s=within_s)
        except trio.TooSlowError:
            now = {name: seen.get(name) for name in fields}
            raise AssertionError(f"{order_id} is {now}, not {fields}: {seen.get('state_history')}") from None

    async def statement(self) -> list[dict[str, Any]]:
        """Return all operations of the account, oldest first."""
        return await self.customer.statement()


def unique(prefix: str) -> str:
    """Return an unused id."""
    return f"{prefix}_{secrets.token_hex(8)}"


async def cards(customer: Customer) -> list[dict[str, Any]]:
    """Return the customer's saved cards."""
    return list(ok(await customer.as_session("GET", CARDS))["data"])


async def save_card(customer: Customer, card_provider: CardProviderProcess, test_card: str = "pm_card_visa") -> str:
    """Save a card as the customer's browser does; return its id."""
    before = {each["card_id"] for each in await cards(customer)}
    setup = ok(await customer.as_session("POST", f"{CARDS}/setup"))
    assert setup["publishable_key"] == PUBLISHABLE_KEY
    async with loopback_client(headers={"Authorization": f"Bearer {PUBLISHABLE_KEY}"}) as browser:
        url = f"{card_provider.url}/v1/setup_intents/{setup['setup_intent_id']}/confirm"
        form = {"client_secret": setup["client_secret"], "payment_method": test_card}
        ok(await browser.post(url, data=form))

    async def listed() -> str | None:
        new = [each["card_id"] for each in await cards(customer) if each["card_id"] not in before]
        return new[0] if new else None

    return await until(listed)
