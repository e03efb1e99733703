"""The overview of an account: its credit, what holds and spends it, and what is missing for a first call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from holdfast.http.endpoints.account import read_account
from holdfast.http.endpoints.credit_lots import CreditLotBody, CreditLotList, list_credit_lots
from holdfast.http.endpoints.limits import AccountLimit, AccountLimitList, read_limits
from holdfast.http.endpoints.sign_in import read_first_call
from holdfast.http.endpoints.statement import Statement, read_statement
from holdfast.http.endpoints.tasks.usage_log import list_usage
from holdfast.http.endpoints.tasks.usage_totals import UsageTotals, sum_usage
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.common import AccountBody, FirstCall
from holdfast.http.schemas.tasks import UsageBody, UsageList
from holdfast.ledger.clock import format_time
from holdfast.ledger.refusals import Refusal
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

SOON: Final = timedelta(days=30)
"""What expires within this time is announced."""
MOST: Final = "100"
"""How many entries of a list are looked at."""
HELD_MOST: Final = 10
"""How many tasks of each status are shown: an open page is read again after each change."""
UNFINISHED: Final = ("processing", "queued", "review")

view = ViewTable(Auth.SESSION)


class WindowSpending(NamedTuple):
    """What was spent in a window, and its limit, if there is one, in which what is held counts too."""

    title: str
    spent: str | None
    limit: str | None = None
    resets_at: str | None = None
    is_reached: bool = False


class HeldTask(NamedTuple):
    """A task that has not ended, and the credit that it holds; None if that is longer ago than is looked at."""

    task: UsageBody
    credits: str | None


class Expiring(NamedTuple):
    """Credit that expires soon, and when the first of it does."""

    credits: str
    first_at: str


@view("/account")
async def overview(visit: Visit) -> ViewResult:
    """The state of the account; parts that are not available say so."""
    account = await visit.read(read_account, AccountBody)
    lots = await visit.read(list_credit_lots, CreditLotList, query={"status": "open", "limit": MOST})
    held = await _held_tasks(visit, account)
    values = {
        "account": account,
        "first_call": await visit.read(read_first_call, FirstCall),
        "stays": "first-call" in visit.call.request.headers.get("X-Refresh", ""),
        "has_task": await _has_task(visit, held),
        "spending": await _spending(visit),
        "expiring": lots if isinstance(lots, Refusal) else _expiring(lots.data, visit.call.deps.now()),
        "held": held,
        "held_most": HELD_MOST,
    }
    return Html("overview.html", values, is_live=True)


async def _spending(visit: Visit) -> Refusal | list[WindowSpending]:
    """Return what was spent today and this month, and in other windows that have a limit."""
    found = await visit.read(read_limits, AccountLimitList)
    if isinstance(found, Refusal):
        return found
    today = visit.call.deps.now().replace(hour=0, minute=0, second=0, microsecond=0)
    spent = []
    for window, title, since in (
        ("day", "Spent today", today),
        ("week", "Spent this week", None),
        ("month", "Spent this month", today.replace(day=1)),
        ("total", "Spent in all", None),
    ):
        limit = next((each for each in found.limits if each.window == window), None)
        if limit is not None:
            spent.append(_limited(title, limit))
        elif since is not None:
            query = {"group_by": "status", "from": format_time(since)}
            totals = await visit.read(sum_usage, UsageTotals, query=query)
            spent.append(WindowSpending(title, None if isinstance(totals, Refusal) else totals.cost_credits))
    return spent


def _limited(title: str, limit: AccountLimit) -> WindowSpending:
    """Return what was spent of a limit: the lower one of the owner's and the operator's counts."""
    most = min((each for each in (limit.credits, limit.ceiling) if each is not None), key=Decimal)
    return WindowSpending(title, limit.spent, most, limit.resets_at, Decimal(limit.spent) >= Decimal(most))


def _expiring(lots: Sequence[CreditLotBody], now: datetime) -> Expiring | None:
    """Return what expires soon of these lots."""
    by = format_time(now + SOON)
    soon = [(lot.expires_at, lot.remaining) for lot in lots if lot.expires_at is not None and lot.expires_at <= by]
    if not soon:
        return None
    return Expiring(
        str(sum(Decimal(remaining) for _, remaining in soon)), min(expires_at for expires_at, _ in soon)
    )


async def _has_task(visit: Visit, held: Refusal | list[HeldTask]) -> bool | None:
    """Return whether there is any task; None if that is not available."""
    if not isinstance(held, Refusal) and held:
        return True
    newest = await visit.read(list_usage, UsageList, query={"limit": "1"})
    return None if isinstance(newest, Refusal) else bool(newest.data)


async def _held_tasks(visit: Visit, account: AccountBody | Refusal) -> Refusal | list[HeldTask]:
    """Return the newest unfinished tasks, oldest first, so that a new one moves none of a few others."""
    if isinstance(account, Refusal):
        return account
    if not Decimal(account.held_total):
        return []
    tasks: list[UsageBody] = []
    for status in UNFINISHED:
        found = await visit.read(list_usage, UsageList, query={"status": status, "limit": str(HELD_MOST)})
        if isinstance(found, Refusal):
            return found
        tasks += found.data
    newest = {"kind": "hold", "limit": str(HELD_MOST * len(UNFINISHED))}
    holds = await visit.read(read_statement, Statement, query=newest)
    held = {} if isinstance(holds, Refusal) else {each.reference: each.amount for each in holds.data}
    tasks.sort(key=lambda task: (task.ts, task.request_id))
    return [HeldTask(task, held.get(task.request_id)) for task in tasks]
