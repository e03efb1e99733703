"""What the account has spent: by day, by model and by API key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from holdfast.http.endpoints.api_keys import ApiKeyList, list_api_keys
from holdfast.http.endpoints.tasks.usage_totals import UsageTotalBody, UsageTotals, sum_usage
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.refusals import Refusal
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

USAGE: Final = "/account/usage"
PERIODS: Final = {"7": "a week", "31": "a month", "92": "a quarter", "366": "a year"}
HEIGHT: Final = 100

view = ViewTable(Auth.SESSION)


class Bar(NamedTuple):
    """One bar of the plot, in a box of :data:`HEIGHT`; ``cost`` and ``tasks`` are what it stands for."""

    day: str
    cost: str
    tasks: int
    height: float


class Share(NamedTuple):
    """What one model or key has cost, and its part of all."""

    name: str
    cost: str
    tasks: int
    percent: int


@view(USAGE)
async def usage(visit: Visit) -> ViewResult:
    """The plot of the days with its numbers, and the shares of models and keys."""
    days = visit.parameter("days") or "31"
    if days not in PERIODS:
        return invalid_parameter("days", f"must be one of {', '.join(PERIODS)}", days)
    today = visit.call.deps.now().date()
    query = {"from": (today - timedelta(days=int(days) - 1)).isoformat()}
    by_day = await visit.read(sum_usage, UsageTotals, query={**query, "group_by": "day"})
    by_model = await visit.read(sum_usage, UsageTotals, query={**query, "group_by": "model"})
    by_key = await visit.read(sum_usage, UsageTotals, query={**query, "group_by": "api_key_id"})
    keys = await visit.read(list_api_keys, ApiKeyList)
    names = {} if isinstance(keys, Refusal) else {key.api_key_id: key.name for key in keys.data}
    values = {
        "days": days,
        "periods": PERIODS,
        "by_day": by_day,
        "bars": [] if isinstance(by_day, Refusal) else _bars(by_day.data, today, int(days)),
        "models": [] if isinstance(by_model, Refusal) else _shares(by_model, lambda each: each.model or ""),
        "keys": []
        if isinstance(by_key, Refusal)
        else _shares(by_key, lambda each: names.get(each.api_key_id or "", each.api_key_id or "These pages")),
        "since": query["from"],
    }
    return Html("usage.html", values)


@view(f"{USAGE}.csv")
async def usage_file(visit: Visit) -> ViewResult:
    """The sums of each day and model as a file."""
    query = {"format": "csv", "group_by": "day,model", "from": visit.parameter("from")}
    return await visit.stream(sum_usage, query=query)


def _bars(found: list[UsageTotalBody], today: date, days: int) -> list[Bar]:
    by_day = {each.day: each for each in found}
    top = max((Decimal(each.cost_credits) for each in found), default=Decimal(0)) or Decimal(1)
    bars = []
    for back in reversed(range(days)):
        day = (today - timedelta(days=back)).isoformat()
        each = by_day.get(day)
        cost, tasks = ("0.00", 0) if each is None else (each.cost_credits, each.count)
        bars.append(Bar(day, cost, tasks, round(float(Decimal(cost) / top) * HEIGHT, 1)))
    return bars


def _shares(found: UsageTotals, name_of: Callable[[UsageTotalBody], str]) -> list[Share]:
    total = Decimal(found.cost_credits) or Decimal(1)
    shares = [
        Share(name_of(each), each.cost_credits, each.count, round(Decimal(each.cost_credits) / total * 100))
        for each in found.data
    ]
    return sorted(shares, key=lambda each: (-Decimal(each.cost), each.name))
