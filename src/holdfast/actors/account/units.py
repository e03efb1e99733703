"""The decided state of an account, and the units of work that make it durable."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.actors.account.replies import STORED_REFUSALS, RecentReplies
from holdfast.actors.runtime.journaled import Commit, LogEvent, Tell
from holdfast.actors.runtime.messages import Command, idempotency_of
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
    ) -> Commit[R]:
        """Move the account to its next version; ``log_event`` is logged once that is durable.

        The reply is stored under the command's Idempotency-Key, if it has one.
        """
        state = self.state
        fence = Fence("account", state.account_id, state.version)
        state.version += 1
        probe = None
        if (idempotency := idempotency_of(command)) is not None:
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
        return Commit(Unit(fences=(fence,), rows=rows, probe=probe, advances=False), reply)

    def refuse(self, command: Command[Any], refusal: Refusal) -> Commit[Refusal]:
        """Send a refusal as :meth:`confirm` does; one of :data:`STORED_REFUSALS` is stored.

        A command with an Idempotency-Key may have been accepted before: it is refused only if its key is unused.
        """
        idempotency = idempotency_of(command)
        if idempotency is None:
            return self.confirm(refusal)
        if refusal.code in STORED_REFUSALS:
            return self.change(command, refusal)
        probe = IdempotencyProbe(self.state.account_id, idempotency.route, idempotency.key)
        return self.confirm(refusal, probe=probe)
