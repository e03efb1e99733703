"""The keyed actors of one process: how each kind reads its rows, its limits, and its messages that crash it."""

from __future__ import annotations

import hmac
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, cast

import msgspec

from holdfast.actors.account.actor import AccountActor
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.units import BegunTask
from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TellRef
from holdfast.actors.sign_in.actor import SignInActor, SignInRules
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.dependencies import NewTasks, TaskDependencies
from holdfast.actors.workers.dispatcher import DispatcherRef
from holdfast.actors.workers.newest_queue import NewestQueue
from holdfast.actors.workers.poison_writer import PoisonedMessage, PoisonWriter
from holdfast.actors.workers.provider_calls import ProviderCallerRef
from holdfast.cluster.codec import ACCOUNTS, SIGN_INS, TASKS, CannotEncode, codecs
from holdfast.cluster.placed import PlacedDirectory
from holdfast.ledger.orders.order import Seller
from holdfast.ledger.sign_in_codes import CodeLimits
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.values import Now, new_id, place_carried_by, place_of
from holdfast.persistence.journal.journal import Journal, WritePath
from holdfast.persistence.operators.poison import RowCipher
from holdfast.persistence.queries.loading import (
    LoadedAccount,
    LoadedSignIn,
    load_account,
    load_sign_in,
    load_task_and_events,
)
from holdfast.persistence.records.operator_tables import Override
from holdfast.persistence.server.database import Database
from holdfast.settings.settings import Settings
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.poison_replays import PoisonReplays
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.cluster import dispatcher_of_all, placed
from holdfast.wiring.parts import Parts

MASK_DIGITS: Final = 16

Create = Callable[[str, Mailbox], JournaledActor]
"""Creates the actor of a key."""


@dataclass(frozen=True, slots=True)
class Actors:
    """The directories of a process: those of all members' actors, and ``local``, in the same order, of its own."""

    accounts: PlacedDirectory
    sign_ins: PlacedDirectory
    tasks: PlacedDirectory
    local: tuple[KeyedDirectory, KeyedDirectory, KeyedDirectory]


def actors_of(parts: Parts) -> Actors:
    """Return the directories of a process; other members may ask its actors."""
    settings, database, journal, members, now = (
        parts.settings,
        parts.database,
        parts.journal,
        parts.members,
        parts.now,
    )
    group = partial(
        keyed_group,
        settings=settings,
        database=database,
        journal=journal,
        reporter=parts.reporter,
        dead_letters=parts.dead_letters,
        poison=parts.poison,
    )
    dispatcher = dispatcher_of_all(parts.refs.dispatcher, members)

    def begin_task(task: Task) -> BegunTask:
        # What a task needs includes the accounts.
        return new_tasks.begin(task)

    local_accounts = group(
        ACCOUNTS,
        create_account(
            settings,
            database,
            journal,
            begin_task=begin_task,
            now=now,
            creates_override=partial(parts.overrides.find, "account_creates"),
        ),
    )
    accounts = placed(ACCOUNTS, local_accounts, members, place_of)
    local_sign_ins = group(SIGN_INS, _create_sign_in(parts))
    deps = _task_dependencies(parts, accounts, dispatcher)
    new_tasks = NewTasks(deps)
    local_tasks = group(TASKS, _create_task(database, journal, deps, new_tasks))
    return Actors(
        accounts=accounts,
        sign_ins=placed(SIGN_INS, local_sign_ins, members, place_of),
        tasks=placed(TASKS, local_tasks, members, place_carried_by),
        local=(local_accounts, local_sign_ins, local_tasks),
    )


def keyed_group(
    name: str,
    create: Create,
    *,
    settings: Settings,
    database: Database,
    journal: Journal,
    reporter: Reporter,
    dead_letters: DeadLetters,
    poison: NewestQueue[PoisonedMessage] | None = None,
) -> KeyedDirectory:
    """Return the directory of one kind of actor. Without ``poison``, messages that crash an actor are not kept."""

    async def probe() -> bool:
        await database.open()
        return True

    return KeyedDirectory(
        name,
        create,
        gate=WritePath(database.gate, journal),
        probe=probe,
        reporter=reporter,
        dead_letters=dead_letters,
        poison=None if poison is None else poison.put,
        limits=KeyedLimits(
            mailbox_max=settings.mailbox_max, idle_s=settings.idle_passivate_s, active_max=settings.active_max
        ),
    )


