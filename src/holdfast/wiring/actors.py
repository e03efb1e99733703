"""The keyed actors of one process: how each kind reads its rows, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.actors.account.actor import AccountActor, AccountLimits
from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.runtime.turns import Tell
from holdfast.actors.sign_in.actor import SignInActor, SignInRules
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.dependencies import TaskDependencies
from holdfast.actors.task.new_tasks import NewTasks
from holdfast.actors.task.worker_messages import TaskQueued
from holdfast.actors.workers.poison_writer import PoisonQueue
from holdfast.ledger.clock import Now
from holdfast.ledger.sign_in_codes import CodeLimits
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.write_path import WritePath
from holdfast.persistence.queries.loading import (
    LoadedAccount,
    LoadedSignIn,
    load_account,
    load_sign_in,
    load_task_and_events,
)
from holdfast.persistence.server.database import Database
from holdfast.settings.settings import Settings
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter


@dataclass(frozen=True, slots=True)
class KeyedGroups:
    """The directories of one process. Without ``poison``, messages that crash their actor are not kept."""

    settings: Settings
    database: Database
    journal: Journal
    reporter: Reporter
    dead_letters: DeadLetters
    poison: PoisonQueue | None = None

    def accounts(self, *, dispatcher: TrioActorRef, new_tasks: NewTasks, now: Now) -> KeyedDirectory:
        """Return that of accounts. They announce queued tasks to ``dispatcher``; ``now`` is service time."""
        settings, database = self.settings, self.database
        limits = AccountLimits(
            tasks_in_flight_max=settings.tasks_in_flight_max,
            task_creates_per_s=settings.task_creates_per_account_s,
            task_creates_burst=settings.task_creates_burst,
        )

        async def load(account_id: str) -> LoadedAccount:
            return await database.read(load_account, account_id)

        def announce(task: Task) -> Tell:
            new_tasks.add(task)
            return Tell(dispatcher, TaskQueued(task.provider, task.request_id))

        create = partial(
            AccountActor,
            journal=self.journal,
            load=load,
            database=database,
            announce=announce,
            now=now,
            limits=limits,
        )
        return self._directory("accounts", create)

    def sign_ins(self, conditions: Conditions, now: Now) -> KeyedDirectory:
        """Return that of sign-in actors, one for each e-mail address and each origin."""
        settings, database = self.settings, self.database
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

        async def load(key: str) -> LoadedSignIn:
            return await database.read(load_sign_in, key)

        create = partial(SignInActor, journal=self.journal, load=load, now=now, rules=rules, conditions=conditions)
        return self._directory("sign-in", create)

    def tasks(self, deps: TaskDependencies, new_tasks: NewTasks) -> KeyedDirectory:
        """Return that of tasks."""

        async def load(request_id: str) -> tuple[Task, frozenset[tuple[str, str]]]:
            task = new_tasks.take(request_id)
            if task is not None:
                return task, frozenset()
            return await self.database.read(load_task_and_events, request_id)

        return self._directory("tasks", partial(TaskActor, journal=self.journal, load=load, deps=deps))

    def _directory(self, name: str, create: Callable[[str, Mailbox], TrioActor]) -> KeyedDirectory:
        async def probe() -> bool:
            await self.database.open()
            return True

        settings = self.settings
        return KeyedDirectory(
            name,
            create,
            gate=WritePath(self.database.gate, self.journal),
            probe=probe,
            reporter=self.reporter,
            dead_letters=self.dead_letters,
            poison=None if self.poison is None else self.poison.put,
            limits=KeyedLimits(
                mailbox_max=settings.mailbox_max, idle_s=settings.idle_passivate_s, active_max=settings.active_max
            ),
        )
