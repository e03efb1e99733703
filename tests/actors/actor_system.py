"""The actors of one process on a real database, and the tasks and orders that tests give them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from tests.made_requests import SELLER, make_order_request, make_request, make_terms
from tests.recorded_refs import RecordedRef

from holdfast.actors.account.actor import AccountActor
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import CreateTask, Recharge
from holdfast.actors.account.units import BegunTask
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.actors.task.dependencies import TaskDependencies, queued
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.orders.facts import (
    DisputeFacts,
    DisputeStatus,
    OrderFacts,
    PaymentAttempt,
    PaymentEvent,
    PaymentFacts,
    ProgressStatus,
    RefundFacts,
    StatedPayment,
)
from holdfast.ledger.orders.order import OrderRequest, Provider
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import ProviderTraits
from holdfast.ledger.values import Now, new_id, utc_now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.rows import AccountHead, AccountRow
from holdfast.persistence.server.database import Database
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.telemetry.reports.reporter import Reporter


def create_task(key_id: str, *, hold_micro: int = 1_000_000, key: str | None = None) -> CreateTask:
    """A command that creates a task, optionally under an idempotency key."""
    idempotency = None if key is None else IdempotencyKey("POST /v2/task/create", key, b"same body")
    request = make_request(make_terms(hold_micro), api_key_id=key_id, hold_id=new_id("hold"))
    return CreateTask(request, "tasks:write", idempotency)


def task_dependencies(**parts: Any) -> TaskDependencies:
    """Return what a task's actor needs, and ``parts``. The provider can do all; workers ignore their messages."""
    ignored = RecordedRef(lambda _message: None)
    workers = dict.fromkeys(("dispatcher", "provider_calls", "hosting", "outbox"), ignored)
    usual: dict[str, Any] = {
        "traits": lambda _: ProviderTraits(idempotent_submit=True, polls=True, cancels=True),
        "callback_url": lambda _: "",
        "file_url": lambda _provider, file_id, _until: file_id,
        "now": utc_now,
        "rng": random.Random(1),
        "member_id": "proc_1",
    }
    return TaskDependencies(**workers | usual | parts)


@dataclass
class ActorSystem:
    """One process's worth of accounts on a database."""

    database: Database
    journal: Journal
    accounts: KeyedDirectory
    announced: list[str]
    """The ids of new tasks, as announced to the dispatcher."""
    reporter: Reporter

    async def ask(self, account_id: str, command: Any) -> Any:
        """Ask the account's actor."""
        return await self.accounts.ref(account_id).ask(command)

    async def open_account(self, credit_micro: int = 0) -> tuple[str, str]:
        """An account with one live key, and with credit; returns their ids."""
        account_id, key_id, at = new_id("acct"), new_id("key"), utc_now()
        key = ApiKeyRecord(account_id, key_id, "hk_test_x", KeyTerms("k", ("tasks:write",)), at)
        rows = (
            AccountRow(AccountHead(account_id), f"{account_id}@example.com", "User", "b", at),
            ApiKeyRow(key, key_id.encode()),
        )
        verdict = await self.journal.write(Unit(rows=rows))
        assert isinstance(verdict, Committed)
        if credit_micro:
            await self.ask(account_id, Recharge(credit_micro))
        return account_id, key_id


