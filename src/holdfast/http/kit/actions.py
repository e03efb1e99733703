"""Operators' actions: each is recorded before its effect, then completed with its result and reported.

A route with an ``action`` runs through :func:`handle`, so handlers stay plain. An action whose record cannot be
written is not done. Urgent ones, which repair the service, are the exception: while the database is away, their
report is the record.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from quart import Response

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.http.kit.calls import Call
from holdfast.http.kit.errors import INTERNAL_ERROR, UNREADABLE, leaves_of, refusal_of_fault
from holdfast.http.kit.operators import MAY_ONLY_READ
from holdfast.http.kit.routes import BodyResponse, Outcome, Route
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.records.operator_tables import ActionResult, OperatorAction
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.scrubbing import SCRUBBED, scrub
from holdfast.telemetry.traces import trace_id

log = structlog.get_logger("holdfast.http")

HIDDEN_PARAMETERS: Final = frozenset({"code"})
"""What gives credit to its readers: a coupon's code."""
PARAMETERS_MAX: Final = 16
PARAMETER_NAME_CHARS_MAX: Final = 64
PARAMETER_CHARS_MAX: Final = 400
END_S: Final = 30.0
"""How long an action's result may take to be written: the database may be slow, or away for a moment."""


async def handle(call: Call, route: Route) -> Outcome:
    """Run the handler of a route; that of an action between its two records.

    Raises :class:`DatabaseAway`, before anything is done, if the first cannot be written. If the second cannot, the
    row has no result, and the log has a line. To an operator a refusal names the row that cannot be read.
    """
    try:
        return await (route.handler(call) if route.action is None else _act(call, route))
    except UnreadableRow as fault:
        if call.operator is None:
            raise
        return Refusal(code=UNREADABLE.code, message=f"The row cannot be read: {scrub(str(fault))}")


async def _act(call: Call, route: Route) -> Outcome:
    await _begin(call)
    try:
        outcome = await route.handler(call)
    except BaseException as fault:
        await _end(call, *_result_of_fault(fault))
        raise
    refusal = _refusal_in(outcome)
    assert call.action is not None
    await _end(call, (call.action.result or "done") if refusal is None else "refused", refusal)
    return outcome


async def record_refused_action(call: Call, refusal: object) -> None:
    """If ``refusal`` is that of an operator who may only read, record what was tried.

    Raises :class:`DatabaseAway`.
    """
    if refusal is MAY_ONLY_READ and call.route.action is not None:
        await _begin(call)
        await _end(call, "refused", MAY_ONLY_READ.code)


def note_effect(call: Call, **effect: str) -> None:
    """Note what the operator's action has done, for its record."""
    assert call.action is not None
    call.action = call.action._replace(effect=effect)


def note_failure(call: Call, **effect: str) -> None:
    """Note that the operator's action has failed although it has a reply, and what it has done."""
    note_effect(call, **effect)
    assert call.action is not None
    call.action = call.action._replace(result="failed")


def _parameters_of(call: Call) -> dict[str, str] | None:
    """Return what was sent besides the reason and the target, as texts without secrets, and bounded."""
    sent = ((name, value) for name, value in call.json.items() if name not in ("reason", "path"))
    texts = {
        name[:PARAMETER_NAME_CHARS_MAX]: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in sent
        if value not in (None, "")
    }
    return {
        # With its name, so that a secret is recognised by it.
        name: SCRUBBED
        if name in HIDDEN_PARAMETERS
        else scrub(f"{name}={value[:PARAMETER_CHARS_MAX]}").removeprefix(f"{name}=")
        for name, value in list(texts.items())[:PARAMETERS_MAX]
    } or None


async def _begin(call: Call) -> None:
    operator, action = call.operator, call.route.action
    assert operator is not None, "the route of an action authenticates an operator"
    assert action is not None
    reason = call.reason()
    call.action = OperatorAction(
        action_id=new_id("act"),
        at=call.deps.now(),
        operator=operator.name,
        credential=operator.credential,
        origin=call.origin(),
        action=action,
        target=scrub(call.target()),
        account_id=_with_prefix(call, "acct_"),
        task_id=_with_prefix(call, "task_"),
        reason=None if reason is None else scrub(reason),
        trace_id=trace_id() or "",
        parameters=_parameters_of(call),
    )
    try:
        await call.deps.write_record(partial(write_action, action=call.action))
    except DatabaseAway:
        if not call.route.is_urgent:
            raise
        log.warning("an urgent action has no row", action=action, operator=operator.name)


async def _end(call: Call, result: ActionResult, code: str | None) -> None:
    assert call.action is not None
    action = call.action = call.action._replace(ended_at=call.deps.now(), result=result, code=code)
    call.deps.operating.report(_report_of(action))
    # Shielded: the action is done, whether or not its caller is still there.
    with trio.move_on_after(END_S, shield=True):
        while True:
            try:
                await call.deps.write_record(partial(write_action, action=action))
            except DatabaseAway as away:
                if call.route.is_urgent:
                    break
                await trio.sleep(away.retry_after_s)
            else:
                return
    log.warning("an action's result could not be written", action_id=action.action_id, result=result)


def _report_of(action: OperatorAction) -> Report:
    result = "outcome unknown" if action.result == "unknown" else action.result
    code = f" ({action.code})" if action.code else ""
    done = "".join(f"; {name}: {value}" for name, value in (action.effect or {}).items())
    why = f"{done}; reason: {action.reason}" if action.reason else done
    return Report(
        kind="action",
        at=action.ended_at or action.at,
        path="operators",
        key=action.target or None,
        account_id=action.account_id,
        task_id=action.task_id,
        operator=action.operator,
        reason=f"{action.action.replace('_', ' ')}: {result}{code}{why}",
        trace_id=action.trace_id,
    )


def _result_of_fault(fault: BaseException) -> tuple[ActionResult, str | None]:
    leaves = list(leaves_of(fault))
    if any(isinstance(leaf, trio.Cancelled | OutcomeUnknown) for leaf in leaves):
        return "unknown", None
    return "failed", (refusal_of_fault(fault) or INTERNAL_ERROR).code


def _refusal_in(outcome: Outcome) -> str | None:
    """Return the code of a refusal, or the status of a response that is an error."""
    if isinstance(outcome, BodyResponse):
        outcome = outcome.body
    if isinstance(outcome, Refusal):
        return outcome.code
    if isinstance(outcome, Response) and outcome.status_code >= 400:
        return str(outcome.status_code)
    return None


def _with_prefix(call: Call, prefix: str) -> str | None:
    return next((value for value in call.path.values() if value.startswith(prefix)), None)
