"""What the task actors of a process share: other actors, the workers, and facts about providers and time."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.actors.account.units import BegunTask
from holdfast.actors.runtime.journaled import Tell
from holdfast.actors.runtime.refs import Directory, TellRef
from holdfast.actors.task.messages import CallProvider, Host, SlotFreed, TaskQueued
from holdfast.ledger.catalog.input_schema import with_links
from holdfast.ledger.tasks.dispatch import submit_at_once
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import Context, Effect, HostOutputs, ProviderTraits, SubmitJob
from holdfast.ledger.values import Now
from holdfast.persistence.records.rows import NewTaskRow
from holdfast.providers.media.base import Job
from holdfast.providers.media.health import ProviderHealth

NEW_TASKS_MAX = 1000


class NewTasks:
    """Begins new tasks, and keeps the newest, each for the first incarnation of its actor, which need not read it.

    Another process may have changed a task meanwhile. The fence finds that, as it does for an active actor, and the
    next incarnation reads the rows.
    """

    def __init__(self, deps: TaskDependencies) -> None:
        self._deps = deps
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    def begin(self, task: Task) -> BegunTask:
        """Have a task submitted once it is durable, if there is a slot at once; else it is queued."""
        begun = self._deps.submitted_at_once(task) or queued(self._deps.dispatcher, task)
        self.keep(begun.row.task)
        return begun

    def keep(self, task: Task) -> None:
        """Keep a task, instead of the oldest if there are too many."""
        self._tasks[task.request_id] = task
        if len(self._tasks) > NEW_TASKS_MAX:
            self._tasks.popitem(last=False)

    def take(self, request_id: str) -> Task | None:
        """Return and forget a task, or None."""
        return self._tasks.pop(request_id, None)


def queued(dispatcher: TellRef, task: Task) -> BegunTask:
    """Return the beginning of a task that waits for a slot, which the dispatcher assigns."""
    return BegunTask(NewTaskRow(task), (Tell(dispatcher, TaskQueued(task.provider, task.request_id)),))


@dataclass(frozen=True, slots=True)
class TaskDependencies:
    """Shared by the task actors of a process. ``member_id`` is written into the task's row with each step.

    ``file_url`` returns a provider's link to a file until a time; ``is_submitting`` returns whether this process is
    still submitting an attempt; ``take_slot`` takes a slot of a provider for a task that is created, and returns
    whether there was one; ``now`` returns service time.
    """

    accounts: Directory
    dispatcher: TellRef
    provider_calls: TellRef
    hosting: TellRef
    outbox: TellRef
    traits: Callable[[str], ProviderTraits]
    callback_url: Callable[[str], str]
    file_url: Callable[[str, str, datetime], str]
    now: Now
    rng: random.Random
    member_id: str
    health: Callable[[str], ProviderHealth] = ProviderHealth
    is_submitting: Callable[[str, int], bool] = lambda _request_id, _attempt: False
    take_slot: Callable[[str, str], bool] = lambda _provider, _request_id: False

    def submitted_at_once(self, task: Task) -> BegunTask | None:
        """Return the beginning of a task that has a slot at once: its first version has the intent to submit it.

        None if there is no slot.
        """
        if not self.take_slot(task.provider, task.request_id):
            return None
        step = submit_at_once(task, Context(task.created_at, jitter=self.rng.random()))
        assert step.task is not None
        freed = Tell(self.dispatcher, SlotFreed(task.provider, task.request_id))
        tells = tuple(self.tells_of(step.task, step.effects))
        return BegunTask(NewTaskRow(step.task, self.member_id), tells, tells_if_void=(freed,))

    def tells_of(self, task: Task, effects: Sequence[Effect]) -> list[Tell]:
        """Return a step's effects as messages to the workers."""
        terms = task.request.terms
        tells: list[Tell] = []
        for effect in effects:
            match effect:
                case SubmitJob(attempt=attempt):
                    job = Job(
                        task.request_id,
                        attempt,
                        terms.upstream_model,
                        self._input_of(task),
                        self.callback_url(task.provider),
                    )
                    tells.append(Tell(self.provider_calls, CallProvider(task.provider, job, task.account_id)))
                case HostOutputs():
                    host = Host(task.provider, effect, terms.hosting, terms.deadlines.hosting_s, task.account_id)
                    tells.append(Tell(self.hosting, host))
                case _:
                    tells.append(Tell(self.provider_calls, CallProvider(task.provider, effect, task.account_id)))
        return tells

    def _input_of(self, task: Task) -> Mapping[str, object]:
        """Return the input as the provider gets it: with links to files, which last as long as the task may."""
        request, until = task.request, task.overall_deadline_at
        if not request.files:
            return request.input
        return with_links(request.input, request.files, lambda each: self.file_url(task.provider, each, until))
