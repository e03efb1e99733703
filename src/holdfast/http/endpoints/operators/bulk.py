"""Bulk actions: what operators do to all entries of a list that match a filter, and the worker that does it.

One goes on in any process, a batch at a time, until nothing is left or an operator stops it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, OutcomeUnknown
from holdfast.actors.workers.passes import ALWAYS, Schedule, do_each, repeat
from holdfast.http.endpoints.operators.actors import GROUP, release_actor
from holdfast.http.endpoints.operators.orders import TROUBLE, Resolution, reconcile_payment, resolve_payment_order
from holdfast.http.endpoints.operators.poison import FILTERS as POISON_FILTERS
from holdfast.http.endpoints.operators.poison import discard_poison_message, replay_poison_message
from holdfast.http.endpoints.operators.processes import ask_all, count_quarantined
from holdfast.http.endpoints.operators.reviews import REASON, Decision, approve_review, reject_review
from holdfast.http.endpoints.operators.tasks import AT_PROVIDER, STATUS, cancel_any_task
from holdfast.http.endpoints.operators.webhooks import FILTERS as EVENT_FILTERS
from holdfast.http.endpoints.operators.webhooks import retry_event
from holdfast.http.kit.actions import Action, ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import INTERNAL_ERROR, refusal_of_fault
from holdfast.http.kit.listing import (
    FILTER_MAX_CHARS,
    PAGE,
    Position,
    StoredListBody,
    filter_by,
    list_for_operators,
    read_window,
    refuse_filters,
)
from holdfast.http.kit.routes import Outcome, Parameter
from holdfast.http.kit.values import invalid_parameter, shown
from holdfast.http.schemas.common import render
from holdfast.http.schemas.operators import ActionRequest, ActionWithReason, Reason
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import IDEMPOTENCY_KEY_REUSED, Refusal
from holdfast.ledger.values import time_or_none
from holdfast.persistence.claims.due_work import BULK_ACTIONS_GO_ON
from holdfast.persistence.operators.bulk import (
    CONTINUE,
    EVENTS,
    ORDERS,
    POISON,
    REVIEWS,
    START,
    STOP,
    TASKS,
    BulkProgress,
    Match,
    Matches,
    RowList,
    begin_once,
    bulk_action_by_id,
    bulk_actions,
    continue_once,
    count_matches,
    next_matches,
    open_bulk_actions,
    stopped_by,
    write_progress,
)
from holdfast.persistence.queries.events import EventAddress
from holdfast.persistence.records.operator_tables import OperatorAction
from holdfast.persistence.server.connections import in_one_transaction
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import DescribeProcess, ListKeys
from holdfast.telemetry.scrubbing import scrub

log = structlog.get_logger(__name__)

SHOWN: Final = 3
BATCH: Final = 100
PAUSE_S: Final = 0.2
"""The pause after each batch, which leaves the service to its customers: at most 500 entries a second."""
AT_ONCE: Final = 8
"""How many of a batch are acted on at once; after them a stop is seen."""
EXCEPTIONS_MAX: Final = 20
EVERY_S: Final = 1.0


class Act(NamedTuple):
    """What is done to each entry of a list.

    ``path`` and ``filters`` are the list's; the ``usual`` ones hold unless others are sent. Without ``rows`` its
    entries are quarantined actors, which are in memory. ``given`` makes the body of the action from the reason.
    What is done ``together`` is done in one commit instead, of those not touched since the time it is given.
    """

    action: Action[Any, ..., Any]
    path: str
    filters: tuple[Parameter, ...]
    rows: RowList | None
    given: Callable[..., msgspec.Struct] = ActionWithReason
    usual: Mapping[str, str] = {}
    together: Callable[[Dependencies, Sequence[Match], datetime], Awaitable[None]] | None = None

    def read_filter(self, sent: str) -> dict[str, str] | Refusal:
        """Return the filters of a query string. Refuses with ``invalid_parameter`` or ``missing_parameter``."""
        pairs, known = parse_qsl(sent, keep_blank_values=True), {each.name: each for each in self.filters}
        values = dict(pairs)
        if len(values) < len(pairs) or not values.keys() <= known.keys():
            return invalid_parameter("filter", f"may have, once each: {', '.join(known) or 'nothing'}", sent)
        return refuse_filters([*known.items()], values) or {**self.usual, **values}

    async def count_all(self, deps: Dependencies, filters: Mapping[str, str], until: datetime) -> Matches:
        """Count the entries that match, with the first and last few."""
        if self.rows is not None:
            return await deps.database.scan(
                partial(count_matches, of=self.rows, filters=filters, until=until, shown=SHOWN)
            )
        answers = await ask_all(deps, DescribeProcess())
        total = count_quarantined(answers.by_member.values(), filters["group"])
        found = await _quarantined(deps, filters["group"], "", SHOWN)
        return Matches(total, found.first, [], sorted({*answers.unreachable, *found.unreachable}))

    async def next(self, deps: Dependencies, filters: Mapping[str, str], progress: BulkProgress) -> Matches:
        """Return those to act on next, or those of the entries in hand that are still to be acted on."""
        if self.rows is not None:
            # As long as the count may take: what it has found must not be too slow to find again.
            rows = await deps.database.scan(
                partial(next_matches, of=self.rows, filters=filters, progress=progress, most=BATCH)
            )
            return Matches(len(rows), rows, [])
        found = await _quarantined(deps, filters["group"], progress.after, BATCH)
        return found._replace(
            first=[each for each in found.first if not progress.upto or each.position <= progress.upto]
        )

    async def do(
        self, deps: Dependencies, record: OperatorAction, found: Sequence[Match], since: datetime
    ) -> list[_Refused]:
        """Act on each that was not acted on ``since``, and return those that were refused or failed.

        Raises :class:`DatabaseAway`, or a fault of what is together.
        """
        if self.together is not None:
            await self.together(deps, found, since)
            return []
        refused: list[_Refused] = []
        away: list[DatabaseAway] = []
        given = self.given(reason=record.reason or "")

        async def one(match: Match) -> None:
            is_unknown = False
            try:
                reply = await self.action.do(ActionRun.resumed(deps, record, since), given, *match.target)
            except DatabaseAway as fault:
                away.append(fault)
                return
            except OutcomeUnknown as fault:
                reply, is_unknown = refusal_of_fault(fault), True
            except Exception as fault:
                reply = refusal_of_fault(fault)
                if reply is None:
                    log.exception("a bulk action failed on an entry", action_id=record.action_id)
                    reply = INTERNAL_ERROR
            if isinstance(reply, Refusal):
                refused.append(_Refused(match, f"{match.target[-1]}: {reply.code}", is_unknown))

        await do_each(one, found, concurrent_max=AT_ONCE)
        if away:
            raise away[0]
        return refused


class _Refused(NamedTuple):
    """An entry that was not acted on, and why; or whose outcome is not known."""

    match: Match
    why: str
    is_unknown: bool


async def _quarantined(deps: Dependencies, group: str, after: str, most: int) -> Matches:
    answers = await ask_all(deps, ListKeys(group, "quarantined", after, most))
    keys = sorted({each.key for answer in answers.by_member.values() for each in answer.keys})
    found = [Match(None, key, (group, key)) for key in keys[:most]]
    return Matches(len(found), found, [], answers.unreachable)


async def _resend(deps: Dependencies, found: Sequence[Match], since: datetime) -> None:
    if found:
        await deps.sending.events.resend([EventAddress(*each.target) for each in found], unless_since=since)


_HELD: Final = {"trouble": "held"}
_KEPT: Final = {"state": "kept"}
ACTS: Final[dict[str, Act]] = {
    "release_actor": Act(release_actor, "/ops/api/actors", (GROUP,), None),
    "replay_poison": Act(replay_poison_message, "/ops/api/poison", POISON_FILTERS, POISON, usual=_KEPT),
    "discard_poison": Act(discard_poison_message, "/ops/api/poison", POISON_FILTERS, POISON, usual=_KEPT),
    "retry_webhook": Act(retry_event, "/ops/api/webhooks", EVENT_FILTERS, EVENTS, together=_resend),
    "cancel_task": Act(cancel_any_task, "/ops/api/tasks", (AT_PROVIDER, STATUS), TASKS),
    "approve_review": Act(approve_review, "/ops/api/reviews", (REASON,), REVIEWS, Decision),
    "reject_review": Act(reject_review, "/ops/api/reviews", (REASON,), REVIEWS, Decision),
    "reconcile_payment": Act(reconcile_payment, "/ops/api/orders", (TROUBLE,), ORDERS),
    **{
        f"resolve_payment_{how}_credit": Act(
            resolve_payment_order, "/ops/api/payments", (), ORDERS, partial(Resolution, credit=how == "with"), _HELD
        )
        for how in ("with", "without")
    },
}
"""By name, which is the action's where there is one act of it."""


