"""The dispatcher: assigns slots at providers to waiting tasks, and wakes tasks that are due.

A provider has a number of slots. A new task takes a free slot if no other task waits, already as it is created if
that happens in this process; otherwise it waits in its row, and free slots are assigned to accounts in turn, the
oldest task of each first. Tasks that are due for other reasons (polls, deadlines, hosting rounds) are found by
their ``wake_at``. A claim moves ``wake_at`` forward under ``SKIP LOCKED``, so several processes share the work, and
a claim whose process dies lapses.

A dispatched task belongs to the process that dispatched it, while that process runs; the tasks of an ended process
are taken over (:mod:`holdfast.persistence.claims.processes`). Tasks of a provider that has left the catalog are
woken when its grace period ends, and fail.

Messages are handled in memory, without a wait; one loop reads and claims rows. So no message waits for the
database, however slow it is, and none is dropped because others wait. Tasks of ended processes are woken a few at a
time by loops of their own: after a restart with many, callers have most turns.

A busy event loop delays no dispatch: what was sold is finished before more is taken, and slots limit how many tasks
compete with requests at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed, StaleFence
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory, TellRef, WorkerRef
from holdfast.actors.task.messages import SlotFreed, TaskQueued, Wake
from holdfast.actors.workers.due_work import DueWork
from holdfast.actors.workers.passes import Schedule, do_each, one_pass, repeat
from holdfast.actors.workers.worker import Worker
from holdfast.ledger.tasks.dispatch import Silence
from holdfast.ledger.values import Now
from holdfast.persistence.claims.due_work import DueKind
from holdfast.persistence.claims.processes import TAKEN_OVER_MAX, Process, take_over
from holdfast.persistence.claims.tasks import (
    FIRST,
    DispatchedTask,
    claim_follow_ups,
    claim_of_removed,
    claim_of_silent,
    claim_overdue,
    claim_past_deadline,
    claim_waiting,
    dispatched_tasks,
    providers_waited_for,
    still_occupying,
)
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry import metrics

log = structlog.get_logger(__name__)

CHECK_DUE_EVERY_S = 0.25
FOLLOW_UP_EVERY_CHECKS = 4
LOST_SLOTS_EVERY_CHECKS = 60
"""At every which check for due tasks they are also followed up, and lost slots looked for."""
DUE_HERE: tuple[DueKind, ...] = ("tasks", "other_processes")
OVERDUE_CHECKS_APART_S = 15.0
DEADLINE_CHECKS_APART_S = 2.0
FOLLOW_UPS_MAX = 200
WAKES_AT_ONCE_MAX = 8
"""How many overdue tasks fail at once: callers of the same accounts have most of their turns meanwhile."""
RECOVERED_AT_ONCE_MAX = 4
"""How many tasks of ended processes are woken at once."""
LOST_SLOT_AFTER_S = 30.0
CLAIMS_APART_S = 0.05
"""Slots of waiting tasks that are freed within this time of a claim are assigned by one."""


class NewTaskSlots:
    """The slots for tasks that are being created in this process, if they are assigned here."""

    def __init__(self) -> None:
        self.dispatcher: Dispatcher | None = None
        """The last one that was started."""

    def take(self, provider: str, request_id: str) -> bool:
        """Take a slot for a task if one is free and no other waits for it. Returns whether it was taken."""
        return self.dispatcher is not None and self.dispatcher.take_slot(provider, request_id)


class DispatcherRef:
    """The address of the dispatcher. The one of this process handles messages at once if it assigns the slots.

    It handles them without a wait, and a turn for each would cost a task more than what is done in it.
    """

    def __init__(self, dispatcher: TellRef, slots: NewTaskSlots) -> None:
        self._dispatcher = dispatcher
        self._slots = slots

    def tell(self, message: Command[object]) -> None:
        """Send a message."""
        local = self._slots.dispatcher
        if local is None or not local.handle_at_once(message):
            self._dispatcher.tell(message)


class Dispatcher(Worker):
    """Tracks which tasks occupy slots, and assigns the free ones, of the providers for which ``assigns_slots``.

    One process does that for all. Every process takes over tasks of ended ones, and follows up its own.

    ``slots`` returns the number of slots by provider, ``paused_models`` those whose waiting tasks stay where they
    are. ``removed`` returns whether a provider left the catalog longer than its grace period ago,
    ``leases_are_reliable`` whether an expired lease proves that its process has ended, ``silences`` which kinds of
    call a provider does not answer. ``due`` says what the rows may have; without it they are always checked.
    ``new_task_slots`` takes slots from this dispatcher from now on.
    """

    kind = "dispatcher"

    def __init__(
        self,
        ref: WorkerRef,
        *,
        database: Database,
        tasks: Directory,
        slots: Callable[[], Mapping[str, int]],
        paused_models: Callable[[], Sequence[str]] = tuple,
        now: Now,
        process: Process,
        removed: Callable[[str], bool] = lambda _: False,
        leases_are_reliable: Callable[[], bool] = lambda: True,
        silences: Callable[[str], Sequence[Silence]] = lambda _: (),
        assigns_slots: Callable[[str], bool] = lambda _: True,
        due: DueWork | None = None,
        new_task_slots: NewTaskSlots | None = None,
    ) -> None:
        super().__init__(ref)
        if new_task_slots is not None:
            new_task_slots.dispatcher = self
        self._database = database
        self._tasks = tasks
        self._slots = slots
        self._paused_models = paused_models
        self._now = now
        self._process = process
        self._removed = removed
        self._leases_are_reliable = leases_are_reliable
        self._silences = silences
        self._assigns_slots = assigns_slots
        self._due = due
        self._schedule = Schedule(wait_due=None if due is None else due.waiting_for("tasks"))
        # The tasks that occupy slots, by provider, with the time since which each is known to.
        self._occupied: dict[str, dict[str, float]] = {}
        # Providers for which tasks may be waiting: a new task must not overtake them.
        self._backlog: dict[str, bool] = {}
        # The account that last got a slot, by provider; the next turn starts with the account after it.
        self._served: dict[str, str] = {}
        # Providers with waiting tasks whose slots were freed since the last claim, which was at this time.
        self._freed: set[str] = set()
        self._claimed_at = 0.0
        # When the next check for due tasks is, and what ends the wait for it: it is sooner, or a slot was freed.
        self._check_at = -math.inf
        self._sooner = trio.Event()
        # By provider whose waiting tasks are being claimed: its new tasks meanwhile, no more than it has slots.
        self._arrived: dict[str, list[str]] = {}
        # Tasks that have freed their slots since the read of rows that may still show them there.
        self._ended: set[str] = set()
        # Tasks of ended processes whose wakes are not answered yet; those that are not sent yet are in the channel.
        self._recovering: set[str] = set()
        self._recover_later, self._to_recover = trio.open_memory_channel[str](math.inf)
        self._checks = 0
        # The providers whose slots this process assigns, with all their tasks in ``_occupied``.
        self._assigned: frozenset[str] = frozenset()

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Check for due tasks several times a second, assign freed slots, and wake tasks of ended processes."""
        loops = (
            self._assign_loop,
            self._overdue_loop,
            self._deadline_loop,
            *[self.recover] * RECOVERED_AT_ONCE_MAX,
        )
        return loops if self._due is None else (*loops, partial(self._check_when_due, self._due))

    def on_receive(self, message: object) -> None:
        """Dispatch a new task, or note that a slot was freed."""
        if isinstance(message, TaskQueued):
            if message.provider in self._assigned:
                self._dispatch_new(message.provider, message.request_id)
        elif isinstance(message, SlotFreed):
            self._ended.add(message.request_id)
            if message.provider in self._assigned:
                self._occupied.get(message.provider, {}).pop(message.request_id, None)
                if self._backlog.get(message.provider, True):
                    self._freed.add(message.provider)
                    self._sooner.set()

    def handle_at_once(self, message: object) -> bool:
        """Handle a message outside of a turn if it assigns the provider's slots; return whether it does."""
        assert isinstance(message, TaskQueued | SlotFreed)
        if message.provider not in self._assigned or not self._is_ours(message.provider):
            return False
        try:
            self.on_receive(message)
        except Exception:
            # The fault is not its sender's. Sent as any message, it is this worker's crash, which restarts it.
            log.exception("message not handled at once", message=type(message).__name__)
            return False
        return True

    def take_slot(self, provider: str, request_id: str) -> bool:
        """Take a slot for a task that is being created, as :meth:`NewTaskSlots.take` does."""
        if provider in self._arrived or not self._has_spare(provider) or not self._is_ours(provider):
            return False
        self._occupied.setdefault(provider, {})[request_id] = trio.current_time()
        return True

    def _is_ours(self, provider: str) -> bool:
        """Whether it still assigns a provider's slots: another process may have begun to since the last check."""
        return not self.actor_stopped.is_set() and self._assigns_slots(provider)

    def _has_spare(self, provider: str) -> bool:
        """Whether a slot is free and no task is known to wait for it.

        A claim, which knows each task's model, assigns slots while any is paused.
        """
        return not self._backlog.get(provider, True) and self._free(provider) > 0 and not self._paused_models()

    def _dispatch_new(self, provider: str, request_id: str) -> None:
        if provider in self._arrived:
            if len(self._arrived[provider]) < self._slots().get(provider, 0):
                self._arrived[provider].append(request_id)
        elif self._has_spare(provider):
            self._take(provider, request_id)
        else:
            self._backlog[provider] = True
            self._check_within(CHECK_DUE_EVERY_S)

    async def _assign_loop(self) -> None:
        while True:
            try:
                if trio.current_time() >= self._check_at:
                    self._check_at = math.inf
                    with one_pass("check for due tasks"):
                        await self.check_due()
                elif self._freed:
                    # They are assigned together: a claim costs much more than a slot that is free for a moment.
                    await trio.sleep_until(self._claimed_at + CLAIMS_APART_S)
                    with one_pass("freed slots"):
                        await self.assign_freed()
            except DatabaseAway as away:
                # What is due stays due; a later check finds it.
                log.debug("dispatch postponed", reason=str(away))
            if self._is_idle():
                # The next check is one of all, once a look finds something or none has for long.
                self._checks = FOLLOW_UP_EVERY_CHECKS - 1
            else:
                self._check_at = min(self._check_at, trio.current_time() + CHECK_DUE_EVERY_S)
            with trio.CancelScope(deadline=self._check_at):
                await self._sooner.wait()
            self._sooner = trio.Event()

    def _is_idle(self) -> bool:
        """Whether there is nothing to check for, as far as is known. What comes is a message or found in rows."""
        return (
            self._due is not None
            and not self._due.may_have(*DUE_HERE)
            and self._assigned.issuperset(self._slots())
            and not any(
                self._backlog.get(provider, True) or self._occupied.get(provider) for provider in self._assigned
            )
        )

    def _check_within(self, pause_s: float) -> None:
        if self._check_at > trio.current_time() + pause_s:
            self._check_at = trio.current_time() + pause_s
            self._sooner.set()

    async def _check_when_due(self, due: DueWork) -> None:
        """End the pause of an idle dispatcher when a look finds something."""
        wait_due = due.waiting_for(*DUE_HERE)
        while True:
            await wait_due()
            if self._check_at > trio.current_time() + CHECK_DUE_EVERY_S:
                self._check_within(0.0)

    async def _overdue_loop(self) -> None:
        await repeat(
            self.wake_overdue, every_s=OVERDUE_CHECKS_APART_S, name="overdue tasks", schedule=self._schedule
        )

    async def _deadline_loop(self) -> None:
        await repeat(
            self.wake_past_deadline, every_s=DEADLINE_CHECKS_APART_S, name="deadlines", schedule=self._schedule
        )

    async def assign_freed(self) -> None:
        """Assign the slots that were freed since the last claim."""
        freed, self._freed = self._freed, set()
        for provider in freed:
            await self._start_waiting(provider)

    async def check_due(self) -> None:
        """Assign free slots to waiting tasks; now and then take over, follow up and look for lost slots."""
        self._checks += 1
        check_all = self._checks % FOLLOW_UP_EVERY_CHECKS == 0
        if check_all or self._checks == 1:
            await self._take_over()
        if self._checks % LOST_SLOTS_EVERY_CHECKS == 0:
            await self._return_lost_slots()
        await self._find_assigned()
        for provider in self._assigned:
            # Known backlogs are checked each time; a new task of which no message came, less often.
            if check_all or self._backlog.get(provider, True):
                await self._start_waiting(provider)
        if check_all:
            self._show_slots()
            await self._follow_up()

    def _show_slots(self) -> None:
        slots = self._slots()
        for provider in self._assigned:
            metrics.PROVIDER_SLOTS.labels(provider).set(slots.get(provider, 0))
            metrics.PROVIDER_SLOTS_USED.labels(provider).set(len(self._occupied.get(provider, ())))

    async def _find_assigned(self) -> None:
        """Find the providers whose slots this process assigns, and the tasks that occupy them now."""
        assigned = frozenset(filter(self._assigns_slots, self._slots()))
        for provider in self._assigned - assigned:
            metrics.PROVIDER_SLOTS.labels(provider).set(0)
            metrics.PROVIDER_SLOTS_USED.labels(provider).set(0)
            self._occupied.pop(provider, None)
            self._backlog.pop(provider, None)
            self._freed.discard(provider)
        self._assigned &= assigned
        if assigned != self._assigned:
            self._ended.clear()
            dispatched = await self._database.read(dispatched_tasks)
            new, self._assigned = assigned - self._assigned, assigned
            self._occupy(row for row in dispatched if row.provider in new)

    async def _take_over(self) -> None:
        """Take over the dispatched tasks of ended processes; they occupy slots until they end."""
        if len(self._recovering) >= TAKEN_OVER_MAX:
            # Those taken over earlier come first.
            return
        now, process, leases_are_reliable = self._now(), self._process, self._leases_are_reliable()
        self._ended.clear()
        taken = await self._database.work(take_over, process, now, leases_are_reliable=leases_are_reliable)
        self._occupy(taken)
        if taken:
            log.info("took over tasks of ended processes", tasks=len(taken))
        for row in taken:
            self._recover_soon(row.request_id)

    async def _follow_up(self) -> None:
        now, me = self._now(), self._process.member_id
        due = await self._database.work(claim_follow_ups, me=me, most=FOLLOW_UPS_MAX, now=now)
        for row in due:
            if row.owner_before != me:
                self._recover_soon(row.request_id)
            elif row.request_id not in self._recovering:
                self._tasks.ref(row.request_id).tell(Wake())

    def _recover_soon(self, request_id: str) -> None:
        if request_id not in self._recovering:
            self._recovering.add(request_id)
            self._recover_later.send_nowait(request_id)

    async def recover(self) -> None:
        """Wake one task of an ended process after another."""
        async for request_id in self._to_recover:
            await self._wake_one(request_id, Wake(recovering=True))
            self._recovering.discard(request_id)

    async def wake_overdue(self) -> None:
        """Wake waiting tasks that can only fail, and release their credit: that needs no slot."""
        now, me = self._now(), self._process.member_id
        await self._wake(partial(claim_overdue, most=FOLLOW_UPS_MAX, now=now))
        listed = self._slots()
        for provider in await self._database.read(providers_waited_for):
            if provider not in listed and self._removed(provider):
                await self._wake(partial(claim_of_removed, provider=provider, me=me, most=FOLLOW_UPS_MAX, now=now))
        for provider in listed:
            for silence in self._silences(provider):
                claim = partial(claim_of_silent, provider=provider, silence=silence, most=FOLLOW_UPS_MAX, now=now)
                await self._wake(claim, silence)

    async def wake_past_deadline(self) -> None:
        """Wake tasks whose caller's deadline has passed, which cancels them and needs no slot."""
        await self._wake(partial(claim_past_deadline, most=FOLLOW_UPS_MAX, now=self._now()))

    async def _wake(self, claim: Callable[..., list[str]], silence: Silence | None = None) -> None:
        """Wake all tasks that a claim finds; the next claim waits until these are done, however many there are."""
        wake = partial(self._wake_one, wake=Wake(silence=silence))
        while True:
            claimed = await self._database.work(claim)
            await do_each(wake, claimed, concurrent_max=WAKES_AT_ONCE_MAX)
            if len(claimed) < FOLLOW_UPS_MAX:
                return

    async def _wake_one(self, request_id: str, wake: Wake) -> None:
        # A task that does not reply, such as one whose row cannot be read, is found again when its claim lapses.
        with suppress(AskFault, Crashed, StaleFence, UnreadableRow):
            await self._tasks.ref(request_id).ask(wake, while_down="wait")

    async def _start_waiting(self, provider: str) -> None:
        """Assign free slots to accounts with waiting tasks, in turn."""
        free = self._free(provider)
        if not free:
            self._backlog[provider] = True
            return
        self._claimed_at = trio.current_time()
        self._freed.discard(provider)
        now, after, paused = self._now(), self._served.get(provider, FIRST), self._paused_models()
        # Unknown until the claim has succeeded.
        self._backlog[provider] = True
        self._arrived[provider] = []
        try:
            waiting, self._served[provider] = await self._database.work(
                claim_waiting, provider, slots=free, after=after, now=now, paused=paused
            )
        finally:
            arrived = self._arrived.pop(provider)
        # As many as there are slots may not be all that arrived.
        is_full = len(waiting) == free or len(arrived) >= self._slots().get(provider, 0)
        self._backlog[provider] = is_full or bool(paused)
        for request_id in waiting:
            self._take(provider, request_id)
        for request_id in arrived:
            if request_id not in self._occupied.get(provider, ()):
                self._dispatch_new(provider, request_id)

    async def _return_lost_slots(self) -> None:
        """Free the slots of tasks whose end was not reported here, for example by another process."""
        taken_before = trio.current_time() - LOST_SLOT_AFTER_S
        old = {r: since for tasks in self._occupied.values() for r, since in tasks.items() if since < taken_before}
        if not old:
            return
        still = await self._database.read(still_occupying, list(old))
        for tasks in self._occupied.values():
            for request_id in old.keys() - still:
                if tasks.get(request_id) == old[request_id]:
                    del tasks[request_id]

    def _occupy(self, rows: Iterable[DispatchedTask]) -> None:
        """Record the tasks that occupy slots by their rows."""
        now = trio.current_time()
        for row in rows:
            if row.occupies and row.provider in self._assigned and row.request_id not in self._ended:
                self._occupied.setdefault(row.provider, {})[row.request_id] = now

    def _free(self, provider: str) -> int:
        return max(0, self._slots().get(provider, 0) - len(self._occupied.get(provider, ())))

    def _take(self, provider: str, request_id: str) -> None:
        self._occupied.setdefault(provider, {})[request_id] = trio.current_time()
        self._tasks.ref(request_id).tell(Wake())
