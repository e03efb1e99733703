"""The account actor: everything that moves one account's credit and its keys.

Each command is decided on the newest decided state and becomes one unit of work, fenced by the account's
version. Refusals come first and in a written order: the credential, then the idempotency key, then the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.actors.account.create_rate import CreateRate
from holdfast.actors.account.messages import (
    AccountSummary,
    ApiKeyCreated,
    ApiKeyRevoked,
    CreateApiKey,
    CreateTask,
    KeyClaim,
    Recharge,
    Recharged,
    RecordKeyUse,
    RevokeApiKey,
    SettleTask,
    SignedOut,
    SignOut,
    TaskAccepted,
    TaskSettled,
)
from holdfast.actors.account.order_messages import CreateOrder, OrderResult
from holdfast.actors.account.orders import ORDER_COMMANDS, AccountOrders, OrderReads
from holdfast.actors.account.remembered_replies import REMEMBERED_REFUSALS, RememberedReplies
from holdfast.actors.account.stored_replies import Replayed
from holdfast.actors.runtime.actor import JournaledActor
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.actors.runtime.turns import Commit, Tell
from holdfast.ledger.clock import Now
from holdfast.ledger.credit.account import AccountState, decide_capture, decide_credit, decide_hold, decide_release
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, accept_task, usage_of
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Fence, Unit, UnitResult
from holdfast.persistence.queries.loading import LoadedAccount
from holdfast.persistence.records.accounts import (
    AccountHead,
    ApiKeyRecord,
    ApiKeyRevokedRow,
    ApiKeyRow,
    ApiKeyUsedRow,
    IdempotencyProbe,
    RememberedReply,
    SessionRevokedRow,
)
from holdfast.persistence.records.rows import Row


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Bounds of one account. ``task_creates_per_s`` 0: no bound."""

    tasks_in_flight_max: int = 1000
    task_creates_per_s: float = 0
    task_creates_burst: int = 20_000
    live_keys_max: int = 100
    answers_kept_max: int = 128
    orders_pending_max: int = 1000