class BulkActions:
    """The worker: does a batch of each bulk action that goes on, then pauses."""

    def __init__(self, deps: Callable[[], Dependencies], *, schedule: Schedule = ALWAYS) -> None:
        self._deps = deps
        self._schedule = schedule

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Go on until cancelled."""
        task_status.started()
        await repeat(self.work, every_s=EVERY_S, name="bulk actions", schedule=self._schedule)

    async def work(self) -> bool:
        """Do a batch of each; return whether there may be more. One that fails keeps no other waiting.

        Raises :class:`DatabaseAway`, after the others.
        """
        deps = self._deps()
        found = await deps.database.read(partial(open_bulk_actions, now=deps.now()))
        went_on, away = False, list[DatabaseAway]()
        for record in found:
            try:
                went_on |= await _go_on(deps, record)
            except DatabaseAway as fault:
                away.append(fault)
            except AskFault as fault:
                log.info("bulk action postponed", action_id=record.action_id, reason=str(fault))
            except Exception:
                # Raised, it would end the worker again each time, and with it the process.
                log.exception("a bulk action failed", action_id=record.action_id)
        if away:
            raise away[0]
        if went_on:
            await trio.sleep(PAUSE_S)
        return went_on


async def _go_on(deps: Dependencies, record: OperatorAction) -> bool:
    """Do a bulk action's next batch, or end it; return whether that was done."""
    progress = BulkProgress.of(record)
    act = ACTS.get(progress.act)
    filters = act.read_filter(progress.filter) if act is not None else None
    if act is None or not isinstance(filters, dict):
        return False  # of another release, whose processes go on with it
    return await _Batch(deps, record, act, filters).do(progress)


