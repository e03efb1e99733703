"""The decided state of an account, and the units of work that make it durable."""

from __future__ import annotations

from typing import TypeVar

from holdfast.actors.account.replies import STORED_REFUSALS, RecentReplies
from holdfast.actors.runtime.journaled import Commit, LogEvent, Tell
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.ledger.clock import Now
from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.units import Fence, Unit
from holdfast.persistence.records.rows import AccountHead, IdempotencyProbe, Row

R = TypeVar("R")


class AccountUnits:
    """``state`` is the newest decided one. Each unit is fenced by the version it was decided on."""

    __slots__ = ("_now", "replies", "state")

    def __init__(self, state: AccountState, replies: RecentReplies, now: Now) -> None:
        self.state = state
        self.replies = replies
        self._now = now

    def commit(
        self,
        reply: R,
        *,
        operations: tuple[Operation, ...] = (),
        rows: tuple[Row, ...] = (),
        fences: tuple[Fence, ...] = (),
        idempotency: IdempotencyKey | None = None,
        tells: tuple[Tell, ...] = (),
        log_event: LogEvent | None = None,
    ) -> Commit[R]:
        """Move the account to its next version. ``reply`` is stored under ``idempotency``, ``log_event`` logged."""
        state = self.state
        fence = Fence("account", state.account_id, state.version)
        state.version += 1
        probe = None
        if idempotency is not None:
            stored = self.replies.add(idempotency, reply, self._now())
            probe, rows = stored.probe, (*rows, stored)
        head = AccountHead(
            state.account_id,
            state.version,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
        )
        return Commit(
            Unit(fences=(fence, *fences), rows=(head, *operations, *rows), probe=probe), reply, tells, log_event
        )

    def confirm(self, reply: R, rows: tuple[Row, ...] = (), *, probe: IdempotencyProbe | None = None) -> Commit[R]:
        """Send a reply that changes nothing of the account, once the rows confirm that the state is the newest.

        Another process may serve the account too. ``rows`` do not depend on the account's version.
        """
        fence = Fence("account", self.state.account_id, self.state.version)
        return Commit(Unit(fences=(fence,), rows=rows, probe=probe, moves=False), reply)

    def refuse(self, refusal: Refusal, idempotency: IdempotencyKey | None = None) -> Commit[Refusal]:
        """Send a refusal as :meth:`confirm` does; one of :data:`STORED_REFUSALS` is stored.

        ``idempotency``, where the call may have been accepted before: only an unused key is refused.
        """
        if idempotency is None:
            return self.confirm(refusal)
        if refusal.code in STORED_REFUSALS:
            return self.commit(refusal, idempotency=idempotency)
        probe = IdempotencyProbe(self.state.account_id, idempotency.route, idempotency.key)
        return self.confirm(refusal, probe=probe)
