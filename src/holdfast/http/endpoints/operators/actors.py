"""Actors: the active and the remembered ones, one of them in detail, and what operators do with it.

A sign-in actor is shown by a digest, because its key is an e-mail address or a client's address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Final, get_args

import msgspec

from holdfast.http.endpoints.operators.processes import Answers, ask_all, ask_control
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import CURSOR, LIMIT, filter_by, read_window
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter
from holdfast.http.schemas.operators import GROUPS, ActionWithReason, Reason
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.accounts import emails_of_accounts
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import (
    CrashKey,
    DeadLetterList,
    DescribeKey,
    KeyAction,
    KeyDescription,
    KeyOrder,
    KeySummary,
    ListDeadLetters,
    ListKeys,
    QuarantineKey,
    ReleaseKey,
    RestartKey,
)
from holdfast.supervision.dead_letters import DeadLetter, DeadReason
from holdfast.supervision.keyed_child import ActorState

route = OperatorRoutes("Actors")

QUARANTINE_DEFAULT_S: Final = 3_600.0
QUARANTINE_MAX_S: Final = 30 * 86_400.0
GROUP: Final = replace(filter_by("group", "The group of actors.", GROUPS), required=True)
_STATE: Final = filter_by("state", "Only actors in this state.", get_args(ActorState))
_ORDER: Final = filter_by(
    "order",
    "By `key`, if not given; or those first with the most waiting messages (`queue`), the oldest one (`wait`) or "
    "the most handled ones (`rate`): a single page, without a cursor.",
    get_args(KeyOrder),
)
_FIGURES: Final[dict[KeyOrder, Callable[[KeySummary], float]]] = {
    "key": lambda _: 0.0,
    "queue": lambda each: each.work.mailbox_depth,
    "wait": lambda each: each.work.oldest_message_age_s or 0.0,
    "rate": lambda each: each.messages_per_s,
}
_DEAD_REASON: Final = filter_by(
    "reason", "Only messages that were not handled for this reason.", get_args(DeadReason)
)


_on_actor: Final = route.below(
    "/ops/api/actors/{group}/{key}", errors=("group_not_found", "actor_not_found"), is_urgent=True
)


class QuarantineRequest(msgspec.Struct, frozen=True):
    """Why the operator acts, and for how long."""

    reason: Reason
    for_s: Annotated[float, msgspec.Meta(ge=1, le=QUARANTINE_MAX_S)] = QUARANTINE_DEFAULT_S
    """How long, in seconds; at most 30 days."""


class ListedActor(KeySummary, frozen=True, kw_only=True):
    """An actor in a list."""

    email: str | None
    """The account's e-mail address; null for other actors, and while the database is away."""


class ActorList(msgspec.Struct, frozen=True):
    """Actors of all processes."""

    data: list[ListedActor]
    """The actors of this page."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last one, and in any order but by key."""
    unreachable: list[str]
    """The members that did not answer."""


@route.read(
    "/ops/api/actors",
    "List the actors of a group in all processes: active, backing off, quarantined",
    ActorList,
    parameters=(GROUP, _STATE, _ORDER, CURSOR, LIMIT),
    errors=("missing_parameter",),
)
async def list_actors(call: Call) -> Outcome:
    """Answered from memory, but for the e-mail addresses. A passivated actor is remembered if it crashed lately."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    group, state = window.filters["group"], msgspec.convert(window.filters.get("state"), ActorState | None)
    order = msgspec.convert(window.filters.get("order", "key"), KeyOrder)
    if order != "key" and window.cursor is not None:
        return invalid_parameter("cursor", f"cannot be sent with order={order}")
    answers = await ask_all(call.deps, ListKeys(group, state, window.cursor or "", window.limit + 1, order))
    found = sorted(
        (key for each in answers.by_member.values() for key in each.keys),
        key=lambda each: (-_FIGURES[order](each), each.key),
    )
    page, emails = found[: window.limit], dict[str, str]()
    if group == "accounts":
        with suppress(DatabaseAway):
            emails = await call.deps.database.read(
                lambda rows: emails_of_accounts(rows, [each.key for each in page])
            )
    return ActorList(
        data=[ListedActor(**msgspec.structs.asdict(each), email=emails.get(each.key)) for each in page],
        next_cursor=page[-1].key if order == "key" and len(found) > window.limit else None,
        unreachable=answers.unreachable,
    )


@_on_actor.read(
    "", "Retrieve an actor: its state, mailbox, present turn with its await stack, and restarts", KeyDescription
)
async def read_actor(call: Call) -> Outcome:
    """The account's or task's owner is asked first, then the other members."""
    found, _ = await _find(call.deps, call.path["group"], call.path["key"])
    return found


@_on_actor.action(
    "/restart",
    "Restart an actor: it reads its rows again, and its waiting messages stay",
    errors=("actor_not_active",),
)
async def restart_actor(run: ActionRun, given: ActionWithReason, group: str, key: str) -> KeyDescription | Refusal:
    """An actor that is stuck in a turn is ended in it; that message's outcome is then unknown to its sender."""
    return await _act(run.deps, RestartKey(group, key, given.reason))


