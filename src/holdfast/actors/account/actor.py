"""The account actor: decides all changes of one account's credit, payment orders, API keys and sessions.

Each command is decided on the newest decided state and becomes one unit of work, fenced by the account's version.
Refusals come first, in the order each docstring lists them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeAlias

from holdfast.actors.account.create_rate import CreateRate
from holdfast.actors.account.messages import (
    AdjustCredit,
    CreateApiKey,
    CreateOrder,
    CreateTask,
    CreditChanged,
    OperatorCommand,
    OrderCommand,
    Recharge,
    RecordKeyUse,
    RefuseTask,
    RevokeApiKey,
    SetAccess,
    SettleTask,
    SignOut,
    TaskAccepted,
)
from holdfast.actors.account.orders import AccountOrders
from holdfast.actors.account.replies import RecentReplies
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit, JournaledActor, LogEvent, LogFields, Tell, Turn
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import idempotency_of, reply_type
from holdfast.ledger.clock import Now
from holdfast.ledger.credit.account import (
    OperationDetails,
    decide_adjustment,
    decide_capture,
    decide_credit,
    decide_hold,
    decide_release,
)
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.ids import new_id, new_id_of_account
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.ledger.tasks.task import Task, accept_task
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Fence, Unit, UnitResult
from holdfast.persistence.queries.loading import LoadedAccount
from holdfast.persistence.records.rows import (
    AccountAccessRow,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    SessionRevokedRow,
)
from holdfast.persistence.server.database import Database

AccountCommand: TypeAlias = (
    CreateTask
    | RefuseTask
    | SettleTask
    | Recharge
    | CreateApiKey
    | RevokeApiKey
    | RecordKeyUse
    | SignOut
    | OrderCommand
    | OperatorCommand
)


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of one account. ``task_creates_per_s`` 0: no limit."""

    tasks_in_flight_max: int = 1000
    task_creates_per_s: float = 0
    task_creates_burst: int = 20_000
    live_keys_max: int = 100
    replies_max: int = 128
    orders_pending_max: int = 1000