def make_system(
    database: Database,
    *,
    limits: KeyedLimits | None = None,
    writer: Any = None,
    account_limits: AccountLimits | None = None,
    begin_task: Callable[[Task], BegunTask] | None = None,
    now: Now = utc_now,
) -> ActorSystem:
    """Build the journal and the accounts of one process; :func:`start_system` runs them."""
    journal = Journal(writer or BatchWriter(database.keep_writer(), now=utc_now), database.gate)
    announced: list[str] = []
    dispatcher = RecordedRef(lambda queued: announced.append(queued.request_id))
    reporter = Reporter()

    async def load(account_id: str) -> Any:
        return await database.read(lambda connection: load_account(connection, account_id))

    def factory(key: str, mailbox: Mailbox) -> AccountActor:
        return AccountActor(
            key,
            mailbox,
            journal,
            load=load,
            database=database,
            begin_task=begin_task or partial(queued, dispatcher),
            now=now,
            limits=account_limits or AccountLimits(),
            seller=SELLER,
        )

    async def probe() -> bool:
        return True

    accounts = KeyedDirectory(
        "accounts",
        factory,
        gate=database.gate,
        probe=probe,
        reporter=reporter,
        dead_letters=DeadLetters(),
        limits=limits or KeyedLimits(),
        rng=random.Random(1),
    )
    return ActorSystem(database, journal, accounts, announced, reporter)


StartSystem = Callable[..., Awaitable[ActorSystem]]


class Payments:
    """Payment orders of ten credits, and what a card provider tells about them."""

    amount_micro = 10_000_000

    def __init__(self) -> None:
        self._events = itertools.count(1)

    def request(self, account_id: str, provider: Provider = "cardprovider", **fields: Any) -> OrderRequest:
        """What a customer orders: for a day by card, for half an hour in the sandbox."""
        at = utc_now()
        given: dict[str, Any] = {"operation_id": new_id("op"), "provider": provider}
        if provider == "sandbox":
            given |= {"expires_at": at + timedelta(minutes=30), "sandbox_event_id": new_id("evt")}
            given["signed_at"] = int(at.timestamp())
        return make_order_request(new_id("ord"), account_id, at, **given | fields)

    def event(self, kind: str, facts: OrderFacts, *, event_id: str | None = None) -> PaymentEvent:
        """An event of the provider's, with an id of its own."""
        number = next(self._events)
        return PaymentEvent(
            event_id=event_id or f"evt_{new_id('evt')[-8:]}_{number}",
            type=kind,
            at=1_700_000_000 + number,
            reason=kind.rpartition(".")[2],
            facts=facts,
        )

    def paid(self, order_id: str, *, amount_micro: int | None = None, currency: str = "USD") -> PaymentEvent:
        """The order's intent was paid."""
        stated = StatedPayment(amount_micro=amount_micro or self.amount_micro, currency=currency)
        paid = PaymentFacts(at=1_700_000_000, stated=(stated,), charge_ids=(f"ch_{order_id}",))
        facts = OrderFacts(payments={f"pi_{order_id}": paid}, charges={f"ch_{order_id}": f"pi_{order_id}"})
        return self.event("payment_intent.succeeded", facts)

    def refunded(self, order_id: str, amount_micro: int, *, name: str = "re") -> PaymentEvent:
        """A part of the payment was sent back."""
        refund = RefundFacts(
            status="succeeded",
            seen=("succeeded",),
            amount_micro=amount_micro,
            charge_id=f"ch_{order_id}",
            payment_id=f"pi_{order_id}",
        )
        facts = OrderFacts(refunds={f"{name}_{order_id}": refund}, charges={f"ch_{order_id}": f"pi_{order_id}"})
        return self.event("refund.created", facts)

    def disputed(self, order_id: str, status: DisputeStatus) -> PaymentEvent:
        """The payer's bank took the whole payment back, or gives it back."""
        dispute = DisputeFacts(
            status=status,
            seen=(status,),
            amount_micro=self.amount_micro,
            currency="USD",
            charge_id=f"ch_{order_id}",
            payment_id=f"pi_{order_id}",
        )
        facts = OrderFacts(disputes={f"dp_{order_id}": dispute}, charges={f"ch_{order_id}": f"pi_{order_id}"})
        return self.event("charge.dispute.updated", facts)

    def attempt(self, status: ProgressStatus) -> PaymentEvent:
        """How an attempt stands."""
        attempt = PaymentAttempt(status=status, at=1_700_000_000 + next(self._events))
        return self.event(f"payment_intent.{status}", OrderFacts(attempt=attempt))
