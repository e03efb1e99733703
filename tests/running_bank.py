"""A card emulator that runs inside a test, and the adapter that speaks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import trio
from torture.card_faults import serve_faulty_card_emulator

from holdfast.providers.card.stripe_adapter import StripeProvider

CARD_KEY = "sk_test_emulatorkey0123456789"


@dataclass
class RunningBank:
    """A card emulator with its address, a client of its controls, and the adapter that speaks to it."""

    url: str
    http: httpx2.AsyncClient
    provider: StripeProvider

    async def press(self, kind: str, thing_id: str, action: str, **body: Any) -> str:
        """Press a button; returns the id of what came of it."""
        answer = await self.http.post(f"/control/{kind}/{thing_id}/{action}", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def faults(self, **switches: Any) -> None:
        """Set how webhooks go astray; what is not named is off."""
        answer = await self.http.put("/control/webhooks", json=switches)
        assert answer.status_code == 200, answer.text

    async def outage(self, mode: str, **more: Any) -> None:
        """Add an outage."""
        answer = await self.http.post("/control/outages", json={"mode": mode, **more})
        assert answer.status_code == 200, answer.text

    async def recover(self) -> None:
        """Remove all outages; calls that they delay go on."""
        answer = await self.http.delete("/control/outages")
        assert answer.status_code == 200, answer.text

    async def order(self, order_id: str = "ord_1", amount_minor: int = 1000, currency: str = "USD") -> str:
        """An intent for an order, made through the adapter; its id."""
        created = await self.provider.create_intent(order_id, "acct_1", amount_minor, currency, env="test")
        return created.provider_payment_id

    async def paid(self, order_id: str = "ord_1", amount_minor: int = 1000) -> tuple[str, str]:
        """A paid order: the ids of its intent and its charge."""
        intent_id = await self.order(order_id, amount_minor)
        return intent_id, await self.press("payment_intents", intent_id, "pay")


@asynccontextmanager
async def running_bank(
    files_dir: Path, *, adapter: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[RunningBank]:
    """Run a card emulator; ``adapter`` are the adapter's options, other keywords the emulator's."""
    settings = {"settle_delay_s": 0.0, "retry_delays_s": (0, 0, 0, 0)} | options
    async with trio.open_nursery() as nursery:
        serve = partial(serve_faulty_card_emulator, api_key=CARD_KEY, files_dir=files_dir, **settings)
        url = f"http://127.0.0.1:{await nursery.start(serve)}"
        provider = StripeProvider(CARD_KEY, api_base=url, **(adapter or {}))
        async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=60) as http:
            yield RunningBank(url, http, provider)
        await provider.close()
        nursery.cancel_scope.cancel()
