"""What concerns an account as a whole: the change of its e-mail address, and its closing.

An address is also the key of a sign-in actor, of this process or another. So a change of it is one unit of work
that is fenced by the account and by both addresses: a sign-in at either that was decided before is void, and is
decided again on what the account has then.

An account is closed in two steps. Its owner has a time set, and everything that costs is refused from then on. When
the time has come a worker asks for the second step, which cannot be taken back: what is left of the credit becomes
income, and the address is removed. After that the worker deletes the rest. A sign-in before the second step cancels
the first, in the unit that creates the session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from holdfast.actors.account.messages import (
    ChangeEmail,
    CloseAccount,
    ClosingEnded,
    ClosingSet,
    EmailChanged,
    FinishClosing,
    LeavingCommand,
    TriedCode,
)
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit, LogEvent, Turn
from holdfast.ledger.alerts.account_events import AccountClosing, AccountEmailChanged
from holdfast.ledger.alerts.alerts import DEFAULT_ALERTS
from holdfast.ledger.credit.account import decide_forfeit
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import CodesState, try_code
from holdfast.ledger.values import Now, format_time, new_id
from holdfast.persistence.journal.units import Fence, Unit
from holdfast.persistence.queries.leaving import LeavingFacts, read_leaving
from holdfast.persistence.queries.loading import LoadedSignIn
from holdfast.persistence.records.event_rows import AlertsRow
from holdfast.persistence.records.rows import (
    AccountChangeRow,
    AccountClosedRow,
    AccountClosingRow,
    AccountEmailRow,
    Row,
    SessionsRevokedRow,
    SignInDeletedRow,
    SignInRow,
)
from holdfast.persistence.records.unreadable import read_row
from holdfast.persistence.server.database import Database

GRACE: Final = timedelta(days=7)
"""How long after its owner's wish an account is closed."""