class AccountActor(JournaledActor):
    """One account. ``load`` reads its rows, ``database`` has its orders; ``announce`` notifies of a new task."""

    kind = "accounts"
    own_fence = "account"

    def __init__(
        self,
        account_id: str,
        mailbox: Mailbox,
        journal: Journal,
        *,
        load: Callable[[str], Awaitable[LoadedAccount]],
        database: Database,
        announce: Callable[[Task], Tell],
        now: Now,
        limits: AccountLimits,
    ) -> None:
        super().__init__(mailbox, journal)
        self._account_id = account_id
        self._load = load
        self._announce = announce
        self._now = now
        self._limits = limits
        self._units: AccountUnits
        self._live_keys: dict[str, frozenset[str]]
        self._disabled_at: datetime | None
        self._replies = RecentReplies(account_id, replies_max=limits.replies_max)
        self._database = database
        self._orders: AccountOrders | None = None
        self._create_rate = CreateRate(limits.task_creates_per_s, limits.task_creates_burst)

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the account's head, open holds and live keys."""
        state, self._live_keys, self._disabled_at = await self._load(self._account_id)
        self._units = AccountUnits(state, self._replies, self._now)

    def inherit(self, before: Self) -> None:
        """Take over the replies that were found in rows, and what is left of the allowance of creates."""
        super().inherit(before)
        self._replies.learn(before.learned)
        self._create_rate = before._create_rate

    def on_receive(self, message: AccountCommand) -> Turn[object] | Awaitable[Turn[object]]:
        """Decide one command. Refuses: 1. a disabled account, or an API key; 2. a used Idempotency-Key.

        A command with a key is answered by what the key replays, so that no handler sees it again.
        """
        refusal = self._refuse_access(message)
        if refusal is not None:
            return self._units.confirm(refusal)
        idempotency = idempotency_of(message)
        used = None if idempotency is None else self._replies.find(idempotency, reply_type(type(message)))
        return self._decide(message) if used is None else used

    def _decide(self, message: AccountCommand) -> Turn[object] | Awaitable[Turn[object]]:
        match message:
            case CreateTask():
                return self._create_task(message)
            case RefuseTask():
                return self._refuse_task(message)
            case SettleTask():
                return self._settle_task(message)
            case Recharge():
                return self._recharge(message)
            case CreateApiKey():
                return self._create_api_key(message)
            case RevokeApiKey():
                return self._revoke_api_key(message)
            case RecordKeyUse():
                return self._record_key_use(message)
            case SignOut():
                return self._sign_out(message)
            case AdjustCredit():
                return self._adjust(message)
            case SetAccess():
                return self._set_access(message)
            case _:
                return self._change_order(message)

    def unit_ended(self, unit: Unit, result: UnitResult) -> None:
        """Take the journal's result for a unit; the orders whose decision it was may then be evicted."""
        if self._orders is not None:
            self._orders.unit_ended(unit)
        if not isinstance(result, Committed) and any(isinstance(row, Task) for row in unit.rows):
            # It is decided again, or was a repeat, which costs no allowance.
            self._create_rate.give_back()
        super().unit_ended(unit, result)

    # --------------------------------------------------------------------------------------------------- credit

    def _recharge(self, command: Recharge) -> Turn[CreditChanged]:
        """Refuses as :meth:`_change_credit`."""
        operation_id = new_id("op")
        operation = decide_credit(
            self._units.state,
            amount_micro=command.amount_micro,
            source="sandbox",
            operation_id=operation_id,
            reference=operation_id,
            reason="sandbox recharge",
            at=self._now(),
        )
        fields: LogFields = {"account_id": self._account_id, "amount_micro": command.amount_micro}
        return self._change_credit(command, operation, LogEvent("account recharged", fields))

    def _adjust(self, command: AdjustCredit) -> Turn[CreditChanged]:
        """Refuses as :meth:`_change_credit`."""
        operation = decide_adjustment(
            self._units.state,
            amount_micro=command.amount_micro,
            operation_id=new_id("op"),
            reference=command.action_id,
            reason=command.note,
            at=self._now(),
        )
        return self._change_credit(command, operation)

    def _change_credit(
        self, command: Recharge | AdjustCredit, operation: Operation | Refusal, log_event: LogEvent | None = None
    ) -> Turn[CreditChanged]:
        """Post an operation of no task or order. Refuses: 1. the ledger's refusals."""
        if isinstance(operation, Refusal):
            return self._units.refuse(command, operation)
        self._units.state.apply(operation)
        reply = CreditChanged(operation.operation_id, command.amount_micro, self._units.state.totals)
        return self._units.change(command, reply, operations=(operation,), log_event=log_event)

    def _create_task(self, command: CreateTask) -> Turn[TaskAccepted]:
        """Refuses: 1. a create above the rate limit; 2. too many tasks; 3. insufficient credit."""
        request = command.request
        state, terms = self._units.state, request.terms
        refusal = self._create_rate.refuse()
        if refusal is not None:
            # It does not depend on the account's state, so the rows need not confirm it.
            return refusal
        if len(state.holds) >= self._limits.tasks_in_flight_max:
            refusal = Refusal(
                code="concurrency_limit_exceeded",
                message=f"This account has {len(state.holds)} tasks in flight, the most allowed.",
                retry_after_s=5,
            )
            return self._units.refuse(command, refusal)
        at = self._now()
        request_id = new_id_of_account("task", state.account_id)
        operation = decide_hold(
            state,
            operation_id=new_id("op"),
            hold_id=request.hold_id,
            amount_micro=request.hold_micro,
            reference=request_id,
            at=at,
        )
        if isinstance(operation, Refusal):
            return self._units.refuse(command, operation)
        state.apply(operation)
        self._create_rate.take()
        task = accept_task(state.account_id, request_id, request, at)
        reply = TaskAccepted(
            request_id, request.quote_id, task.status, request.retry_of, terms.estimate_micro, terms.basis
        )
        return self._units.change(
            command,
            reply,
            operations=(operation,),
            rows=(task,),
            tells=(self._announce(task),),
            log_event=_created(task),
        )

    def _refuse_task(self, command: RefuseTask) -> Turn[TaskAccepted]:
        """Refuses as the command says."""
        return self._units.refuse(command, command.refusal)

    def _settle_task(self, command: SettleTask) -> Turn[Settlement]:
        """Refuses: 1. the ledger's refusals of a capture or release."""
        state, settlement = self._units.state, command.settlement
        details = OperationDetails(
            operation_id=settlement.operation_id,
            reference=command.request_id,
            reason=settlement.reason,
            at=settlement.at,
        )
        if settlement.kind == "release":
            operation = decide_release(state, hold_id=settlement.hold_id, **details)
        else:
            operation = decide_capture(
                state, hold_id=settlement.hold_id, charge_micro=settlement.charge_micro, **details
            )
        if isinstance(operation, Refusal):
            return self._units.refuse(command, operation)
        state.apply(operation)
        return self._units.change(
            command,
            settlement,
            operations=(operation,),
            rows=command.rows,
            fences=(Fence("task", command.request_id, command.task_version),),
        )

    async def _change_order(self, command: OrderCommand) -> Turn[OrderResult]:
        """Refuses what :class:`AccountOrders` refuses."""
        if self._orders is None:
            most = self._limits.orders_pending_max
            self._orders = AccountOrders(self._units, self._database, self._now, pending_max=most)
        return await self._orders.decide(command)

    # --------------------------------------------------------------------------------------- keys and sessions

    def _create_api_key(self, command: CreateApiKey) -> Turn[ApiKeyRecord]:
        """Refuses: 1. too many live keys."""
        if len(self._live_keys) >= self._limits.live_keys_max:
            refusal = Refusal(
                code="api_key_limit_reached",
                message=f"This account has {len(self._live_keys)} live API keys, the most allowed.",
                final=True,
            )
            return self._units.refuse(command, refusal)
        at = self._now()
        self._live_keys[command.key_id] = frozenset(command.scopes)
        key = ApiKeyRecord(self._account_id, command.key_id, command.prefix, command.name, command.scopes, at)
        return self._units.change(command, key, rows=(ApiKeyRow(key, command.secret_sha256),))

    def _revoke_api_key(self, command: RevokeApiKey) -> Turn[ApiKeyRevokedRow]:
        """Refuses: 1. a key that is not live here."""
        if self._live_keys.pop(command.key_id, None) is None:
            return self._units.refuse(
                command, Refusal(code="api_key_not_found", message="This account has no such live API key.")
            )
        row = ApiKeyRevokedRow(self._account_id, command.key_id, self._now())
        return self._units.change(command, row, rows=(row,))

    def _record_key_use(self, command: RecordKeyUse) -> Turn[None]:
        return Commit(Unit(rows=(ApiKeyUsedRow(self._account_id, command.key_id, command.at),)), None)

    def _sign_out(self, command: SignOut) -> Turn[SessionRevokedRow]:
        row = SessionRevokedRow(self._account_id, command.session_id, self._now())
        return self._units.change(command, row, rows=(row,))

    def _set_access(self, command: SetAccess) -> Turn[AccountAccessRow]:
        """An account that is disabled already keeps its time."""
        if command.is_disabled == (self._disabled_at is not None):
            return self._units.confirm(AccountAccessRow(self._account_id, self._disabled_at))
        self._disabled_at = self._now() if command.is_disabled else None
        row = AccountAccessRow(self._account_id, self._disabled_at)
        return self._units.change(command, row, rows=(row,))

    def _refuse_access(self, message: AccountCommand) -> Refusal | None:
        """Refuse what a disabled account gets no more, and tasks by an API key that is not live or lacks scope."""
        match message:
            case CreateTask():
                return self._refuse_key(message.request.api_key_id, message.scope)
            case RefuseTask():
                return self._refuse_key(message.api_key_id, message.scope)
            case Recharge() | CreateApiKey() | CreateOrder() if self._disabled_at is not None:
                return ACCOUNT_DISABLED
        return None

    def _refuse_key(self, key_id: str | None, scope: str) -> Refusal | None:
        if self._disabled_at is not None:
            return ACCOUNT_DISABLED
        scopes = self._live_keys.get(key_id or "")
        if scopes is None:
            return Refusal(code="invalid_api_key", message="This API key is not valid.")
        if scope not in scopes:
            return Refusal(code="insufficient_scope", message=f"This API key lacks the scope {scope}.")
        return None


def _created(task: Task) -> LogEvent:
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
