"""The decided state of an account, and the units of work that make it durable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from holdfast.actors.account.by_keys import calling_key
from holdfast.actors.account.replies import STORED_REFUSALS, RecentReplies
from holdfast.actors.account.top_ups import AccountTopUp
from holdfast.actors.runtime.journaled import Commit, LogEvent, Tell
from holdfast.actors.runtime.messages import Command
from holdfast.ledger.alerts.account_events import AccountEventData
from holdfast.ledger.alerts.alerts import DEFAULT_ALERTS, Alerts, balance_alert
from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.values import Now
from holdfast.persistence.journal.units import Fence, Unit, Unless
from holdfast.persistence.records.event_rows import MAILTO, AlertsRow, WebhookRow, account_event_rows
from holdfast.persistence.records.rows import (
    AccountChange,
    AccountChangeRow,
    AccountHead,
    IdempotencyProbe,
    NewTaskRow,
    Row,
)

R = TypeVar("R")


class BegunTask(NamedTuple):
    """The row of a new task, and what to send once it is durable, or it is certain that it was not written."""

    row: NewTaskRow
    tells: tuple[Tell, ...]
    tells_if_void: tuple[Tell, ...] = ()


class AccountUnits:
    """``state`` is the newest decided one. Each unit is fenced by the version it was decided on.

    So are ``webhooks``, by their ids, and ``alerts``.
    """

    __slots__ = ("_now", "_paid_credit_days", "alerts", "replies", "state", "top_up", "webhooks")

    def __init__(
        self,
        state: AccountState,
        replies: RecentReplies,
        now: Now,
        *,
        webhooks: dict[str, WebhookRow] | None = None,
        alerts: Alerts = DEFAULT_ALERTS,
        paid_credit_days: int = 0,
    ) -> None:
        self.state = state
        self.replies = replies
        self.webhooks = webhooks or {}
        self.alerts = alerts
        self._now = now
        self.top_up: AccountTopUp | None = None
        """None while the account has no card saved and has never set a top-up."""
        self._paid_credit_days = paid_credit_days

    def paid_until(self, at: datetime) -> datetime | None:
        """Return when credit that is paid for now expires; None: it never does."""
        return at + timedelta(days=self._paid_credit_days) if self._paid_credit_days else None

    def change(
        self,
        command: Command[Any],
        reply: R,
        *,
        operations: tuple[Operation, ...] = (),
        rows: tuple[Row, ...] = (),
        fences: tuple[Fence, ...] = (),
        tells: tuple[Tell, ...] = (),
        log_event: LogEvent | None = None,
        unless: Unless | None = None,
        tells_if_void: tuple[Tell, ...] = (),
    ) -> Commit[R]:
        """Move the account to its next version; ``log_event`` is logged once that is durable.

        The reply is stored under the command's Idempotency-Key, if it has one. An alert about the balance that
        the operations cross is announced in the same unit.
        """
        state = self.state
        if self.alerts.balance_below_micro is not None:
            rows = (*rows, *self.balance_rows())
        if self.top_up is not None:
            rows = (*rows, *self.top_up.rows_after(state.available_micro, operations))
        fence = Fence("account", state.account_id, state.version)
        state.version += 1
        probe = None
        if command.idempotency is not None:
            stored = self.replies.add(command.idempotency, reply, self._now())
            probe, rows = stored.probe, (*rows, stored)
        head = AccountHead(
            state.account_id,
            state.version,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
            state.lots.encoded(),
        )
        return Commit(
            Unit(fences=(fence, *fences), rows=(head, *operations, *rows), probe=probe, unless=unless),
            reply,
            tells,
            log_event,
            tells_if_void,
        )

    def noted(self, command: Command[Any], what: AccountChange, subject: str) -> tuple[Row, ...]:
        """Return the row of what an API key does, for the account's history; none of what others do."""
        by = calling_key(command)
        if by is None:
            return ()
        return (AccountChangeRow(self.state.account_id, self._now(), what, api_key_id=by, subject=subject),)

    def event_rows(self, data: AccountEventData, at: datetime) -> tuple[Row, ...]:
        """Return the rows of an event of the account, to be written with the change that it is about.

        There are none if no webhook receives it and no mail is sent about it.
        """
        account_id = self.state.account_id
        alerts, is_mailed = self.alerts.mailed_about(data, at)
        events = account_event_rows(account_id, self.webhooks.values(), data, at, is_mailed=is_mailed)
        if not is_mailed:
            return events
        self.alerts = alerts
        return (AlertsRow(account_id, alerts), *events)

    def notice_rows(self, data: AccountEventData, at: datetime, email: str) -> tuple[Row, ...]:
        """Return the rows of an event that this address gets by mail, whatever mail the account wants."""
        webhooks = self.webhooks.values()
        return account_event_rows(
            self.state.account_id, webhooks, data, at, is_mailed=True, mail_url=MAILTO + email
        )

    def alert_rows(
        self, subject: str, marker: str | None, announce: Callable[[], AccountEventData], at: datetime
    ) -> tuple[Row, ...]:
        """Note whether a subject is beyond its threshold, as :meth:`Alerts.noted`; return the rows of that.

        ``announce`` returns the event of a crossing. A crossing is announced once, and again once it was crossed
        back (``marker`` None), or beyond it in another way (another marker).
        """
        alerts, is_new = self.alerts.noted(subject, marker)
        return self._noted(alerts, announce() if is_new else None, at)

    def balance_rows(self) -> tuple[Row, ...]:
        """Return the rows of a crossing of the alert about the balance, if the state is one."""
        return self._noted(*balance_alert(self.alerts, self.state), self._now())

    def _noted(self, alerts: Alerts, data: AccountEventData | None, at: datetime) -> tuple[Row, ...]:
        if alerts is self.alerts:
            return ()
        self.alerts = alerts
        events = () if data is None else self.event_rows(data, at)
        # Of two rows of the alerts in a unit, the later one is written.
        return (AlertsRow(self.state.account_id, alerts), *events)

    def confirm(self, reply: R, rows: tuple[Row, ...] = (), *, probe: IdempotencyProbe | None = None) -> Commit[R]:
        """Send a reply that changes nothing of the account, once the rows confirm that the state is the newest.

        Another process may serve the account too. ``rows`` do not depend on the account's version.
        """
        fence = Fence("account", self.state.account_id, self.state.version)
        return Commit(Unit(fences=(fence,), rows=rows, probe=probe, advances=False), reply)

    def refuse(self, command: Command[Any], refusal: Refusal) -> Commit[Refusal]:
        """Send a refusal as :meth:`confirm` does; one of :data:`STORED_REFUSALS` is stored.

        A command with an Idempotency-Key may have been accepted before: it is refused only if its key is unused.
        """
        idempotency = command.idempotency
        if idempotency is None:
            return self.confirm(refusal)
        if refusal.code in STORED_REFUSALS:
            return self.change(command, refusal)
        probe = IdempotencyProbe(self.state.account_id, idempotency.route, idempotency.key)
        return self.confirm(refusal, probe=probe)


def created_event(task: Task) -> LogEvent:
    """Return the event of a new task."""
    return LogEvent(
        "task created",
        {
            "task_id": task.request_id,
            "account_id": task.account_id,
            "provider": task.provider,
            "model": task.model,
            "hold_micro": task.request.hold_micro,
        },
    )
