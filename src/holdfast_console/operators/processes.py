"""Processes: the tree as it lives, its actors, the quarantined ones, poison messages, and the database server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.http.endpoints.operators.actors import ActorList, list_actors, read_actor
from holdfast.http.endpoints.operators.database import read_database
from holdfast.http.endpoints.operators.log_levels import LogLevels, list_log_levels
from holdfast.http.endpoints.operators.poison import list_poison_messages
from holdfast.http.endpoints.operators.processes import Tree, read_tree
from holdfast.http.endpoints.operators.reports import ReportList, list_reports
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.operators import GROUPS
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.server_state import ServerState
from holdfast.supervision.control.messages import KeyDescription
from holdfast.supervision.status import ChildStatus
from holdfast_console.rendering import Html
from holdfast_console.views import ROWS_SHOWN, ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/tree")
async def tree(visit: Visit) -> ViewResult:
    """Every process with its children and its groups of actors; first of all, which children do not run."""
    found = await visit.read(read_tree, Tree)
    members = [] if isinstance(found, Refusal) else found.members
    trees = {member.member_id: member.process.tree for member in members if member.process is not None}
    values = {
        "tree": found,
        "down": {member_id: [*_down(top, top.child_id)] for member_id, top in trees.items()},
        "open_paths": {member_id: {*_above_unwell(top, top.child_id)} for member_id, top in trees.items()},
    }
    return Html("tree.html", values, is_live=True)


def _down(child: ChildStatus, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and state of each child without children of its own that does not run."""
    if not child.children and child.state not in ("running", "finished"):
        yield path, child.state
    for each in child.children:
        yield from _down(each, f"{path}/{each.child_id}")


def _above_unwell(child: ChildStatus, path: str) -> Iterator[str]:
    """Yield the path of each supervisor that has a child below it which does not run, or was restarted lately."""
    below = [(each, [*_above_unwell(each, f"{path}/{each.child_id}")]) for each in child.children]
    for _, paths in below:
        yield from paths
    if any(paths or not _is_well(each) for each, paths in below):
        yield path


def _is_well(child: ChildStatus) -> bool:
    return child.state in ("running", "finished") and not child.restarts_in_window


@view("/ops/actors")
async def actors(visit: Visit) -> ViewResult:
    """The actors of one group."""
    return Html("actors.html", {"actors": await visit.read_list(list_actors, group=GROUPS[0])}, is_live=True)


@view("/ops/actors/{group}/{key}")
async def actor(visit: Visit) -> ViewResult:
    """One actor."""
    found = await visit.read(read_actor, KeyDescription, path=visit.path)
    if isinstance(found, Refusal):
        return found
    return Html("actor.html", {"actor": found}, is_live=True)


@view("/ops/database")
async def database(visit: Visit) -> ViewResult:
    """The database server as it is now; asking it costs the server a little, so the page changes seldom."""
    return Html("database.html", {"server": await visit.read(read_database, ServerState)}, is_live=True, live_s=10)


@view("/ops/log-levels")
async def log_levels(visit: Visit) -> ViewResult:
    """The levels of the log that are raised; ``subject`` fills the form that raises one."""
    values = {"levels": await visit.read(list_log_levels, LogLevels), "subject": visit.parameter("subject")}
    return Html("log_levels.html", values, is_live=True)


@view("/ops/quarantine")
async def quarantine(visit: Visit) -> ViewResult:
    """The quarantined actors of every group, each with the newest report of its quarantine."""
    return Html("quarantine.html", await read_quarantined(visit, ROWS_SHOWN), is_live=True)


async def read_quarantined(visit: Visit, most: str) -> dict[str, Any]:
    """Return the quarantined actors of each group, at most so many of one, and the causes by their keys."""
    query = {"state": "quarantined", "limit": most}
    found = [(group, await visit.read(list_actors, ActorList, query={"group": group, **query})) for group in GROUPS]
    reports = await visit.read(list_reports, ReportList, query={"kind": "quarantine", "limit": ROWS_SHOWN})
    newest_first = [] if isinstance(reports, Refusal) else reports.data
    return {"groups": found, "causes": {each.key: each.text for each in reversed(newest_first)}}


@view("/ops/poison")
async def poison(visit: Visit) -> ViewResult:
    """The messages that the filters select, newest first."""
    return Html("poison.html", {"messages": await visit.read_list(list_poison_messages)}, is_live=True)
