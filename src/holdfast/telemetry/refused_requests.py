"""The refused requests of one process: a line for each caller and code, the newest in memory, and who sends most.

A caller that is refused again and again has one line a minute for each code, and all that had none are one line.
What is kept is bounded, however many callers there are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import structlog
import trio

from holdfast.ledger.public_types import MemberId, Time
from holdfast.ledger.values import Now, format_time, utc_now
from holdfast.telemetry import metrics
from holdfast.telemetry.costs import costs
from holdfast.telemetry.logs import keep_refusal
from holdfast.telemetry.reports.conditions import OTHERS, UNAVAILABLE, Conditions
from holdfast.telemetry.scrubbing import spelled

log = structlog.get_logger(__name__)

RING_RECORDS: Final = 1_000
PERIOD_S: Final = 60.0
PERIODS: Final = 10
"""How many periods callers are counted for."""
CALLERS_MAX: Final = 1_000
"""How many callers, of each code apart, are counted in a period; refusals of others count as :data:`OTHERS`."""
KEYS_MAX: Final = 200
"""With so many, further keys that no account has count as their origin's: a client that tries many of them
hides neither accounts nor where it is.
"""
LINES_MAX: Final = 20
"""How many refusals have a line of their own in a period."""
CODES_SHOWN_MAX: Final = 8
CALLERS_SHOWN_MAX: Final = 20
CALLERS_LOGGED_MAX: Final = 3
NO_OUTAGE: Final = frozenset({"quarantined", "record_unreadable", "provider_not_configured", "model_paused"})
"""The 503s of a service that is well: of a single actor or row, of a setting that may be left out, of a pause."""


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was refused."""

    at: Time
    """When it was refused."""
    member_id: MemberId
    status: int
    """The HTTP status."""
    code: str
    """The code of the error."""
    route: str
    """The method and path of the endpoint; `none` if there is no such endpoint."""
    request_id: str
    """Its `X-Request-Id`."""
    trace_id: str
    """Its trace: its caller's, or else the digits of its id."""
    caller: str
    """Who sent it: the account of its credential or the operator, else the first characters of its API key, which
    no account has, else its origin.
    """
    key_prefix: str | None
    """The first characters of the API key that was sent; null without one."""
    origin: str
    """The address that it came from; of IPv6 the /64."""

    def is_about(self, sought: str) -> bool:
        """Whether it is the request ``sought``, or of this trace, caller, key or origin."""
        return sought in (self.request_id, self.trace_id, self.caller, self.key_prefix, self.origin)


class RefusedCaller(msgspec.Struct, frozen=True):
    """A caller whose requests were refused in the last ten minutes."""

    caller: str
    """Who it is, as of a refused request; the origin of keys that no account has beyond two hundred a minute, and
    `others` of those beyond a thousand a minute.
    """
    requests: int
    """How many of its requests were refused."""
    codes: dict[str, int]
    """How many with each code."""


class RefusedRequests:
    """The refused requests of one process. ``member_id`` is its own."""

    def __init__(self, conditions: Conditions, member_id: str = "", *, now: Now = utc_now) -> None:
        self._conditions = conditions
        self._member_id = member_id
        self._now = now
        self._ring: deque[RefusedRequest] = deque(maxlen=RING_RECORDS)
        self._periods: deque[Counter[tuple[str, int, str]]] = deque([Counter()], maxlen=PERIODS)

    def count(
        self,
        *,
        status: int,
        code: str,
        request_id: str,
        origin: str,
        is_of_share: bool = False,
        route: str = "none",
        trace_id: str | None = None,
        key_prefix: str | None = None,
        caller: str | None = None,
    ) -> None:
        """Count and keep a refused request; the first of its caller and code in this period has a line.

        ``caller`` is the account or operator, if it is known. With ``is_of_share`` only its own share of the
        service is exceeded, which is no outage.
        """
        is_unknown_key = caller is None and key_prefix is not None
        caller = spelled(caller or key_prefix or origin)
        metrics.REFUSALS.labels(str(status), code).inc()
        costs.add("refused_code", code)
        costs.add("refused_caller", caller)
        if status == 503 and code not in NO_OUTAGE and not is_of_share:
            self._conditions.failed(UNAVAILABLE, "", code)
        self._ring.append(
            RefusedRequest(
                at=format_time(self._now()),
                member_id=self._member_id,
                status=status,
                code=code,
                route=route,
                request_id=request_id,
                trace_id=trace_id or request_id[4:],
                caller=caller,
                key_prefix=key_prefix,
                origin=origin,
            )
        )
        counts, counted = self._periods[-1], (caller, status, code)
        if is_unknown_key and counted not in counts and len(counts) >= KEYS_MAX:
            counted = (origin, status, code)
        if counted not in counts and len(counts) >= CALLERS_MAX:
            counted = (OTHERS, status, code)
        counts[counted] += 1
        about: dict[str, str | int | None] = {
            "status": status,
            "code": code,
            "route": route,
            "caller": caller,
            "key_prefix": key_prefix,
            "origin": origin,
            "request_id": request_id,
        }
        if counts[counted] > 1 or len(counts) > LINES_MAX:
            keep_refusal("request refused", about)
        else:
            log.info("request refused", **about)

    def recent(self) -> Iterable[RefusedRequest]:
        """Return the newest ones, newest first."""
        return reversed(self._ring)

    def callers(self) -> list[RefusedCaller]:
        """Return who was refused most in the last ten minutes."""
        found: dict[str, Counter[str]] = {}
        for counts in self._periods:
            for (caller, _status, code), count in counts.items():
                found.setdefault(caller, Counter())[code] += count
        return most_refused(found)

    def end_period(self) -> None:
        """Log the counts of those that had no line, the most frequent first, and begin the next period."""
        others = self._periods[-1].copy()
        others.subtract([*others][:LINES_MAX])  # the first of each of these had a line
        self._periods.append(Counter())
        if not others.total():
            return
        codes, callers = Counter[str](), Counter[str]()
        for (caller, status, code), count in others.items():
            codes[f"{status} {code}"] += count
            callers[caller] += count
        log.info(
            "requests refused",
            count=others.total(),
            codes=_listed(codes, CODES_SHOWN_MAX),
            callers=_listed(callers, CALLERS_LOGGED_MAX),
        )

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Log the counts every minute, and a last time when cancelled."""
        task_status.started()
        try:
            while True:
                await trio.sleep(PERIOD_S)
                self.end_period()
        finally:
            self.end_period()


def most_refused(codes_by_caller: Mapping[str, Counter[str]]) -> list[RefusedCaller]:
    """Return the callers who were refused most, the most often refused first."""
    found = [RefusedCaller(caller, codes.total(), dict(codes)) for caller, codes in codes_by_caller.items()]
    return sorted(found, key=lambda each: (-each.requests, each.caller))[:CALLERS_SHOWN_MAX]


def _listed(counts: Counter[str], most: int) -> str:
    return ", ".join(f"{name} ({count})" for name, count in (+counts).most_common(most))
