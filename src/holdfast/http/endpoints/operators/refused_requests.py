"""Refused requests of all processes: the newest, and who sent most of them."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from holdfast.http.endpoints.operators.processes import ask_all
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import LIMIT, filter_by, read_window
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import ListRefusedRequests
from holdfast.telemetry.refused_requests import RefusedCaller, RefusedRequest, most_refused

route = OperatorRoutes()

_SOUGHT: Final = filter_by(
    "about",
    "Only this request, by its `X-Request-Id`; or those of this trace, account, operator, origin, or API key by "
    "its first 12 characters.",
)


class RefusedRequestPage(msgspec.Struct, frozen=True):
    """The newest refused requests of all processes, from their memory."""

    data: list[RefusedRequest]
    """The newest, newest first; each process remembers a thousand."""
    callers: list[RefusedCaller]
    """Who was refused most in the last ten minutes, the most often refused first."""
    unreachable: list[str]
    """The members that did not answer."""


@route.read(
    "/ops/api/refused-requests",
    "List the newest refused requests, and who sent most of them",
    RefusedRequestPage,
    parameters=(_SOUGHT, LIMIT),
)
async def list_refused_requests(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ListRefusedRequests(window.filters.get("about"), window.limit))
    found: list[RefusedRequest] = []
    codes: dict[str, Counter[str]] = {}
    for answer in answers.by_member.values():
        found += answer.data
        for each in answer.callers:
            codes.setdefault(each.caller, Counter()).update(each.codes)
    found.sort(key=lambda each: (each.at, each.request_id), reverse=True)
    return RefusedRequestPage(found[: window.limit], most_refused(codes), answers.unreachable)