class AccountLeaving:
    """``closes_at`` and ``closed_at`` are the newest decided ones, as :class:`AccountUnits` has the credit."""

    __slots__ = ("_await_durable", "_database", "_now", "_units", "closed_at", "closes_at")

    def __init__(
        self,
        units: AccountUnits,
        closes_at: datetime | None,
        closed_at: datetime | None,
        *,
        database: Database,
        now: Now,
        await_durable: Callable[[], Awaitable[None]],
    ) -> None:
        self._units = units
        self.closes_at = closes_at
        self.closed_at = closed_at
        self._database = database
        self._now = now
        self._await_durable = await_durable

    async def decide(self, command: LeavingCommand) -> Turn[EmailChanged] | Turn[ClosingSet] | Turn[ClosingEnded]:
        """Decide a command on the rows, once they have all that was decided before."""
        await self._await_durable()
        new_email = command.email if isinstance(command, ChangeEmail) else None
        account_id = self._units.state.account_id
        facts = await self._database.read(partial(read_leaving, account_id=account_id, new_email=new_email))
        match command:
            case ChangeEmail():
                return self._change_email(command, facts)
            case CloseAccount():
                return self._close(command, facts)
            case FinishClosing():
                return self._finish(command, facts)

    # ------------------------------------------------------------------------------------------------- the address

    def _change_email(self, command: ChangeEmail, facts: LeavingFacts) -> Turn[EmailChanged]:
        """Refuses: 1. either code, whose wrong tries are counted; 2. the address of another account.

        That an address is taken is said only to who reads its mail.
        """
        assert facts.new is not None
        at, account_id = self._now(), self._units.state.account_id
        reply = EmailChanged(command.email, command.role)
        if facts.email == command.email:
            return self._units.confirm(reply)
        current = _tried(f"email:{facts.email}", facts.current, command.current, "current", at)
        new = _tried(f"email:{command.email}", facts.new, command.new, "new", at)
        refused = [each for each in (current, new) if each.refusal is not None]
        if refused:
            fences, rows = zip(*((each.fence, each.row) for each in refused), strict=True)
            refusal = refused[0].refusal
            assert refusal is not None
            return Commit(Unit(fences=fences, rows=rows), refusal)
        fences, rows = (current.fence, new.fence), (current.row, new.row)
        if facts.new.account_id is not None or facts.new.is_away:
            message = "Another account has this e-mail address."
            return Commit(Unit(fences=fences, rows=rows), Refusal(code="email_taken", message=message, final=True))
        changed = AccountEmailChanged(account_id, format_time(at))
        left = msgspec.structs.replace(current.row, state=msgspec.structs.replace(current.state, proven=()))
        return self._units.change(
            command,
            reply,
            rows=(
                # Without origins that are proven for it, what is stored of an address is deleted after a day.
                left,
                new.row,
                AccountEmailRow(account_id, command.email, command.role),
                SessionsRevokedRow(account_id, command.session_id, at),
                AccountChangeRow(account_id, at, "email_changed"),
                *self._units.notice_rows(changed, at, facts.email),
            ),
            fences=fences,
            log_event=self._log("account's e-mail address changed"),
        )

    # ------------------------------------------------------------------------------------------------- the closing

    def _close(self, command: CloseAccount, facts: LeavingFacts) -> Turn[ClosingSet]:
        """Refuses: 1. what :meth:`_open_matters` finds; 2. credit that is left, unless it is forfeited."""
        state, at = self._units.state, self._now()
        if self.closes_at is not None:
            return self._units.confirm(ClosingSet(self.closes_at, max(0, state.available_micro)))
        refusal = self._open_matters(facts)
        if refusal is None and state.available_micro > 0 and not command.forfeits_credit:
            refusal = Refusal(
                code="credit_remains",
                message="The account has credit left, which is forfeited with it. Confirm that you give it up.",
                param="forfeit_credit",
                available_micro=state.available_micro,
                final=True,
            )
        if refusal is not None:
            return self._units.confirm(refusal)
        self.closes_at = closes_at = at + GRACE
        closing = AccountClosing(state.account_id, format_time(closes_at))
        return self._units.change(
            command,
            ClosingSet(closes_at, state.available_micro),
            rows=(
                AccountClosingRow(state.account_id, closes_at),
                SessionsRevokedRow(state.account_id, "", at),
                AccountChangeRow(state.account_id, at, "closing"),
                *self._units.notice_rows(closing, at, facts.email),
            ),
            log_event=self._log("account closing", closes_at=format_time(closes_at)),
        )

    def _finish(self, command: FinishClosing, facts: LeavingFacts) -> Turn[ClosingEnded]:
        """Refuses: 1. what :meth:`_open_matters` finds; 2. ``payment_in_progress``, until each has its receipt."""
        state, at = self._units.state, self._now()
        if self.closed_at is not None:
            return self._units.confirm(ClosingEnded("closed"))
        if self.closes_at is None or self.closes_at > at:
            return self._units.confirm(ClosingEnded("kept"))
        if facts.has_session:
            # All were ended when the closing was set. A process of the release before has let the owner sign in.
            self.closes_at = None
            rows: tuple[Row, ...] = (
                AccountClosingRow(state.account_id, None),
                AccountChangeRow(state.account_id, at, "kept"),
            )
            log_event = self._log("account kept")
            return self._units.change(command, ClosingEnded("kept"), rows=rows, log_event=log_event)
        refusal = self._open_matters(facts)
        if refusal is None and facts.is_receipt_due:
            refusal = Refusal(code="payment_in_progress", message="A payment of the account has no receipt yet.")
        if refusal is not None:
            return self._units.confirm(refusal)
        operations: list[Operation] = []
        for lot in list(state.lots):
            operation = decide_forfeit(state, lot, operation_id=new_id("op"), at=at)
            state.apply(operation)
            operations.append(operation)
        self.closed_at = at
        # Nothing is announced any more, to anyone.
        self._units.webhooks, self._units.alerts = {}, DEFAULT_ALERTS
        key = f"email:{facts.email}"
        forfeited_micro = sum(operation.amount_micro for operation in operations)
        return self._units.change(
            command,
            ClosingEnded("closed"),
            operations=tuple(operations),
            rows=(
                AccountClosedRow(state.account_id, f"closed:{state.account_id}", at),
                SessionsRevokedRow(state.account_id, "", at),
                AccountChangeRow(state.account_id, at, "closed"),
                AlertsRow(state.account_id, DEFAULT_ALERTS),
                SignInDeletedRow(key, facts.current.version),
            ),
            fences=(Fence("sign_in", key, facts.current.version),),
            log_event=self._log("account closed", amount_micro=forfeited_micro),
        )

    def _open_matters(self, facts: LeavingFacts) -> Refusal | None:
        """Refuse to close an account: 1. in debt; 2. with tasks; 3. with a dispute; 4. with unsettled payments."""
        state = self._units.state
        if state.debt_micro:
            message = "The account owes what a refund or a dispute has taken back."
            return Refusal(code="account_in_debt", message=message, available_micro=state.available_micro)
        if state.holds:
            message = "The account has tasks that have not ended; cancel them, or wait."
            return Refusal(code="tasks_not_ended", message=message)
        if facts.disputes_open:
            return Refusal(
                code="dispute_open", message="A payment of the account is disputed, and not decided yet."
            )
        if facts.orders_open:
            message = "A payment order of the account is neither paid nor expired, or is being checked."
            return Refusal(code="payment_in_progress", message=message)
        return None

    def _log(self, event: str, **fields: str | int | None) -> LogEvent:
        return LogEvent(event, {"account_id": self._units.state.account_id, **fields})


class _Tried(msgspec.Struct, frozen=True):
    """A code that was tried: what the try leaves of its address's codes, as a row, and why it is refused."""

    fence: Fence
    row: SignInRow
    state: CodesState
    refusal: Refusal | None


def _tried(key: str, loaded: LoadedSignIn, code: TriedCode, param: str, at: datetime) -> _Tried:
    state = read_row(lambda each: msgspec.convert(each, CodesState), loaded.state, "sign_ins", key)
    after, refusal = try_code(state, otp_id=code.otp_id, mac=code.mac, at=at)
    if refusal is not None:
        refusal = msgspec.structs.replace(refusal, param=f"{param}.otp")
    fence = Fence("sign_in", key, loaded.version)
    return _Tried(fence, SignInRow(key, loaded.version + 1, at, after), after, refusal)
