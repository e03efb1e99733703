"""What computes: the profile of one process as a flame graph, and the slowest turns of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.http.endpoints.operators.processes import (
    PROFILE_S,
    SlowestTurns,
    Tree,
    list_slowest_turns,
    profile_process,
    read_tree,
)
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast.telemetry.profile import Profile, ProfileNode
from holdfast_console.rendering import Html
from holdfast_console.views import ROWS_SHOWN, ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)

ROW_PX: Final = 18
LEAST_PART: Final = 0.002
"""A function that ran less of the time is too narrow to be seen."""


class Flame(NamedTuple):
    """A bar of a flame graph: where it begins and how wide it is, in percent, and its row in pixels."""

    x: str
    width: str
    y: int
    name: str
    title: str
    is_ours: bool


@view("/ops/profile")
async def profile(visit: Visit) -> ViewResult:
    """A process is watched when one is chosen, so the page is not renewed by itself."""
    member_id, for_s = visit.parameter("member_id"), visit.parameter("for_s")
    found, flames = None, list[Flame]()
    if member_id:
        found = await visit.read(profile_process, Profile, path={"member_id": member_id}, query={"for_s": for_s})
        flames = [] if isinstance(found, Refusal) else [*flames_of(found.nodes, found.samples - found.idle)]
    values = {
        "tree": await visit.read(read_tree, Tree),
        "member_id": member_id,
        "for_s": for_s,
        "durations": PROFILE_S,
        "profile": found,
        "flames": flames,
        "height": max((flame.y + ROW_PX for flame in flames), default=0),
        "turns": await visit.read(list_slowest_turns, SlowestTurns, query={"limit": ROWS_SHOWN}),
    }
    return Html("profile.html", values)


def flames_of(nodes: Sequence[ProfileNode], samples: int) -> Iterator[Flame]:
    """Yield the bars of a tree of calls, each below the function that called it."""
    begins = [0]
    for node in nodes:
        del begins[node.depth + 1 :]
        begin, begins[node.depth] = begins[node.depth], begins[node.depth] + node.samples
        begins.append(begin)
        if node.samples < LEAST_PART * samples:
            continue
        part = 100 * node.samples / samples
        module, _, name = node.name.rpartition(".")
        yield Flame(
            f"{100 * begin / samples:.3f}%",
            f"{part:.3f}%",
            node.depth * ROW_PX,
            name,
            f"{node.name}: {part:.1f} %, {node.samples} of {samples}",
            module.startswith("holdfast"),
        )
