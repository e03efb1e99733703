"""The card emulator, run by the harness so that it survives every kill of the service.

It is used over HTTP only. It can lose, delay and duplicate its webhooks, and fail to respond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import trio

from torture.card_faults import serve_faulty_card_emulator

API_KEY = "sk_test_of_the_torture_harness"
WEBHOOK_SECRET = "whsec_torture_0123456789abcdef0123456789abcdef"
WEBHOOK_PATH = "/v2/control/payments/cardprovider/webhook"
RETRY_DELAYS_S = (0.0, 0.2, 0.4, *[0.7] * 300)


@dataclass
class CardStandIn:
    """The provider; ``addresses`` are those of the service, of which the first gets the webhooks."""

    folder: Path
    addresses: Callable[[], Sequence[str]] = field(default=lambda: ())
    url: str = ""
    _http: httpx2.AsyncClient | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings of a service that uses this provider."""
        return {
            "CARD_API_KEY": API_KEY,
            "CARD_API_BASE": self.url,
            "CARD_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "CARD_PUBLISHABLE_KEY": "pk_test_of_the_torture_harness",
            "CARD_TIMEOUT_S": "2",
            "CARD_RETRIES": "0",
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""

        def webhook_url() -> str:
            addresses = self.addresses()
            return addresses[0] + WEBHOOK_PATH if addresses else ""

        http = httpx2.AsyncClient(verify=False, timeout=10, trust_env=False)
        async with http as self._http, trio.open_nursery() as nursery:
            port = await nursery.start(
                lambda task_status: serve_faulty_card_emulator(
                    api_key=API_KEY,
                    webhook_secret=WEBHOOK_SECRET,
                    webhook_url=webhook_url,
                    files_dir=self.folder,
                    settle_delay_s=0.02,
                    retry_delays_s=RETRY_DELAYS_S,
                    task_status=task_status,
                )
            )
            self.url = f"http://127.0.0.1:{port}"
            task_status.started()
            await trio.sleep_forever()

    async def pay(self, payment_id: str) -> bool:
        """Pay an intent as the customer; returns whether that certainly happened."""
        return await self._control("POST", f"payment_intents/{payment_id}/pay", {})

    async def save_card(self, setup_intent_id: str) -> None:
        """Save a card as the customer; the service learns of it by webhook."""
        await self._control("POST", f"setup_intents/{setup_intent_id}/confirm", {"payment_method": "pm_card_visa"})

    async def charges(self) -> Counter[str]:
        """Return how many paid charges each order has. Raises ``httpx2.HTTPError``."""
        assert self._http is not None
        found: Counter[str] = Counter()
        query = {"limit": "100"}
        while True:
            headers = {"Authorization": f"Bearer {API_KEY}"}
            answer = await self._http.get(f"{self.url}/v1/charges", params=query, headers=headers)
            page = answer.raise_for_status().json()
            found.update(each["metadata"].get("order_id", "") for each in page["data"] if each["paid"])
            if not page["has_more"]:
                return found
            query["starting_after"] = page["data"][-1]["id"]

    async def misdeliver(self, **faults: object) -> None:
        """Make webhooks fail (``drop``, ``hold``, ``duplicate`` …); without arguments deliver them again."""
        await self._control("PUT", "webhooks", faults)

    async def release(self, seed: int) -> None:
        """Send held webhooks in random order."""
        await self._control("POST", "webhooks/release", {"order": "shuffled", "seed": seed})

    async def fail(self, call: str, mode: str, **how: object) -> None:
        """Make API calls fail."""
        await self._control("POST", "outages", {"call": call, "mode": mode, **how})

    async def recover(self) -> None:
        """End all faults."""
        await self._control("DELETE", "outages", None)
        await self.misdeliver()

    async def _control(self, method: str, path: str, body: object) -> bool:
        assert self._http is not None
        try:
            answer = await self._http.request(method, f"{self.url}/control/{path}", json=body)
        except httpx2.TransportError:
            return False
        return answer.status_code == 200
