"""The lot sweeper: asks accounts to withdraw credit whose time has come, to notify their owners before, and to give
the credit of claimed coupons.

A lot is due while a part of it is not reserved. The account decides by its own state, so a second request changes
nothing, and what a process that dies has not asked for is found again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

import structlog
import trio

from holdfast.actors.account.messages import AnnounceExpiry, ExpireLots, LotsExpired, redeem_coupon
from holdfast.actors.runtime.faults import AskFault, Crashed
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.workers.passes import ALWAYS, Schedule, do_each, repeat
from holdfast.ledger.values import Now
from holdfast.persistence.claims.coupons import overdue_claims
from holdfast.persistence.claims.lots import accounts_to_notify, accounts_with_expired_lots
from holdfast.persistence.records.credit_tables import CouponClaim
from holdfast.persistence.server.database import Database

T = TypeVar("T")

log = structlog.get_logger(__name__)

SWEEP_S: Final = 5.0
NOTIFY_S: Final = 600.0
SWEEP_BOUND_S: Final = 300.0
ACCOUNTS_MAX: Final = 200
CONCURRENT_MAX: Final = 4
ASK_DEADLINE_S: Final = 30.0
UNITS_MAX: Final = 50
"""In how many units of work, one after the other, an account withdraws what is due."""


class LotSweeper:
    """Sweeps every few seconds, a bounded number of accounts at a time."""

    def __init__(
        self,
        *,
        database: Database,
        accounts: Directory,
        now: Now,
        lots: Schedule = ALWAYS,
        claims: Schedule = ALWAYS,
        notices: Schedule = ALWAYS,
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._now = now
        self._lots = lots
        self._claims = claims
        self._notices = notices
        # Where the next pass continues, so that accounts which do not answer do not delay the others.
        self._after: dict[Callable[..., object], str] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Sweep every few seconds, and notify owners every ten minutes, until cancelled."""
        passes = {
            "sweep of lots": (self.sweep, SWEEP_S, self._lots),
            "sweep of coupons": (self.redeem, SWEEP_S, self._claims),
            "notices of expiry": (self.notify, NOTIFY_S, self._notices),
        }
        async with trio.open_nursery() as nursery:
            for name, (work, every_s, schedule) in passes.items():
                again = partial(repeat, every_s=every_s, name=name, bound_s=SWEEP_BOUND_S, schedule=schedule)
                nursery.start_soon(again, work)
            task_status.started()

    async def sweep(self) -> bool:
        """Have the next accounts withdraw what is due; return whether others follow. Raises ``DatabaseAway``."""
        return await self._next(accounts_with_expired_lots, str, self._expire)

    async def redeem(self) -> bool:
        """Have the next accounts given the credit of their coupons; return as :meth:`sweep`."""
        return await self._next(overdue_claims, attrgetter("claim_id"), self._redeem)

    async def notify(self) -> bool:
        """Have the next accounts notify their owners of what expires soon; return as :meth:`sweep`."""
        return await self._next(accounts_to_notify, str, self._announce)

    async def _next(
        self, find: Callable[..., list[T]], position_of: Callable[[T], str], do: Callable[[T], Awaitable[None]]
    ) -> bool:
        after = self._after.get(find, "")
        due = await self._database.read(find, self._now(), after=after, most=ACCOUNTS_MAX)
        is_more_due = len(due) == ACCOUNTS_MAX
        self._after[find] = position_of(due[-1]) if is_more_due else ""
        await do_each(do, due, concurrent_max=CONCURRENT_MAX)
        return is_more_due

    async def _expire(self, account_id: str) -> None:
        for _ in range(UNITS_MAX):
            reply = await self._ask(account_id, ExpireLots())
            if not isinstance(reply, LotsExpired) or not reply.is_more_due:
                return

    async def _redeem(self, claim: CouponClaim) -> None:
        await self._ask(claim.account_id, redeem_coupon(claim))

    async def _announce(self, account_id: str) -> None:
        await self._ask(account_id, AnnounceExpiry())

    async def _ask(self, account_id: str, command: Command[Any]) -> object:
        try:
            return await self._accounts.ref(account_id).ask(command, deadline_s=ASK_DEADLINE_S)
        except (AskFault, Crashed) as fault:
            log.info("lots not changed", account_id=account_id, reason=str(fault))
            return None