def create_account(
    settings: Settings,
    database: Database,
    journal: Journal,
    *,
    begin_task: Callable[[Task], BegunTask],
    now: Now,
    creates_override: Callable[[str], Override | None] = lambda _: None,
) -> Create:
    """Return how an account's actor is created."""
    limits = AccountLimits(
        tasks_in_flight_max=settings.tasks_in_flight_max,
        task_creates_per_s=settings.task_creates_per_account_s,
        task_creates_burst=settings.task_creates_burst,
        webhooks_max=settings.webhooks_max,
        paid_credit_days=settings.paid_credit_days,
        idempotency_ttl_s=settings.idempotency_ttl_s,
        creates_override=creates_override,
    )

    async def load(account_id: str) -> LoadedAccount:
        return await database.read(load_account, account_id)

    return partial(
        AccountActor,
        journal=journal,
        load=load,
        database=database,
        begin_task=begin_task,
        now=now,
        limits=limits,
        seller=msgspec.convert(settings, Seller, from_attributes=True),
    )


def _create_sign_in(parts: Parts) -> Create:
    """Return how a sign-in actor is created, of an e-mail address or an origin."""
    settings, database = parts.settings, parts.database
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
        new_account_id=partial(new_id, "acct") if parts.cells is None else parts.cells.new_account_id,
    )

    async def load(key: str) -> LoadedSignIn:
        return await database.read(load_sign_in, key)

    return partial(
        SignInActor, journal=parts.journal, load=load, now=parts.now, rules=rules, conditions=parts.conditions
    )


def _create_task(database: Database, journal: Journal, deps: TaskDependencies, new_tasks: NewTasks) -> Create:
    async def load(request_id: str) -> tuple[Task, frozenset[tuple[str, str]]]:
        task = new_tasks.take(request_id)
        if task is not None:
            return task, frozenset()
        return await database.read(load_task_and_events, request_id)

    return partial(TaskActor, journal=journal, load=load, deps=deps)


def _task_dependencies(parts: Parts, accounts: PlacedDirectory, dispatcher: TellRef) -> TaskDependencies:
    registry, refs = parts.registry, parts.refs
    return TaskDependencies(
        accounts=accounts,
        dispatcher=DispatcherRef(dispatcher, parts.new_task_slots),
        provider_calls=ProviderCallerRef(refs.provider_calls, parts.submits),
        hosting=refs.hosting,
        outbox=refs.outbox,
        traits=registry.traits,
        callback_url=partial(registry.callback_url, public_url=parts.public_url, local_url=parts.local_url),
        file_url=partial(_file_url, parts),
        now=parts.now,
        rng=random.Random(),  # noqa: S311 - spreads retries
        member_id=parts.presence.process.member_id,
        health=registry.health_of,
        is_submitting=lambda request_id, attempt: (request_id, attempt) in parts.submits,
        take_slot=parts.new_task_slots.take,
    )


def _file_url(parts: Parts, provider: str, file_id: str, until: datetime) -> str:
    """Return a provider's link to a file until a time."""
    own_url = parts.registry.own_url(provider, public_url=parts.public_url, local_url=parts.local_url)
    return replace(parts.urls, base=own_url).file_url(file_id, until)


def masked_key(settings: Settings, group: str, key: str) -> str:
    """Return what operators see as the key of an actor.

    It is the key; of a sign-in actor its kind, and a digest of the e-mail address or the origin.
    """
    if group != SIGN_INS:
        return key
    kind, _, address = key.partition(":")
    secret = settings.derived_key("shown keys")
    return f"{kind}:{hmac.digest(secret, address.encode(errors='replace'), 'sha256').hex()[:MASK_DIGITS]}"


def poison_writer(parts: Parts) -> Callable[[], Child]:
    """Return the function that starts the worker which stores poison messages."""
    writer = PoisonWriter(
        parts.poison,
        database=parts.database,
        reporter=parts.reporter,
        cipher=_poison_cipher(parts.settings),
        encode=_encode,
        mask=partial(masked_key, parts.settings),
    )
    return lambda: RunningChild(writer.run)


def poison_replays(parts: Parts, actors: Actors) -> PoisonReplays:
    """Return what replays poison messages to accounts and tasks, and discards them."""
    return PoisonReplays(
        parts.database,
        {ACCOUNTS: actors.accounts, TASKS: actors.tasks},
        decode=lambda group, message_type, body: codecs()[group].decode_command(message_type, body),
        cipher=_poison_cipher(parts.settings),
        now=parts.now,
        idempotency_ttl_s=parts.settings.idempotency_ttl_s,
    )


def _poison_cipher(settings: Settings) -> RowCipher:
    return RowCipher(settings.derived_keys("poison messages"))


def _encode(group: str, message: object) -> bytes | None:
    """Return a message's body; None for one of sign-in, which may hold a code, or that links do not carry."""
    if group == SIGN_INS:
        return None
    try:
        return codecs()[group].encode_command(cast("Command[object]", message))
    except CannotEncode:
        return None