@_on_actor.action(
    "/crash",
    "End an actor as a crash in its handler would, to see how it recovers; in development only",
    errors=("actor_not_active", "development_only"),
)
async def crash_actor(run: ActionRun, given: ActionWithReason, group: str, key: str) -> KeyDescription | Refusal:
    """It counts against the actor's restart budget. In production a restart is what an operator needs."""
    if run.deps.settings.is_production:
        return Refusal(code="development_only", message="Actors are crashed on purpose in development only.")
    return await _act(run.deps, CrashKey(group, key, given.reason))


@_on_actor.action("/quarantine", "Quarantine an actor: its messages are refused for a while, and no other's")
async def quarantine_actor(
    run: ActionRun, given: QuarantineRequest, group: str, key: str
) -> KeyDescription | Refusal:
    """An actor that is not active is quarantined too: its next message would start it."""
    return await _act(run.deps, QuarantineKey(group, key, given.reason, given.for_s))


@_on_actor.action("/release", "Release an actor from quarantine", errors=("actor_not_quarantined",))
async def release_actor(run: ActionRun, given: ActionWithReason, group: str, key: str) -> KeyDescription | Refusal:
    """Its restart budget starts over."""
    return await _act(run.deps, ReleaseKey(group, key, given.reason))


@route.read(
    "/ops/api/dead-letters",
    "List the newest messages that no actor handled, by type and reason",
    DeadLetterList,
    parameters=(_DEAD_REASON, LIMIT),
)
async def list_dead_letters(call: Call) -> Outcome:
    """Each process lists what it remembers, newest first, and counts since its start."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    answers = await ask_all(call.deps, ListDeadLetters(window.filters.get("reason"), window.limit))
    found: list[DeadLetter] = []
    counts: Counter[DeadReason] = Counter()
    for answer in answers.by_member.values():
        found += answer.data
        counts.update(answer.counts)
    found.sort(key=lambda each: each.at, reverse=True)
    return DeadLetterList(found[: window.limit], counts)


async def _act(deps: Dependencies, action: KeyAction) -> KeyDescription | Refusal:
    found, answers = await _find(deps, action.group, action.key)
    owner = deps.operating.controls.owner_of(action.group, action.key)
    reply = await ask_control(deps, owner if isinstance(found, Refusal) else found.member_id, action)
    return answers.complete(reply) if isinstance(reply, Refusal) else reply


async def _find(
    deps: Dependencies, group: str, key: str
) -> tuple[KeyDescription | Refusal, Answers[KeyDescription]]:
    """Describe an actor by the member that has it, its owner or any other, or else by one that remembers it.

    Returns the answers of all members, too, if all were asked.
    """
    question = DescribeKey(group, key)
    found = await ask_control(deps, deps.operating.controls.owner_of(group, key), question)
    if isinstance(found, Refusal):
        if found.code != "actor_not_found":
            return found, Answers({}, [], 0)
    elif found.state != "passivated":
        return found, Answers({}, [], 0)
    answers = await ask_all(deps, question)
    known = sorted(answers.by_member.values(), key=lambda each: each.state == "passivated")
    if known and (isinstance(found, Refusal) or known[0].state != "passivated"):
        return known[0], answers
    return answers.complete(found) if isinstance(found, Refusal) else found, answers
