"""The worker of closings: has accounts closed whose time has come, and deletes what is not kept of them.

What is due is found in rows, and each step may be repeated: the account's actor closes it once, a card that was
detached stays so, and deleting what is gone changes nothing. So a process that ends at any point leaves the rest to
the next pass, of whichever process.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from holdfast.actors.account.messages import ClosingEnded, FinishClosing, RemoveCard
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.workers.passes import ALWAYS, Schedule, repeat
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.inputs import without_content
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.values import Now, new_id
from holdfast.persistence.claims.closings import (
    DueClosing,
    after_of,
    due_closings,
    erase_rows,
    erase_unmatched_events,
    record_erased,
    statements_count,
    tasks_of_closed,
)
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Fence, Unit
from holdfast.persistence.queries.orders import top_up_of_account
from holdfast.persistence.records.rows import Row, TaskChangedRow
from holdfast.persistence.server.database import Database
from holdfast.providers.card.base import CardFault, CardProvider

T = TypeVar("T")

log = structlog.get_logger(__name__)

SWEEP_S: Final = 5.0
SWEEP_BOUND_S: Final = 600.0
ACCOUNTS_MAX: Final = 20
TASKS_MAX: Final = 50
ROWS_MAX: Final = 1_000
ASK_DEADLINE_S: Final = 30.0
_FIRST: Final = (datetime.min.replace(tzinfo=UTC), "")


class Postponed(Exception):
    """A step was not done; the next pass does it."""


class ClosingWorker:
    """Looks every few seconds. Without ``card``, saved cards are not detached: there is no provider to tell."""

    def __init__(
        self,
        *,
        database: Database,
        journal: Journal,
        accounts: Directory,
        card: CardProvider | None,
        now: Now,
        member_id: str,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._database = database
        self._journal = journal
        self._accounts = accounts
        self._card = card
        self._now = now
        self._member_id = member_id
        self._schedule = schedule
        # Where the next pass continues, so that accounts which cannot be closed yet do not delay the others.
        self._after = _FIRST

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Look every few seconds until cancelled."""
        task_status.started()
        await repeat(
            self.sweep,
            every_s=SWEEP_S,
            name="closing of accounts",
            bound_s=SWEEP_BOUND_S,
            schedule=self._schedule,
        )

    async def sweep(self) -> bool:
        """Do what is due for the next accounts; return whether others follow. Raises ``DatabaseAway``."""
        due = await self._database.read(due_closings, self._now(), after=self._after, most=ACCOUNTS_MAX)
        is_more_due = len(due) == ACCOUNTS_MAX
        self._after = (due[-1].closes_at, due[-1].account_id) if is_more_due else _FIRST
        for each in due:
            try:
                await self._do(each)
            except (Postponed, AskFault, Crashed) as fault:
                log.info("closing of an account postponed", account_id=each.account_id, reason=str(fault))
        return is_more_due

    async def _do(self, due: DueClosing) -> None:
        """Close an account; once it is closed detach its cards, and after a while delete the rest.

        The provider's events of the cards' detachment have come by then, and are deleted too.
        """
        if due.closed_at is None:
            closed = await self._ask(due.account_id, FinishClosing())
            if closed != ClosingEnded("closed"):
                return
        await self._detach_cards(due.account_id)
        if due.is_settled(self._now()):
            await self._erase(due.account_id)

    async def _ask(self, account_id: str, command: Command[T]) -> T:
        reply = await self._accounts.ref(account_id).ask(command, deadline_s=ASK_DEADLINE_S)
        if isinstance(reply, Refusal):
            raise Postponed(reply.code)
        return reply

    async def _erase(self, account_id: str) -> None:
        """Delete what is not kept: contents of tasks, and rows. Raises :class:`Postponed`."""
        await self._erase_tasks(account_id)
        top_up = await self._database.read(top_up_of_account, account_id)
        names = [account_id] + ([] if top_up is None or top_up.customer_id is None else [top_up.customer_id])
        while await self._database.work(erase_unmatched_events, names, most=ROWS_MAX):
            await trio.lowlevel.checkpoint()
        for which in range(statements_count()):
            erase = partial(erase_rows, account_id=account_id, which=which, most=ROWS_MAX)
            while await self._database.work(erase):
                await trio.lowlevel.checkpoint()
        if await self._database.work(record_erased, account_id, new_id("chg"), self._now()):
            log.info("account erased", account_id=account_id)

    async def _detach_cards(self, account_id: str) -> None:
        """Detach the saved cards at their provider. Raises :class:`Postponed`."""
        top_up = await self._database.read(top_up_of_account, account_id)
        for card in () if top_up is None else top_up.cards:
            if self._card is None:
                log.warning("saved card not detached", account_id=account_id, reason="no card provider")
            else:
                try:
                    await self._card.detach_card(card.card_id)
                except CardFault as fault:
                    raise Postponed(f"the card provider did not detach a card: {type(fault).__name__}") from fault
            await self._ask(account_id, RemoveCard(card.card_id))

    async def _erase_tasks(self, account_id: str) -> None:
        after, is_complete = _FIRST, True
        while found := await self._database.read(tasks_of_closed, account_id, after=after, most=TASKS_MAX):
            after = after_of(found)
            fences: list[Fence] = []
            rows: list[Row] = []
            for task in found:
                if not isinstance(task, Task):
                    is_complete = False
                elif (erased := without_content(task)) != task:
                    fences.append(Fence("task", task.request_id, task.version))
                    rows.append(TaskChangedRow(erased, self._member_id, has_new_request=True, has_new_usage=True))
            if rows:
                await self._write(Unit(fences=tuple(fences), rows=tuple(rows)))
        if not is_complete:
            raise Postponed("a task of the account is unreadable")

    async def _write(self, unit: Unit) -> None:
        result = await self._journal.write(unit)
        if not isinstance(result, Committed):
            raise Postponed(type(result).__name__)