class _Batch(NamedTuple):
    """The next entries of a bulk action. Where progress is returned, None: another process has gone on with it."""

    deps: Dependencies
    record: OperatorAction
    act: Act
    filters: Mapping[str, str]

    async def do(self, progress: BulkProgress) -> bool:
        # Before the next are looked for, too, which may be what fails each time.
        stopped = None if progress.upto else await self._stopped_by()
        if stopped is not None:
            return await self._end(progress, stopped)
        matches = await self.act.next(self.deps, self.filters, progress)
        left = matches.first
        silent = {*filter(None, progress.unreachable.split("; ")), *matches.unreachable}
        progress = msgspec.structs.replace(progress, unreachable="; ".join(sorted(silent)))
        if progress.upto:
            # The others in hand were acted on by a process that stands still, has ended or failed.
            done = progress.done + max(0, progress.in_hand - len(left))
            taken_over = msgspec.structs.replace(progress, done=done, in_hand=len(left))
            return await self._act_on(left, taken_over, is_first=False) is not None
        if not left:
            return await self._end(progress, None)
        at_once = BATCH if self.act.together is not None else AT_ONCE
        while left:
            stopped = await self._stopped_by()
            if stopped is not None:
                return await self._end(progress, stopped)
            found, left = left[:at_once], left[at_once:]
            in_hand = msgspec.structs.replace(progress, upto=found[-1].position, in_hand=len(found))
            after = await self._act_on(found, in_hand, is_first=True)
            if after is None:
                return False
            progress = after
        return True

    async def _act_on(
        self, found: Sequence[Match], in_hand: BulkProgress, *, is_first: bool
    ) -> BulkProgress | None:
        """Act on the entries in hand, and write how far it is.

        One that was refused was acted on before if it matches no longer and its outcome was not known, or this
        process was not the first to act on it.
        """
        progress = await self._write(in_hand)
        if progress is None:
            return None
        refused = await self.act.do(self.deps, self.record, found, progress.until)
        in_doubt = {each.match.position for each in refused if each.is_unknown or not is_first}
        if in_doubt:
            matches = await self.act.next(self.deps, self.filters, progress)
            in_doubt -= {each.position for each in matches.first}
            refused = [each for each in refused if each.match.position not in in_doubt]
        known = progress.exceptions.split("; ") if progress.exceptions else []
        done = msgspec.structs.replace(
            progress,
            done=progress.done + len(found) - len(refused),
            refused=progress.refused + len(refused),
            exceptions="; ".join([*known, *(each.why for each in refused)][:EXCEPTIONS_MAX]),
            after=progress.upto,
            upto="",
            in_hand=0,
        )
        return await self._write(done)

    async def _stopped_by(self) -> str | None:
        return await self.deps.database.read(partial(stopped_by, action=self.record))

    async def _write(self, progress: BulkProgress) -> BulkProgress | None:
        return await self.deps.write_record(
            partial(write_progress, action_id=self.record.action_id, progress=progress)
        )

    async def _end(self, progress: BulkProgress, stopped: str | None) -> bool:
        """Complete the record: of one that was stopped, with where another action may continue."""
        written = await self._write(progress)
        if written is None:
            return False
        ended = msgspec.structs.replace(
            written, stopped_by=stopped or "", after="" if stopped is None else written.after, number=0
        )
        run = ActionRun.resumed(self.deps, self.record)
        run.note(**ended.effect())
        await run.end("done")
        return True


