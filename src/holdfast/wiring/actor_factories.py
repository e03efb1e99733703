"""What the actors of one process are made with, by key: how they read their rows, and the limits they keep."""

from __future__ import annotations

from typing import Any

from holdfast.actors.account.actor import AccountActor, AccountLimits
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.runtime.turns import Tell
from holdfast.actors.sign_in.actor import SignInActor, SignInRules
from holdfast.actors.task.actor import TaskActor, TaskDependencies
from holdfast.actors.task.worker_messages import TaskQueued
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.sign_in_codes import CodeLimits
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.queries.loading import load_account, load_sign_in, load_task_and_events
from holdfast.persistence.queries.order_reads import OrderReads
from holdfast.persistence.server.database import Database
from holdfast.settings import Settings


def account_factory(
    settings: Settings, database: Database, journal: Journal, dispatcher: TrioActorRef, *, now: Now
) -> Any:
    """Makes the account actors of one process; ``now`` tells service time."""
    limits = AccountLimits(
        tasks_in_flight_max=settings.tasks_in_flight_max,
        task_creates_per_s=settings.task_creates_per_account_s,
        task_creates_burst=settings.task_creates_burst,
    )
    orders = OrderReads(database)

    async def load(account_id: str) -> Any:
        return await database.read(load_account, account_id)

    def announce(task: Task) -> Tell:
        return Tell(dispatcher, TaskQueued(task.provider, task.request_id))

    def factory(account_id: str, mailbox: Mailbox) -> AccountActor:
        return AccountActor(
            account_id,
            mailbox,
            journal,
            load=load,
            orders=orders,
            announce=announce,
            now=now,
            limits=limits,
        )

    return factory


def sign_in_factory(settings: Settings, database: Database, journal: Journal) -> Any:
    """Makes the sign-in actors of one process."""
    rules = SignInRules(
        pepper=settings.otp_pepper,
        codes=CodeLimits(
            ttl_s=settings.otp_ttl_s,
            tries_max=settings.otp_attempts,
            failures_day_max=settings.otp_failures_day,
            resend_s=settings.otp_resend_s,
            per_hour_max=settings.otp_per_email_hour,
            per_day_max=settings.otp_per_email_day,
            all_origins_hour_max=settings.otp_all_origins_hour,
            all_origins_day_max=settings.otp_all_origins_day,
        ),
        otp_per_origin_hour=settings.otp_per_origin_hour,
        session_ttl_s=settings.session_ttl_s,
        brand_id=settings.brand_id,
        operators=frozenset(settings.operators),
    )

    async def load(key: str) -> Any:
        return await database.read(load_sign_in, key)

    def factory(key: str, mailbox: Mailbox) -> SignInActor:
        return SignInActor(key, mailbox, journal, load=load, now=utc_now, rules=rules)

    return factory


def task_factory(database: Database, journal: Journal, world: TaskDependencies) -> Any:
    """Makes the task actors of one process."""

    async def load(request_id: str) -> Any:
        return await database.read(load_task_and_events, request_id)

    def factory(request_id: str, mailbox: Mailbox) -> TaskActor:
        return TaskActor(request_id, mailbox, journal, load=load, deps=world)

    return factory
