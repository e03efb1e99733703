"""Levels of the log that operators raise for a time, in one process or in all."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import msgspec

from holdfast.http.endpoints.operators.processes import Answers, ask_all, ask_control
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import GROUPS, Reason
from holdfast.ledger.public_types import MemberId
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id
from holdfast.supervision.control.messages import LevelList, ListLevels, RaiseLevel
from holdfast.telemetry.logs.raised import RaisedLevel

MAILBOX_WORKERS: Final = ("dispatcher", "hosting", "outbox", "provider-calls")
"""The workers that are actors."""
FOR_DEFAULT_S: Final = 600.0
FOR_MAX_S: Final = 3600.0
LINES_DEFAULT: Final = 100
LINES_MAX: Final = 1_000


class RaiseLevelRequest(msgspec.Struct, frozen=True):
    """Whose lines at `debug` are written, for how long, and why."""

    subject: Annotated[str, msgspec.Meta(min_length=1, max_length=200, examples=["/v2/task/create"])]
    """A module (`holdfast.persistence`) or a path, with those below it; a kind of actor (`tasks`, `outbox`); or
    an account.
    """
    reason: Reason
    for_s: Annotated[float, msgspec.Meta(ge=0, le=FOR_MAX_S)] = FOR_DEFAULT_S
    """How long, in seconds; 0 ends it."""
    lines_per_s: Annotated[int, msgspec.Meta(ge=1, le=LINES_MAX)] = LINES_DEFAULT
    """How many lines each process writes in a second at most; the others are counted."""
    member_id: MemberId | None = None
    """The process; null or omitted: all that serve now."""


class ListedLevel(RaisedLevel, frozen=True, kw_only=True):
    """A level that is raised in a process."""

    member_id: MemberId


class LogLevels(msgspec.Struct, frozen=True):
    """The levels that are raised."""

    data: list[ListedLevel]
    """Those of each process, the oldest first."""
    unreachable: list[str]
    """The members that did not answer."""


route = OperatorRoutes("Processes")
_on_levels: Final = route.below("/ops/api/log-levels", errors=("member_not_found",), is_urgent=True)


def is_subject(text: str) -> bool:
    """Whether there is such a module, actor or path; an account need not exist."""
    if text.startswith("acct_"):
        return is_id(text)
    is_module = f"{text}.".startswith("holdfast.") and text in sys.modules
    return is_module or text.startswith("/") or text in GROUPS or text in MAILBOX_WORKERS


def _listed(answers: Answers[LevelList]) -> LogLevels:
    found = [
        render(ListedLevel, each, member_id=member_id)
        for member_id, answer in answers.by_member.items()
        for each in answer.levels
    ]
    return LogLevels(found, answers.unreachable)


@_on_levels.read("", "List the levels of the log that are raised, in all processes", LogLevels)
async def list_log_levels(call: Call) -> Outcome:
    """Answered from memory, also while the database is away."""
    return _listed(await ask_all(call.deps, ListLevels()))


@_on_levels.action("", "Write a module's, actor's, account's or path's lines at debug for a time")
async def raise_log_level(run: ActionRun, given: RaiseLevelRequest) -> LogLevels | Refusal:
    """The response has all that are raised where it was asked for; one of the same subject is replaced."""
    if not is_subject(given.subject):
        rule = f"must be a loaded module below holdfast, one of {', '.join((*GROUPS, *MAILBOX_WORKERS))}, "
        return invalid_parameter("subject", f"{rule}an account's id or a path that begins with /", given.subject)
    run.note(subject=given.subject)
    command = RaiseLevel(given.subject, given.for_s, given.lines_per_s, given.reason)
    if given.member_id is None:
        return _listed(await ask_all(run.deps, command))
    answer = await ask_control(run.deps, given.member_id, command)
    return answer if isinstance(answer, Refusal) else _listed(Answers({given.member_id: answer}, [], 1))