# -------------------------------------------------------------------------------------------------- endpoints


BulkState = Literal["running", "stopped", "ended"]

route = OperatorRoutes("Bulk actions")

_ACT: Final = replace(filter_by("act", "What is done to each entry.", [*ACTS]), required=True)
_FILTER: Final = filter_by(
    "filter", "The filters of the list as a query string, such as `status=given_up&host=shop.example`."
)


class BulkRequest(msgspec.Struct, frozen=True):
    """What is done to all entries that match."""

    act: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*ACTS]}, examples=["retry_webhook"])]
    """What is done to each entry."""
    reason: Reason
    filter: Annotated[str, msgspec.Meta(max_length=FILTER_MAX_CHARS, examples=["status=given_up"])] = ""
    """The filters of the list as a query string; empty or omitted: all of its entries."""


class MatchBody(msgspec.Struct, frozen=True):
    """An entry that matches."""

    target: list[str]
    """What the action on one takes, such as the ids of its account and of itself."""
    at: Time | None
    """Its time in the list; null for actors, which are in the order of their keys."""


class MatchesBody(msgspec.Struct, frozen=True):
    """What a bulk action would act on."""

    act: str
    """What would be done to each entry."""
    path: str
    """The list's path."""
    count: int
    """How many entries match now."""
    oldest: list[MatchBody]
    """The first few, oldest first."""
    newest: list[MatchBody]
    """The last few, newest first; none of actors."""
    unreachable: list[str]
    """The members that did not answer, whose actors are not counted."""


class BulkActionBody(msgspec.Struct, frozen=True):
    """A bulk action and how far it is."""

    action_id: str
    """The id of the operator's action, `act_…`."""
    at: Time
    """When it began."""
    operator: str
    """Who began it."""
    reason: str | None
    """Why, by the operator."""
    act: str
    """What is done to each entry."""
    filter: str
    """Which entries, as a query string."""
    state: BulkState
    """`running`; `stopped` by an operator, or because it had not ended after a day; or `ended`."""
    total: int
    """How many entries matched when it began."""
    done: int
    """How many were acted on."""
    refused: int
    """How many were not, because they were refused or failed."""
    exceptions: list[str]
    """The first twenty of those, each with the code of its error."""
    unreachable: list[str]
    """The members that did not answer at some time, so that actors of theirs may not have been acted on."""
    stopped_by: str | None
    """Who stopped it; null if it was not stopped."""
    ended_at: Time | None
    """When it ended or was stopped; null while it runs."""


class BulkActionList(StoredListBody[BulkActionBody], frozen=True):
    """A page of bulk actions, newest first."""


