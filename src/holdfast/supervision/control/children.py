"""The children of a process's tree by their paths, as operators stop, start and restart them."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import ChildAction, StartChild, StopChild
from holdfast.supervision.faults import NotRunning
from holdfast.supervision.status import ChildStatus
from holdfast.supervision.supervisor import Supervisor

NEED_DATABASE = ("database", "journal")
"""The children of the top that have no work of their own while the database is away."""
KEPT = ("http", "control")
"""The children of the top that answer operators, whose end would leave no way to start them again."""


def describe_tree(top: Supervisor, since: Time, *, is_database_open: bool) -> ChildStatus:
    """Return the whole tree as the status of its top, which runs since then."""
    children = [
        replace(child, state="waiting")
        if child.child_id in NEED_DATABASE and child.state == "running" and not is_database_open
        else child
        for child in top.children()
    ]
    return ChildStatus(
        child_id=top.path,
        state="stopping" if top.is_stopping else "running" if top.is_ready else "starting",
        restart="temporary",
        incarnation=1,
        restarts_in_window=0,
        since=since,
        children=(*children,),
    )


async def act_on_child(top: Supervisor, action: ChildAction) -> ChildStatus | Refusal:
    """Stop, start or restart a child, and return its status afterwards.

    Refuses: ``child_not_found``, ``child_not_stoppable``, ``child_running``.
    """
    found = _find(top, action.path)
    if found is None:
        return Refusal(code="child_not_found", message="The tree has no such child now.", param="path")
    parent, child_id = found
    if action.path.split("/")[1] in KEPT and not isinstance(action, StartChild):
        return Refusal(
            code="child_not_stoppable",
            message="This child answers operators, and ends with the process; drain the process instead.",
        )
    if isinstance(action, StartChild) and parent.state_of(child_id) in {"running", "starting", "restarting"}:
        return Refusal(code="child_running", message="The child is running, or about to start by itself.")
    try:
        if isinstance(action, StopChild):
            await parent.stop_child(child_id)
        else:
            await parent.restart_child(child_id)
    except NotRunning:
        return Refusal(code="child_not_found", message="Its supervisor has ended meanwhile.", param="path")
    return next(each for each in parent.children() if each.child_id == child_id)


def _find(top: Supervisor, path: str) -> tuple[Supervisor, str] | None:
    """Return the supervisor of a child and the child's id."""
    root, *steps = path.split("/")
    if root != top.path or not steps:
        return None
    supervisor: Supervisor | None = top
    try:
        for step in steps[:-1]:
            supervisor = supervisor.below(step) if supervisor is not None else None
        if supervisor is None:
            return None
        supervisor.state_of(steps[-1])
    except KeyError:
        return None
    return supervisor, steps[-1]