class AccountActor(JournaledActor):
    """One account. ``load`` reads its rows, ``orders`` those of its orders; ``announce`` tells of new tasks."""

    own_fence = "account"

    def __init__(
        self,
        account_id: str,
        mailbox: Mailbox,
        journal: Journal,
        *,
        load: Callable[[str], Any],
        orders: OrderReads,
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
        self._state: AccountState
        self._live_keys: dict[str, frozenset[str]]
        self._answers = RememberedReplies(account_id, kept_max=limits.answers_kept_max)
        self._order_reads = orders
        self._orders: AccountOrders | None = None
        self._create_rate = CreateRate(limits.task_creates_per_s, limits.task_creates_burst)

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the account's head, open holds and live keys."""
        loaded: LoadedAccount = await self._load(self._account_id)
        self._state = loaded.state
        self._live_keys = loaded.live_keys

    def learn(self, learned: list[tuple[IdempotencyProbe, RememberedReply]]) -> None:
        """Remember answers that were found in the rows."""
        self._answers.learn(learned)

    def on_receive(self, message: Any) -> Any:
        """Decide one command: a reply, or a unit of work with the reply that leaves once it is durable."""
        return _HANDLERS[type(message)](self, message)

    def settle(self, unit: Unit, result: UnitResult) -> None:
        """Hear the journal; orders that wait for it may be let go of afterwards."""
        if self._orders is not None:
            self._orders.settled(unit)
        super().settle(unit, result)

    # --------------------------------------------------------------------------------------------------- credit

    def _recharge(self, command: Recharge) -> Commit | Replayed | Refusal:
        """Refuses: 1. a used idempotency key; 2. the ledger's refusals of a credit."""
        known = self._answers.known(command.idempotency)
        if known is not None:
            return known
        operation_id = new_id("op")
        operation = decide_credit(
            self._state,
            operation_id=operation_id,
            amount_micro=command.amount_micro,
            source="sandbox",
            reference=operation_id,
            reason="sandbox recharge",
            at=self._now(),
        )
        if isinstance(operation, Refusal):
            return self._refuse(operation)
        self._state.apply(operation)
        reply = Recharged(operation_id, command.amount_micro, self._summary())
        return self._commit(reply, operations=(operation,), idempotency=command.idempotency)

    def _create_task(self, command: CreateTask) -> Commit | Replayed | Refusal:
        """Refuses: 1. the API key; 2. a used idempotency key; 3. creates that come too fast; 4. too many tasks in
        flight; 5. lack of credit.
        """
        refusal = self._refuse_claim(command.claim)
        if refusal is not None:
            return self._refuse(refusal)
        known = self._answers.known(command.idempotency)
        if known is not None:
            return known
        state, terms = self._state, command.terms
        refusal = self._create_rate.refuse()
        if refusal is not None:
            # Nothing of the account's state is behind this, so the rows need not confirm it.
            return refusal
        if len(state.holds) >= self._limits.tasks_in_flight_max:
            refusal = Refusal(
                code="concurrency_limit_exceeded",
                message=f"This account has {len(state.holds)} tasks in flight, as many as it may.",
                retry_after_s=5,
            )
            return self._refuse(refusal)
        at = self._now()
        request_id, hold_id = new_id("task"), new_id("hold")
        operation = decide_hold(
            state,
            operation_id=new_id("op"),
            hold_id=hold_id,
            amount_micro=terms.hold_micro,
            reference=request_id,
            at=at,
        )
        if isinstance(operation, Refusal):
            return self._refuse(operation, command.idempotency)
        state.apply(operation)
        self._create_rate.take()
        task = accept_task(
            account_id=state.account_id,
            request_id=request_id,
            hold_id=hold_id,
            input=command.input,
            terms=terms,
            quote_id=command.quote_id,
            api_key_id=command.claim.key_id,
            now=at,
            metadata=command.metadata,
            webhook_url=command.webhook_url,
            webhook_events=command.webhook_events,
            retry_of=command.retry_of,
        )
        reply = TaskAccepted(
            request_id, command.quote_id, task.status, command.retry_of, terms.estimate_micro, terms.basis
        )
        return self._commit(
            reply,
            operations=(operation,),
            rows=(task, usage_of(task)),
            idempotency=command.idempotency,
            tells=(self._announce(task),),
        )

    def _settle_task(self, command: SettleTask) -> Commit:
        """Refuses: 1. the ledger's refusals of a capture or release."""
        operation: Operation | Refusal
        if command.charge_micro is None:
            operation = decide_release(
                self._state,
                operation_id=command.operation_id,
                hold_id=command.hold_id,
                reference=command.request_id,
                reason=command.reason,
                at=command.at,
            )
        else:
            operation = decide_capture(
                self._state,
                operation_id=command.operation_id,
                hold_id=command.hold_id,
                charge_micro=command.charge_micro,
                reference=command.request_id,
                reason=command.reason,
                at=command.at,
            )
        if isinstance(operation, Refusal):
            return self._refuse(operation)
        self._state.apply(operation)
        return self._commit(
            TaskSettled(command.operation_id),
            operations=(operation,),
            rows=command.rows,
            fences=(Fence("task", command.request_id, command.task_version),),
        )

    async def _change_order(self, command: Any) -> Commit | Replayed | Refusal:
        """Refuses: 1. a used idempotency key; 2. what :class:`AccountOrders` refuses."""
        idempotency = command.idempotency if isinstance(command, CreateOrder) else None
        known = self._answers.known(idempotency)
        if known is not None:
            return known
        if self._orders is None:
            most = self._limits.orders_pending_max
            self._orders = AccountOrders(self._account_id, self._order_reads, self._now, pending_max=most)
        turn = await self._orders.decide(command, self._state)
        if not turn.moves:
            return self._confirm(turn.reply, turn.rows)
        assert isinstance(turn.reply, OrderResult)
        commit = self._commit(turn.reply, operations=turn.operations, rows=turn.rows, idempotency=idempotency)
        self._orders.wrote(commit.unit, turn.reply)
        return commit

    # --------------------------------------------------------------------------------------- keys and sessions

    def _create_api_key(self, command: CreateApiKey) -> Commit:
        """Refuses: 1. too many live keys."""
        if len(self._live_keys) >= self._limits.live_keys_max:
            refusal = Refusal(
                code="api_key_limit_reached",
                message=f"This account has {len(self._live_keys)} live API keys, as many as it may.",
                final=True,
            )
            return self._refuse(refusal)
        at = self._now()
        self._live_keys[command.key_id] = frozenset(command.scopes)
        key = ApiKeyRecord(self._account_id, command.key_id, command.prefix, command.name, command.scopes, at)
        reply = ApiKeyCreated(command.key_id, command.prefix, command.name, command.scopes, at)
        return self._commit(reply, rows=(ApiKeyRow(key, command.secret_sha256),))

    def _revoke_api_key(self, command: RevokeApiKey) -> Commit:
        """Refuses: 1. a key that is not live here."""
        if self._live_keys.pop(command.key_id, None) is None:
            return self._refuse(Refusal(code="api_key_not_found", message="This account has no such live API key."))
        at = self._now()
        row = ApiKeyRevokedRow(self._account_id, command.key_id, at)
        return self._commit(ApiKeyRevoked(command.key_id, at), rows=(row,))

    def _record_key_use(self, command: RecordKeyUse) -> Commit:
        return Commit(Unit(rows=(ApiKeyUsedRow(self._account_id, command.key_id, command.at),)), None)

    def _sign_out(self, command: SignOut) -> Commit:
        row = SessionRevokedRow(self._account_id, command.session_id, self._now())
        return self._commit(SignedOut(command.session_id), rows=(row,))

    def _refuse_claim(self, claim: KeyClaim) -> Refusal | None:
        scopes = self._live_keys.get(claim.key_id)
        if scopes is None:
            return Refusal(code="invalid_api_key", message="This API key is not valid.")
        if claim.scope not in scopes:
            return Refusal(code="insufficient_scope", message=f"This API key lacks the scope {claim.scope}.")
        return None

    # ----------------------------------------------------------------------------------------------- unit of work

    def _refuse(self, refusal: Refusal, idempotency: IdempotencyKey | None = None) -> Commit:
        """Refuse once the rows have said that this memory is the newest: another process may serve the account."""
        if idempotency is not None and refusal.code in REMEMBERED_REFUSALS:
            return self._commit(refusal, idempotency=idempotency)
        return self._confirm(refusal)

    def _confirm(self, reply: Any, rows: tuple[Row, ...] = ()) -> Commit:
        """Answer what changes nothing of the account; ``rows`` are those that any version may write."""
        fence = Fence("account", self._account_id, self._state.version)
        return Commit(Unit(fences=(fence,), rows=rows, moves=False), reply)

    def _summary(self) -> AccountSummary:
        return AccountSummary(self._account_id, self._state.balance_micro, self._state.held_micro)

    def _commit(
        self,
        reply: Any,
        *,
        operations: tuple[Operation, ...] = (),
        rows: tuple[Row, ...] = (),
        fences: tuple[Fence, ...] = (),
        idempotency: IdempotencyKey | None = None,
        tells: tuple[Tell, ...] = (),
    ) -> Commit:
        """Move to the next version and say what it takes to make that durable."""
        state = self._state
        fence = Fence("account", state.account_id, state.version)
        state.version += 1
        probe = None
        if idempotency is not None:
            probe, row = self._answers.remember(idempotency, reply, self._now())
            rows = (*rows, row)
        head = AccountHead(
            state.account_id,
            state.version,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
        )
        unit = Unit(
            fences=(fence, *fences),
            rows=(head, *operations, *rows),
            probe=probe,
        )
        return Commit(unit, reply, tells)


_HANDLERS: dict[type[Any], Callable[[AccountActor, Any], Any]] = {
    Recharge: AccountActor._recharge,
    CreateTask: AccountActor._create_task,
    SettleTask: AccountActor._settle_task,
    CreateApiKey: AccountActor._create_api_key,
    RevokeApiKey: AccountActor._revoke_api_key,
    RecordKeyUse: AccountActor._record_key_use,
    SignOut: AccountActor._sign_out,
    **dict.fromkeys(ORDER_COMMANDS, AccountActor._change_order),
}