@route.read(
    "/ops/api/bulk-matches",
    "Count what a bulk action would act on, with its oldest and newest",
    MatchesBody,
    parameters=(_ACT, _FILTER),
    errors=("missing_parameter",),
)
async def read_bulk_matches(call: Call) -> Outcome:
    """Nothing is done to them."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    name = window.filters["act"]
    act = ACTS[name]
    filters = act.read_filter(window.filters.get("filter", ""))
    if isinstance(filters, Refusal):
        return filters
    found = await act.count_all(call.deps, filters, call.deps.now())
    return MatchesBody(
        name,
        act.path,
        found.total,
        oldest=[*map(_match, found.first)],
        newest=[*map(_match, reversed(found.last))],
        unreachable=[*found.unreachable],
    )


def _match(found: Match) -> MatchBody:
    return MatchBody([*found.target], time_or_none(found.at))


_on_all: Final = route.below("/ops/api/bulk-actions", errors=("invalid_parameter", "missing_parameter"))
_on_one: Final = route.below("/ops/api/bulk-actions/{action_id}", errors=("bulk_action_not_found",))


@_on_all.read("", "List bulk actions; newest first", BulkActionList, parameters=PAGE)
async def list_bulk_actions(call: Call) -> Outcome:
    """Those that run, and those that have ended or were stopped."""
    body = partial(_body, now=call.deps.now())
    return await list_for_operators(call, bulk_actions, body, lambda each: Position(each.at, each.action_id))


def _is_of(action: OperatorAction, given: BulkRequest) -> bool:
    was = BulkProgress.of(action)
    return (was.act, was.filter, action.reason) == (given.act, given.filter, scrub(given.reason.strip()))


@_on_all.action(
    "",
    "Act on all entries of a list that match a filter",
    name=START,
    errors=("idempotency_key_reused",),
    needs_key=True,
    records_itself=True,
)
async def act_on_all(run: ActionRun, given: BulkRequest) -> BulkActionBody | Refusal:
    """It goes on after the response, in any process, until all that matched when it began are acted on once.

    A repeat with the same Idempotency-Key within a day returns the bulk action that was begun, as it is then.
    """
    act = ACTS.get(given.act)
    if act is None:
        return invalid_parameter("act", f"must be one of {', '.join(ACTS)}", given.act)
    filters = act.read_filter(given.filter)
    if isinstance(filters, Refusal):
        return filters
    until = run.record.at
    found = await act.count_all(run.deps, filters, until)
    key = hashlib.sha256(f"{run.operator.name} {run.key.key}".encode()).hexdigest()
    progress = BulkProgress(
        given.act, given.filter, until, found.total, key, unreachable="; ".join(found.unreachable)
    )
    begin = partial(begin_once, action=run.record._replace(effect=progress.effect()), key=key)
    begun = await run.deps.write_record(in_one_transaction(begin))
    if not _is_of(begun, given):
        return IDEMPOTENCY_KEY_REUSED
    run.goes_on, run.is_replay = True, begun.action_id != run.record.action_id
    return _body(begun, now=run.deps.now())


@_on_one.read("", "Retrieve a bulk action and how far it is", BulkActionBody)
async def read_bulk_action(call: Call) -> Outcome:
    """It is the record of the operator's action, too."""
    found = await call.deps.find_by_id(bulk_action_by_id, call.path["action_id"])
    return _not_found(call.path["action_id"]) if found is None else _body(found, now=call.deps.now())


@_on_one.action("/stop", "Stop a bulk action", name=STOP)
async def stop_bulk_action(run: ActionRun, _: ActionRequest, action_id: str) -> BulkActionBody | Refusal:
    """It ends after the entries that are in hand, of which there are few. One that has ended stays as it is."""
    found = await run.deps.find_by_id(bulk_action_by_id, action_id)
    return _not_found(action_id) if found is None else _body(found, now=run.deps.now())


@_on_one.action(
    "/continue",
    "Continue a bulk action that was stopped",
    name=CONTINUE,
    errors=("bulk_action_not_stopped",),
    records_itself=True,
)
async def continue_bulk_action(run: ActionRun, _: ActionRequest, action_id: str) -> BulkActionBody | Refusal:
    """It is an action of its own, on what was left of the entries that matched at first."""
    found = await run.deps.find_by_id(bulk_action_by_id, action_id)
    if found is None:
        return _not_found(action_id)
    was = BulkProgress.of(found)
    total = max(0, was.total - was.done - was.refused)
    left = msgspec.structs.replace(
        was, total=total, key="", done=0, refused=0, exceptions="", unreachable="", stopped_by=""
    )
    if _state(found, run.deps.now()) == "stopped":
        action = run.record._replace(effect=left.effect())
        run.goes_on = await run.deps.write_record(in_one_transaction(partial(continue_once, action=action)))
        if run.goes_on:
            return _body(action, now=run.deps.now())
    message = f"The bulk action {shown(action_id)} runs, has ended, or was continued."
    return Refusal(code="bulk_action_not_stopped", message=message)


def _state(action: OperatorAction, now: datetime) -> BulkState:
    if action.result is None:
        return "running" if action.at > now - BULK_ACTIONS_GO_ON else "stopped"
    return "stopped" if (action.effect or {}).get("stopped_by") else "ended"


def _body(action: OperatorAction, now: datetime) -> BulkActionBody:
    progress = BulkProgress.of(action)
    return render(
        BulkActionBody,
        action,
        progress,
        state=_state(action, now),
        exceptions=progress.exceptions.split("; ") if progress.exceptions else [],
        unreachable=progress.unreachable.split("; ") if progress.unreachable else [],
        stopped_by=progress.stopped_by or None,
    )


def _not_found(action_id: str) -> Refusal:
    return Refusal(code="bulk_action_not_found", message=f"There is no bulk action {shown(action_id)}.")
