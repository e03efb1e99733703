"""The account actor: decides all changes of one account's credit, payment orders, keys, sessions and webhooks.

Each command is decided on the newest decided state and becomes one unit of work, fenced by the account's version.
Refusals come first, in the order each docstring lists them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, Self, TypeAlias

from holdfast.actors.account.alerts import decide_alerts
from holdfast.actors.account.by_keys import ByKey, NoteChange, calling_key
from holdfast.actors.account.counted_limits import CountedLimits
from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup, GroupCommand
from holdfast.actors.account.key_groups import KeyGroups
from holdfast.actors.account.keys import AccountKeys, model_not_allowed
from holdfast.actors.account.leaving import AccountLeaving
from holdfast.actors.account.limits import AccountLimits, CreateRate
from holdfast.actors.account.messages import (
    AdjustCredit,
    AlertCommand,
    AllowMail,
    AnnounceExpiry,
    BeginAttempt,
    ChangeApiKey,
    ChangeEmail,
    CloseAccount,
    CreateApiKey,
    CreateOrder,
    CreateTask,
    CreditChanged,
    DeleteWebhook,
    ExpireLots,
    FinishClosing,
    GrantCredit,
    LeavingCommand,
    LotsExpired,
    OrderCommand,
    PutWebhook,
    Recharge,
    RecordCustomer,
    RecordKeyUse,
    RedeemCoupon,
    RefuseTask,
    RemoveCard,
    ResumeTopUp,
    RevokeApiKey,
    RevokeWithMade,
    SaveCard,
    SetAccess,
    SetAlerts,
    SetAutoTopUp,
    SetCeiling,
    SetLimits,
    SettleTask,
    SignOut,
    StopMail,
    SwitchOffTopUp,
    TaskAccepted,
    TopUpCommand,
    VoidLot,
)
from holdfast.actors.account.orders import AccountOrders
from holdfast.actors.account.replies import RecentReplies
from holdfast.actors.account.top_ups import AccountTopUp
from holdfast.actors.account.units import AccountUnits, BegunTask, created_event
from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.runtime.journaled import JournaledActor, LogEvent, LogFields, Turn
from holdfast.actors.runtime.mailbox import Mailbox, SystemMessage
from holdfast.actors.runtime.messages import reply_type
from holdfast.ledger.alerts.account_events import AccountDisabled, CreditExpiring
from holdfast.ledger.api_keys import has_scope, is_model_allowed, lacking_scope
from holdfast.ledger.credit.account import (
    OperationDetails,
    decide_adjustment,
    decide_capture,
    decide_credit,
    decide_expiry,
    decide_grant,
    decide_hold,
    decide_release,
    decide_void,
)
from holdfast.ledger.credit.limits import LimitedHold
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.orders.order import OrderResult, Seller
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.refusals import ACCOUNT_CLOSING, ACCOUNT_DISABLED, SUPERSEDED, Refusal
from holdfast.ledger.tasks.task import Task, accept_task
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.ledger.values import Now, format_amount, format_time, new_id, new_id_of_account
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Fence, Unit, UnitResult
from holdfast.persistence.queries.loading import LoadedAccount, RowMissing
from holdfast.persistence.records.rows import (
    AccountAccessRow,
    CouponGrantedRow,
    LotAnnouncedRow,
    NewTaskRow,
    Row,
    SessionRevokedRow,
)
from holdfast.persistence.server.database import Database

AccountCommand: TypeAlias = (
    CreateTask
    | BeginAttempt
    | RefuseTask
    | SettleTask
    | Recharge
    | CreateApiKey
    | ChangeApiKey
    | RevokeApiKey
    | RevokeWithMade
    | RecordKeyUse
    | SetLimits
    | GroupCommand
    | SignOut
    | AlertCommand
    | OrderCommand
    | TopUpCommand
    | LeavingCommand
    | AdjustCredit
    | SetAccess
    | SetCeiling
    | GrantCredit
    | VoidLot
    | RedeemCoupon
    | ExpireLots
    | AnnounceExpiry
    | ByKey
)

_USES: Final = (
    CreateTask, BeginAttempt, RefuseTask, Recharge, CreateApiKey, CreateOrder, PutWebhook, RecordCustomer,
    SetAutoTopUp, ByKey,
)  # fmt: skip
"""What neither an account that is disabled gets, nor one that is to be closed."""


EXPIRIES_MAX = 100
"""How many lots one unit of work expires; the rest is asked for again."""


class AccountActor(JournaledActor):
    """One account. ``load`` reads its rows, ``database`` has its orders; ``begin_task`` begins a new task."""

    kind = "accounts"
    own_fences = frozenset({"account", "sign_in"})

    def __init__(
        self,
        account_id: str,
        mailbox: Mailbox,
        journal: Journal,
        *,
        load: Callable[[str], Awaitable[LoadedAccount]],
        database: Database,
        begin_task: Callable[[Task], BegunTask],
        now: Now,
        limits: AccountLimits,
        seller: Seller,
    ) -> None:
        super().__init__(mailbox, journal)
        self._account_id = account_id
        self._load = load
        self._begin_task = begin_task
        self._now = now
        self._limits = limits
        self._seller = seller
        self._units: AccountUnits
        self._keys: AccountKeys
        self._spent: CountedLimits
        self._leaving: AccountLeaving
        self._disabled_at: datetime | None
        self._replies = RecentReplies(account_id, replies_max=limits.replies_max, ttl_s=limits.idempotency_ttl_s)
        self._database = database
        self._is_away = False
        self._orders: AccountOrders | None = None
        self._create_rate = CreateRate(limits, account_id)

    def log_ids(self) -> dict[str, str]:
        """The account's."""
        return {"account_id": self._account_id}

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the account's head, holds, live keys, what is spent of limits, webhooks, alerts and top-up."""
        try:
            loaded = await self._load(self._account_id)
        except RowMissing:
            # Only an account that was moved to another cell has no row any more.
            self._is_away = True
            return
        self._disabled_at = loaded.disabled_at
        self._units = AccountUnits(
            loaded.state,
            self._replies,
            self._now,
            webhooks=loaded.webhooks,
            alerts=loaded.alerts,
            paid_credit_days=self._limits.paid_credit_days,
        )
        self._leaving = AccountLeaving(
            self._units,
            loaded.closes_at,
            loaded.closed_at,
            database=self._database,
            now=self._now,
            await_durable=self.await_durable,
        )
        if loaded.top_up is not None:
            self._units.top_up = self._top_up_of(loaded.top_up)
        self._spent = CountedLimits(
            self._units,
            loaded.spending,
            database=self._database,
            now=self._now,
            await_durable=self.await_durable,
        )
        self._keys = AccountKeys(
            self._units,
            loaded.live_keys,
            loaded.makers,
            self._spent,
            KeyGroups(self._units, loaded.key_groups, loaded.groups_of_keys, self._spent, self._now),
            now=self._now,
            await_durable=self.await_durable,
            live_max=self._limits.live_keys_max,
        )

    def inherit(self, before: Self) -> None:
        """Take over the replies that were found in rows, and what is left of the allowance of creates."""
        super().inherit(before)
        self._replies.learn(before.learned)
        self._create_rate = before._create_rate

    def on_receive(self, message: AccountCommand) -> Turn[object] | Awaitable[Turn[object]]:
        """Decide one command. Refuses: 1. a disabled or closing account, or an API key; 2. a used Idempotency-Key.

        A command with a key is answered by what the key replays, so that no handler sees it again.
        """
        if self._is_away:
            # It may come back: the next message has its rows read again.
            self.actor_inbox.put_system(SystemMessage.PASSIVATE)
            raise AccountAway(f"account {self._account_id} is in another cell")
        refusal = self._refuse_access(message)
        if refusal is not None:
            return self._units.confirm(refusal)
        idempotency = message.idempotency
        used = None if idempotency is None else self._replies.find(idempotency, reply_type(type(message)))
        return self._decide(message) if used is None else used

    def _decide(self, message: AccountCommand) -> Turn[object] | Awaitable[Turn[object]]:
        match message:
            case CreateTask():
                return self._create_task(message)
            case BeginAttempt():
                begun = self._replies.begin(message.attempt, self._now())
                return self._units.change(message, None, rows=(begun,))
            case RefuseTask():
                return self._units.refuse(message, message.refusal)
            case SettleTask():
                return self._settle_task(message)
            case (
                NoteChange()
                | CreateApiKey()
                | ChangeApiKey()
                | RevokeApiKey()
                | RevokeWithMade()
                | RecordKeyUse()
                | SetLimits()
                | SetCeiling()
                | CreateKeyGroup()
                | ChangeKeyGroup()
                | DeleteKeyGroup()
            ):
                return self._keys.decide(message)
            case SignOut():
                return self._sign_out(message)
            case Recharge() | AdjustCredit() | GrantCredit() | VoidLot() | RedeemCoupon() | ExpireLots():
                return self._change_credit(message)
            case AnnounceExpiry():
                return self._announce_expiry(message)
            case SetAccess() | ChangeEmail() | CloseAccount() | FinishClosing():
                return self._set_access(message) if isinstance(message, SetAccess) else self._leave(message)
            case PutWebhook() | DeleteWebhook() | SetAlerts() | StopMail() | AllowMail():
                most = self._limits.webhooks_max
                by = calling_key(message)
                scopes = None if by is None else self._keys.live[by].scopes
                return decide_alerts(message, self._units, self._now(), webhooks_max=most, scopes=scopes)
            case _:
                return self._change_payments(message)

    def unit_ended(self, unit: Unit, result: UnitResult) -> None:
        """Take the journal's result for a unit; the orders whose decision it was may then be evicted."""
        if self._orders is not None:
            self._orders.unit_ended(unit)
        if not isinstance(result, Committed) and any(isinstance(row, NewTaskRow) for row in unit.rows):
            # It is decided again, or was a repeat, which costs no allowance.
            self._create_rate.give_back()
        super().unit_ended(unit, result)

    # --------------------------------------------------------------------------------------------------- credit

    def _change_credit(
        self, command: Recharge | AdjustCredit | GrantCredit | VoidLot | RedeemCoupon | ExpireLots
    ) -> Turn[CreditChanged] | Turn[LotsExpired]:
        """Post operations of no task or order. Refuses: 1. the ledger's refusals."""
        if isinstance(command, ExpireLots):
            return self._expire_lots(command)
        state, at = self._units.state, self._now()
        operation, log_event = self._decide_credit(command, at)
        if isinstance(operation, Refusal):
            return self._units.refuse(command, operation)
        state.apply(operation)
        rows: tuple[Row, ...] = ()
        if isinstance(command, RedeemCoupon):
            rows = (CouponGrantedRow(self._account_id, command.claim.coupon_id, at),)
        reply = CreditChanged(operation.operation_id, operation.amount_micro, state.totals)
        return self._units.change(command, reply, operations=(operation,), rows=rows, log_event=log_event)

    def _decide_credit(
        self, command: Recharge | AdjustCredit | GrantCredit | VoidLot | RedeemCoupon, at: datetime
    ) -> tuple[Operation | Refusal, LogEvent | None]:
        state, operation_id = self._units.state, new_id("op")
        if isinstance(command, VoidLot):
            details = OperationDetails(
                operation_id=operation_id, reference=command.action_id, reason=command.note, at=at
            )
            return decide_void(state, lot_number=command.number, **details), None
        amount_micro = command.claim.amount_micro if isinstance(command, RedeemCoupon) else command.amount_micro
        fields: LogFields = {"account_id": self._account_id, "amount_micro": amount_micro}
        match command:
            case Recharge():
                operation = decide_credit(
                    state,
                    amount_micro=amount_micro,
                    source="sandbox",
                    lot_source="recharge",
                    expires_at=self._units.paid_until(at),
                    operation_id=operation_id,
                    reference=operation_id,
                    reason="sandbox recharge",
                    at=at,
                )
                return operation, LogEvent("account recharged", fields)
            case AdjustCredit(action_id=action_id, note=note):
                details = OperationDetails(operation_id=operation_id, reference=action_id, reason=note, at=at)
                return decide_adjustment(state, amount_micro=amount_micro, **details), None
            case GrantCredit(action_id=action_id, note=note):
                details = OperationDetails(operation_id=operation_id, reference=action_id, reason=note, at=at)
                until = command.expires_at
                operation = decide_grant(
                    state, amount_micro=amount_micro, lot_source="grant", expires_at=until, **details
                )
                return operation, LogEvent("credit granted", fields)
            case RedeemCoupon(claim=claim):
                details = OperationDetails(
                    operation_id=operation_id, reference=claim.claim_id, reason=f"coupon {claim.coupon_id}", at=at
                )
                until = None if claim.credit_days is None else at + timedelta(days=claim.credit_days)
                operation = decide_grant(
                    state, amount_micro=amount_micro, lot_source="coupon", expires_at=until, **details
                )
                return operation, LogEvent("coupon redeemed", fields)

    def _expire_lots(self, command: ExpireLots) -> Turn[LotsExpired]:
        """Each lot has an operation of its own."""
        state, at = self._units.state, self._now()
        operations: list[Operation] = []
        expired = state.lots.expired(at)
        for lot in expired[:EXPIRIES_MAX]:
            operation = decide_expiry(state, lot, operation_id=new_id("op"), at=at)
            state.apply(operation)
            operations.append(operation)
        amount_micro = sum(operation.amount_micro for operation in operations)
        reply = LotsExpired(amount_micro, is_more_due=len(expired) > EXPIRIES_MAX)
        if not operations:
            return self._units.confirm(reply)
        fields: LogFields = {"account_id": self._account_id, "amount_micro": amount_micro}
        log_event = LogEvent("credit expired", fields)
        return self._units.change(command, reply, operations=tuple(operations), log_event=log_event)

    def _announce_expiry(self, command: AnnounceExpiry) -> Turn[None]:
        state, at = self._units.state, self._now()
        rows: list[Row] = []
        for lot in list(state.lots):
            days = lot.notice_due(at)
            if days is None or len(rows) > EXPIRIES_MAX:
                continue
            assert lot.expires_at is not None
            lot.announced_days = days
            remaining, expires_at = format_amount(lot.remaining_micro), format_time(lot.expires_at)
            expiring = CreditExpiring(self._account_id, lot.number, remaining, expires_at)
            rows += LotAnnouncedRow(self._account_id, lot.number, days), *self._units.event_rows(expiring, at)
        return self._units.change(command, None, rows=tuple(rows)) if rows else self._units.confirm(None)

    def _create_task(self, command: CreateTask) -> Turn[TaskAccepted]:
        """Refuses: 1. a superseded attempt; 2. a model the key may not use, or a hold above what each of its tasks
        may cost; 3. a create above the rate limit; 4. too many tasks; 5. a limit that would be exceeded, the key's
        before its group's and the account's; 6. too little credit.
        """
        request, after = command.request, command.after
        state, terms = self._units.state, request.terms
        if after is not None and self._replies.is_superseded(after, self._now):
            return self._units.refuse(command, SUPERSEDED)
        key_id = request.api_key_id or ""
        if key_id:
            key = self._keys.live[key_id]
            if key.models and not is_model_allowed(key.models, terms.model):
                return self._units.refuse(command, model_not_allowed(terms.model, key.models))
            refusal = key.refuse_hold(request.hold_micro)
            if refusal is not None:
                return self._units.refuse(command, refusal)
        refusal = self._create_rate.refuse(self._now)
        if refusal is not None:
            # It does not depend on the account's state, so the rows need not confirm it.
            return refusal
        if len(state.holds) >= self._limits.tasks_in_flight_max:
            refusal = Refusal(
                code="concurrency_limit_exceeded",
                message=f"This account has as many tasks in flight as are allowed: {len(state.holds)}.",
                retry_after_s=5,
            )
            return self._units.refuse(command, refusal)
        at, spending, hold = self._now(), self._spent.spending, None
        if spending is not None:
            group_id = self._keys.groups.of_keys.get(key_id, "")
            hold = LimitedHold(key_id, request.hold_micro, at, terms.model, group_id)
            hold = hold._replace(at=(at := spending.time_of(hold)))
            exceeded = spending.exceeded(hold)
            if exceeded is not None:
                return self._spent.refuse_hold(command, exceeded, at)
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
            # What a refund took is topped up at the next spending, which may be one that cannot be afforded.
            top_up = self._units.top_up
            rows = () if top_up is None else top_up.rows_after(state.available_micro, (), is_asked=True)
            return (
                self._units.change(command, operation, rows=rows)
                if rows
                else self._units.refuse(command, operation)
            )
        state.apply(operation)
        rows = ()
        if hold is not None:
            rows = self._spent.opened(request.hold_id, hold)
        self._create_rate.take()
        task = accept_task(state.account_id, request_id, request, at)
        begun = self._begin_task(task)
        reply = TaskAccepted(
            request_id, request.quote_id, task.status, request.retry_of, terms.estimate_micro, terms.basis, at
        )
        return self._units.change(
            command,
            reply,
            operations=(operation,),
            rows=(begun.row, *rows),
            tells=begun.tells,
            tells_if_void=begun.tells_if_void,
            log_event=created_event(task),
            unless=None if after is None else self._replies.unless_superseded(after),
        )

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
        rows: tuple[Row, ...] = command.rows
        if self._spent.spending is not None:
            rows = (*rows, *self._spent.settled(settlement.hold_id, settlement.charge_micro, settlement.at))
        return self._units.change(
            command,
            settlement,
            operations=(operation,),
            rows=rows,
            fences=(Fence("task", command.request_id, command.task_version),),
        )

    def _change_payments(
        self, command: OrderCommand | TopUpCommand
    ) -> Turn[AutoTopUp] | Awaitable[Turn[OrderResult]]:
        match command:
            case SetAutoTopUp() | RecordCustomer() | SaveCard() | RemoveCard() | SwitchOffTopUp() | ResumeTopUp():
                return self._change_top_up(command)
            case _:
                return self._change_order(command)

    def _change_top_up(self, command: TopUpCommand) -> Turn[AutoTopUp]:
        """Refuses what :meth:`AccountTopUp.decide` refuses. The reply has the attempt that follows, if any does."""
        top_up = self._units.top_up or self._top_up_of(AutoTopUp(account_id=self._account_id))
        decided = top_up.decide(command)
        if isinstance(decided, Refusal):
            return self._units.refuse(command, decided)
        is_asked = isinstance(command, SetAutoTopUp | ResumeTopUp)
        if decided == top_up.state and not is_asked:
            return self._units.confirm(decided)
        self._units.top_up, top_up.state = top_up, decided
        rows = top_up.rows_after(self._units.state.available_micro, (), is_asked=is_asked)
        if not rows:
            return self._units.confirm(top_up.state)
        return self._units.change(command, top_up.state, rows=rows)

    def _top_up_of(self, state: AutoTopUp) -> AccountTopUp:
        is_disabled = self._disabled_at is not None or self._leaving.closes_at is not None
        return AccountTopUp(state, self._seller, self._now, is_disabled=is_disabled)

    async def _leave(self, command: LeavingCommand) -> Turn[object]:
        turn = await self._leaving.decide(command)
        if self._units.top_up is not None:
            self._units.top_up.is_disabled = self._disabled_at is not None or self._leaving.closes_at is not None
        if self._leaving.closed_at is not None:
            self._keys.live.clear()
        return turn

    async def _change_order(self, command: OrderCommand) -> Turn[OrderResult]:
        """Refuses what :class:`AccountOrders` refuses."""
        if self._orders is None:
            most = self._limits.orders_pending_max
            self._orders = AccountOrders(self._units, self._database, self._now, pending_max=most)
        return await self._orders.decide(command)

    # --------------------------------------------------------------------------------------- keys and sessions

    def _sign_out(self, command: SignOut) -> Turn[SessionRevokedRow]:
        row = SessionRevokedRow(self._account_id, command.session_id, self._now())
        return self._units.change(command, row, rows=(row,))

    def _set_access(self, command: SetAccess) -> Turn[AccountAccessRow]:
        """An account that is disabled already keeps its time."""
        if command.is_disabled == (self._disabled_at is not None):
            return self._units.confirm(AccountAccessRow(self._account_id, self._disabled_at))
        at = self._now()
        self._disabled_at = at if command.is_disabled else None
        if self._units.top_up is not None:
            self._units.top_up.is_disabled = command.is_disabled or self._leaving.closes_at is not None
        row = AccountAccessRow(self._account_id, self._disabled_at)
        disabled = AccountDisabled(self._account_id, format_time(at))
        events = self._units.event_rows(disabled, at) if command.is_disabled else ()
        return self._units.change(command, row, rows=(row, *events))

    def _refuse_access(self, message: AccountCommand) -> Refusal | None:
        """Refuse what a disabled account gets no more, and what an API key asks for that cannot be used for it now.

        An account that is to be closed gets no more either, nor a card; one that is closed no granted credit.
        """
        if self._leaving.closes_at is not None:
            if isinstance(message, (*_USES, SaveCard, ChangeEmail)):
                return ACCOUNT_CLOSING
            if self._leaving.closed_at is not None and isinstance(message, GrantCredit):
                return ACCOUNT_CLOSING
        elif self._disabled_at is not None and isinstance(message, _USES):
            return ACCOUNT_DISABLED
        match message:
            case CreateTask():
                return self._refuse_key(message.request.api_key_id, message.scope)
            case RefuseTask() | BeginAttempt():
                return self._refuse_key(message.api_key_id or None, message.scope)
        return self._refuse_key(message.by, message.scope) if isinstance(message, ByKey) else None

    def _refuse_key(self, key_id: str | None, scope: str) -> Refusal | None:
        """Refuse a key that is not live, cannot be used now, or lacks the scope; None is the owner's session."""
        if key_id is None:
            return None
        key = self._keys.live.get(key_id)
        if key is None:
            return Refusal(code="invalid_api_key", message="This API key is not valid.")
        unusable = key.refuse_use(self._now)
        if unusable is None and not has_scope(key.scopes, scope):
            return lacking_scope(scope)
        return unusable
