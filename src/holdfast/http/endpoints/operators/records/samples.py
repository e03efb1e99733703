"""Samples: what each process did in the last half hour, every few seconds."""

from __future__ import annotations

import msgspec

from holdfast.http.endpoints.operators.supervision.controls import ask_all
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import FROM, read_window
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import ReadSamples, SampleList

route = RouteTable("Operators")


class ProcessSamples(msgspec.Struct, frozen=True):
    """The samples of each process. ``unreachable`` are members that did not answer."""

    processes: list[SampleList]
    unreachable: list[str]


@route(
    "GET",
    "/ops/api/samples",
    summary="List the samples of all processes: rates, latencies and queues of the last half hour",
    auth=Auth.OPERATOR_READ,
    reply=ProcessSamples,
    parameters=(FROM,),
)
async def list_samples(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ReadSamples(window.since))
    return ProcessSamples(
        processes=[*answers.by_member.values()],
        unreachable=answers.unreachable,
    )
