"""The overview of an account: its credit, what holds and spends it, and what is missing for a first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final, NamedTuple

from holdfast.http.endpoints.account import read_account
from holdfast.http.endpoints.credit_lots import CreditLotBody, CreditLotList, list_credit_lots
from holdfast.http.endpoints.limits import AccountLimit, AccountLimitList, read_limits
from holdfast.http.endpoints.sign_in import read_first_call
from holdfast.http.endpoints.tasks.usage_log import list_usage
from holdfast.http.endpoints.tasks.usage_totals import UsageTotals, sum_usage
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.common import AccountBody, FirstCall
from holdfast.http.schemas.tasks import UsageList
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.queries.tasks import HeldTask, held_tasks
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

SOON: Final = timedelta(days=30)
"""What expires within this time is announced."""
MOST: Final = "100"
"""How many entries of a list are looked at."""
HELD_MOST: Final = 10
"""How many tasks of each status are shown: an open page is read again after each change."""
WINDOW_TITLES: Final[Mapping[LimitWindow, str]] = {
    "day": "Spent today",
    "week": "Spent this week",
    "month": "Spent this month",
    "total": "Spent in all",
}

view = ViewTable(Auth.SESSION)


class WindowSpending(NamedTuple):
    """What was spent in a window, and its limit, if there is one, in which what is held counts too."""

    title: str
    spent: str | None
    limit: str | None = None
    resets_at: str | None = None
    is_reached: bool = False


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
    limits = {each.window: each for each in found.limits}
    spent = {} if limits.keys() >= {"day", "month"} else await _spent(visit)
    shown = []
    for window, title in WINDOW_TITLES.items():
        if window in limits:
            shown.append(_limited(title, limits[window]))
        elif window in ("day", "month"):
            shown.append(WindowSpending(title, spent.get(window)))
    return shown


async def _spent(visit: Visit) -> Mapping[str, str]:
    """Return what was spent today and this month, in one read; nothing if that is not available."""
    today = visit.call.deps.now().date()
    query = {"group_by": "day", "from": today.replace(day=1).isoformat()}
    totals = await visit.read(sum_usage, UsageTotals, query=query)
    if isinstance(totals, Refusal):
        return {}
    of_days = {each.day: each.cost_credits for each in totals.data}
    return {"day": of_days.get(today.isoformat(), format_amount(0)), "month": totals.cost_credits}


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
    """Return the newest tasks that hold credit, oldest first, so that a new one moves none of a few others."""
    if isinstance(account, Refusal):
        return account
    if not Decimal(account.held_total):
        return []
    return await visit.query(partial(held_tasks, account_id=account.account_id, per_status=HELD_MOST))
