"""Who and what costs most: requests, refusals, CPU and credit, of all processes."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import trio

from holdfast.http.endpoints.operators.processes import ask_all
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import filter_by, read_window
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import MICRO, time_or_none
from holdfast.persistence.queries.costs import CreditLine, CreditTime, credit_costs
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import ReadCosts
from holdfast.telemetry.costs import CostOf, NameCount, TopCount, top_of

CostWhat: TypeAlias = Literal["requests", "creates", "refusals", "cpu_s", "credits_held", "credits_spent"]
LINES_MAX: Final = 10
FAR_SHARE: Final = 0.5
FAR_TIMES: Final = 3.0
FAR_LEAST: Final[dict[CostWhat, float]] = {"cpu_s": 1.0, "credits_held": 1.0, "credits_spent": 1.0}
FAR_LEAST_COUNT: Final = 100.0
"""The first is far from the rest with half of all, three times the second, and so much: less says nothing."""
CREDIT_VALID: Final = timedelta(seconds=30)
_OF_REQUESTS: Final[dict[CostOf, tuple[CostWhat, str]]] = {
    "account": ("requests", "account"),
    "key": ("requests", "key"),
    "route": ("requests", "route"),
    "model": ("creates", "model"),
    "provider": ("creates", "provider"),
    "refused_code": ("refusals", "code"),
    "refused_caller": ("refusals", "caller"),
    "turns": ("cpu_s", "actor"),
}


class CostLine(msgspec.Struct, frozen=True):
    """What one of them costs."""

    name: str
    """The account, the key (its first characters, or its id), the route, the model, the provider, the code, the
    caller; or the kind of actors that are no account's.
    """
    amount: float
    """How many requests, seconds or credits."""
    over_by: float
    """By how much that may be too large; 0 if it is exact."""
    share: Annotated[float, msgspec.Meta(ge=0)]
    """Its part of the total."""


class CostTable(msgspec.Struct, frozen=True):
    """The largest of one kind in a time."""

    what: CostWhat
    """What is counted; `cpu_s` are the CPU seconds of the turns of actors."""
    by: Literal["account", "key", "route", "model", "provider", "code", "caller", "actor"]
    """What each line is for."""
    time: CreditTime
    """Of counts `minutes` are the last ten minutes; of spent credit it is what tasks cost that were created in the
    last half hour and have ended. `day` is the last day; of counts since the processes' starts at most. `now` is
    what is held.
    """
    total: float
    """The sum of all, also of those that are not listed."""
    lines: list[CostLine]
    """The largest, largest first."""
    is_far_ahead: bool
    """Whether the first has half of all at least, three times the second, and enough to say something. One that is
    alone is so of refusals only.
    """


class CostReport(msgspec.Struct, frozen=True):
    """Who and what costs most."""

    data: list[CostTable]
    """A table of each kind and time; those without a line are left out."""
    credit_at: Time | None
    """When the credit was summed, half a minute ago at most; null while the database is away."""
    unreachable: list[str]
    """The members that did not answer."""


route = OperatorRoutes("Costs")

_CREDIT: Final = filter_by("credit", "`known`: credit as it was summed last, if it was, without summing it again.")


@route.read(
    "/ops/api/costs",
    "List who and what costs most: requests, refusals, CPU and credit",
    CostReport,
    parameters=(_CREDIT,),
)
async def list_costs(call: Call) -> Outcome:
    """Counts are in the memory of the processes, and bounded: a process that ends takes its own with it."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ReadCosts())
    found = answers.by_member.values()
    times: dict[CreditTime, list[dict[CostOf, TopCount]]] = {
        "minutes": [each.minutes for each in found],
        "day": [each.day for each in found],
    }
    data: list[CostTable] = []
    for time, processes in times.items():
        for of, named in _OF_REQUESTS.items():
            tops = [each[of] for each in processes if of in each]
            total = sum(each.total for each in tops)
            data.append(_table(*named, time, top_of(total, (line for each in tops for line in each.largest))))
    credit = call.deps.state(_Credit)
    if window.filters.get("credit") != "known":
        await credit.read(call.deps)
    for key in dict.fromkeys((line.time, line.of) for line in credit.lines):
        lines = [line for line in credit.lines if (line.time, line.of) == key]
        top = top_of(
            lines[0].total_micro / MICRO, [NameCount(line.name, line.micro / MICRO, 0.0) for line in lines]
        )
        time, by = key
        data.append(_table("credits_held" if time == "now" else "credits_spent", by, time, top))
    return CostReport([each for each in data if each.lines], time_or_none(credit.at), answers.unreachable)


def _table(what: CostWhat, by: str, time: CreditTime, top: TopCount) -> CostTable:
    lines = [
        CostLine(each.name, each.count, each.over_by, min(1.0, each.count / top.total))
        for each in top.largest[:LINES_MAX]
        if each.count > 0  # a clock of CPU may have coarse steps
    ]
    # What they surely have is compared.
    sure = [each.amount - each.over_by for each in lines[:1]] + [each.amount for each in lines[1:2]]
    least = max(FAR_LEAST.get(what, FAR_LEAST_COUNT), FAR_SHARE * top.total)
    # A single one stands out of no others, but if all refusals have one caller or one code, that is the cause.
    second = sure[1] if len(sure) > 1 else 0.0 if what == "refusals" else math.inf
    is_far_ahead = sure != [] and sure[0] >= max(least, FAR_TIMES * second)
    table = {"what": what, "by": by, "time": time, "total": top.total, "is_far_ahead": is_far_ahead}
    return msgspec.convert({**table, "lines": lines}, CostTable)


class _Credit:
    """The credit's sums, read again when they are older than :data:`CREDIT_VALID`, by one request for all."""

    def __init__(self) -> None:
        self.lines: list[CreditLine] = []
        self.at: datetime | None = None
        self._reading = trio.Lock()

    async def read(self, deps: Dependencies) -> None:
        """While the database is away there is none."""
        async with self._reading:
            now = deps.now()
            if self.at is None or not self.at <= now < self.at + CREDIT_VALID:
                providers = {each.id: each.upstream.provider for each in deps.registry.catalog.models.values()}
                query = partial(credit_costs, now=now, providers=providers, most=LINES_MAX)
                self.lines, self.at = [], None
                with suppress(DatabaseAway):
                    self.lines, self.at = await deps.database.scan(query), now
