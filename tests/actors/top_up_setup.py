"""An account whose saved card is charged by automatic top-ups, for tests that run the workers by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx2
from msgspec.structs import replace
from sqlalchemy import text
from tests.running_bank import CARD_KEY

from holdfast.actors.account.messages import RecordCustomer, SaveCard, SetAutoTopUp, TaskAccepted
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.reconciler import OrderWorker, TopUpWorker
from holdfast.ledger.orders.order import Order
from holdfast.ledger.orders.top_ups import AutoTopUp, SavedCard, TopUpSettings
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.orders import orders_of_account, top_up_of_account
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.telemetry.reports.conditions import Conditions

from .account_checks import CREDIT, Clock
from .actor_system import create_task
from .order_checks import BankSetup

SETTINGS = TopUpSettings(below_micro=5 * CREDIT, amount_micro=10 * CREDIT, max_per_day=3, max_per_month=5)


@dataclass
class Setup(BankSetup):
    """An account with credit, a saved card and a key, the card provider, and workers that are run step by step."""

    clock: Clock
    key_id: str
    customer_id: str = ""
    conditions: Conditions | None = None
    holds: list[str] = field(default_factory=list)

    async def ask(self, command: Any) -> Any:
        return await self.system.ask(self.account_id, command)

    async def save_card(self, test_card: str = "pm_card_visa") -> str:
        """Save a card at the provider, as the webhook does with what it names."""
        if not self.customer_id:
            self.customer_id = await self.bank.provider.create_customer(self.account_id, env="test")
            await self.ask(RecordCustomer(self.customer_id, False))
        created = await self.bank.provider.create_setup_intent(self.customer_id, self.account_id, env="test")
        await self.bank.press("setup_intents", created.setup_intent_id, "confirm", payment_method=test_card)
        found = (await self.list_of("payment_methods"))[0]
        card = await self.bank.provider.retrieve_card(found["id"])
        saved = SavedCard(
            card_id=card.card_id, brand=card.brand, last4=card.last4, exp_month=12, exp_year=2035,
            saved_at=self.clock(),
        )  # fmt: skip
        reply = await self.ask(SaveCard(saved))
        assert isinstance(reply, AutoTopUp)
        return card.card_id

    async def switch_on(self, **settings: int) -> AutoTopUp:
        reply = await self.ask(SetAutoTopUp(replace(SETTINGS, **settings), True))
        assert isinstance(reply, AutoTopUp)
        return reply

    async def spend(self, amount: int) -> TaskAccepted | Refusal:
        """Hold credit for a task."""
        reply: TaskAccepted | Refusal = await self.ask(create_task(self.key_id, hold_micro=amount * CREDIT))
        if isinstance(reply, TaskAccepted):
            self.holds.append(reply.request_id)
        return reply

    async def work(self, kind: type[OrderWorker] = TopUpWorker) -> int:
        """Make all that has a due time due, and run one round of a worker."""
        sql = "update orders set wake_at = :at where wake_at is not null"
        await self.database.work(lambda rows: rows.execute(text(sql), {"at": self.clock()}))
        checks = OrderChecks(
            database=self.database,
            accounts=self.system.accounts,
            card=self.bank.provider,
            env="test",
            now=self.clock,
            conditions=self.conditions,
        )
        return await kind(database=self.database, order_checks=checks).poll_due()

    async def top_up(self) -> AutoTopUp:
        found = await self.database.read(top_up_of_account, self.account_id)
        assert found is not None
        return found

    async def orders(self) -> list[Order]:
        """The account's orders, oldest first."""
        found = await self.database.read(
            lambda rows: orders_of_account(rows, self.account_id, after=None, limit=1000, filters={})
        )
        return [each for each in found if not isinstance(each, UnreadableEntry)][::-1]

    async def list_of(self, what: str) -> list[dict[str, Any]]:
        """All objects of a kind at the provider, newest first."""
        headers = {"Authorization": f"Bearer {CARD_KEY}"}
        async with httpx2.AsyncClient(base_url=self.bank.url, trust_env=False, verify=False, timeout=60) as http:
            answer = await http.get(f"/v1/{what}", params={"limit": 100}, headers=headers)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]
        return found

    async def assert_charged_once(self) -> None:
        """Check that the one order is paid, by one charge."""
        [order] = await self.orders()
        assert order.status == "credited"
        assert len(await self.charges()) == 1
        assert await self.balance() == 18 * CREDIT

    async def charges(self) -> list[dict[str, Any]]:
        """The charges that the provider made."""
        return [each for each in await self.list_of("charges") if each["paid"]]
