"""Operators' actions: each is declared by :meth:`OperatorRoutes.action` with the one function that does it.

An action is recorded before its effect, then completed with its result and reported. One whose record cannot be
written is not done. Urgent ones, which repair the service, are the exception: while the database is away, their
report is the record. An action is done for a request, or by :meth:`Action.perform` for one target from code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import partial
from typing import Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast, get_args, get_type_hints

import msgspec
import structlog
import trio

from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import Command, IdempotencyKey
from holdfast.actors.runtime.refs import AskRef, WhileDown
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import INTERNAL_ERROR, leaves_of, refusal_of_fault
from holdfast.http.kit.operators import MAY_ONLY_READ, Operator, OperatorCredential
from holdfast.http.kit.routes import REQUIRED_IDEMPOTENCY_KEY, Handler, Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.values import NO_IDEMPOTENCY_KEY, read_restart_wait
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.records.operator_tables import ActionResult, OperatorAction
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.scrubbing import SCRUBBED, scrub
from holdfast.telemetry.traces import trace_id

log = structlog.get_logger(__name__)

T = TypeVar("T")
G = TypeVar("G", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
P = ParamSpec("P")

HIDDEN_PARAMETERS: Final = frozenset({"code"})
"""What gives credit to its readers: a coupon's code."""
PARAMETERS_MAX: Final = 16
PARAMETER_NAME_CHARS_MAX: Final = 64
PARAMETER_CHARS_MAX: Final = 400
END_S: Final = 30.0
"""How long an action's result may take to be written: the database may be slow, or away for a moment."""


@dataclass(slots=True)
class ActionRun:
    """One action on one target, as its function sees it.

    ``origin`` is where the operator asks from. Asks take ``deadline_s`` at most. ``idempotency`` is the
    Idempotency-Key, or why it is refused. ``sent`` is what is recorded as parameters; None: all that is given. If
    the run ``is_replay``, its reply is that to an earlier one with the same key. What ``goes_on`` after
    its reply, begun by this run or an earlier one, has its record completed by what does it then. What was done
    ``unless_since`` is not done again.
    """

    deps: Dependencies
    operator: Operator
    origin: str
    _: KW_ONLY
    deadline_s: float
    while_down: WhileDown = "queue"
    idempotency: IdempotencyKey | Refusal | None = None
    sent: Mapping[str, object] | None = None
    is_replay: bool = False
    unless_since: datetime | None = None
    goes_on: bool = field(default=False, init=False)
    _is_urgent: bool = field(default=False, init=False)
    _record: OperatorAction | None = field(default=None, init=False)

    @classmethod
    def resumed(cls, deps: Dependencies, record: OperatorAction, unless_since: datetime | None = None) -> ActionRun:
        """Return a run that goes on with what was recorded."""
        operator = Operator(record.operator, "act", cast("OperatorCredential", record.credential))
        deadline_s = deps.settings.ask_deadline_s
        run = cls(deps, operator, record.origin, deadline_s=deadline_s, unless_since=unless_since)
        run._record = record
        return run

    @property
    def record(self) -> OperatorAction:
        """The record of what is done."""
        assert self._record is not None, "the run has begun"
        return self._record

    @property
    def key(self) -> IdempotencyKey:
        """The Idempotency-Key of an action that needs one."""
        assert isinstance(self.idempotency, IdempotencyKey)
        return self.idempotency

    async def ask(self, ref: AskRef, command: Command[T]) -> T | Refusal:
        """Ask an actor. Raises its faults, which are in the error table."""
        return await ref.ask(command, deadline_s=self.deadline_s, while_down=self.while_down)

    def note(self, result: ActionResult = "done", /, **effect: str) -> None:
        """Note what was done, for the record, and with ``failed`` that it failed although there is a reply."""
        self._record = self.record._replace(result=result, effect=effect)

    def concern(self, account_id: str, task_id: str | None = None) -> None:
        """Note whom it concerns, where the target does not say so."""
        self._record = self.record._replace(account_id=account_id, task_id=task_id)

    def prepare(self, action: str, is_urgent: bool, target: Sequence[str], given: msgspec.Struct | None) -> None:
        """Make the record."""
        reason = (getattr(given, "reason", None) or "").strip()
        below: str | None = getattr(given, "path", None)
        sent = msgspec.to_builtins(given) if self.sent is None else self.sent
        self._is_urgent = is_urgent
        self._record = OperatorAction(
            action_id=new_id("act"),
            at=self.deps.now(),
            operator=self.operator.name,
            credential=self.operator.credential,
            origin=self.origin,
            action=action,
            target=scrub("/".join((*target, *([] if below is None else [below])))),
            account_id=next((each for each in target if each.startswith("acct_")), None),
            task_id=next((each for each in target if each.startswith("task_")), None),
            reason=scrub(reason) or None,
            trace_id=trace_id() or "",
            parameters=_parameters(sent),
        )

    async def begin(self) -> None:
        """Write the record before anything is done. Raises :class:`DatabaseAway`, unless it is urgent."""
        try:
            await self.deps.write_record(partial(write_action, action=self.record))
        except DatabaseAway:
            if not self._is_urgent:
                raise
            log.warning("an urgent action has no row", action=self.record.action, operator=self.operator.name)

    async def end(self, result: ActionResult, code: str | None = None) -> None:
        """Report the result, and complete the record. If that cannot be written, the log has a line."""
        action = self._record = self.record._replace(ended_at=self.deps.now(), result=result, code=code)
        self.deps.operating.report(_report_of(action))
        # Shielded: the action is done, whether or not its caller is still there.
        with trio.move_on_after(END_S, shield=True):
            while True:
                try:
                    await self.deps.write_record(partial(write_action, action=action))
                except DatabaseAway as away:
                    if self._is_urgent:
                        break
                    await trio.sleep(away.retry_after_s)
                else:
                    return
        log.warning("an action's result could not be written", action_id=action.action_id, result=result)


Do: TypeAlias = Callable[Concatenate[ActionRun, G, P], Awaitable[R | Refusal]]
"""The function of an action."""


@dataclass(frozen=True, slots=True)
class Action(Generic[G, P, R]):
    """An action as it is declared. ``do`` takes the parts of the target in the order in which the path has them."""

    name: str
    do: Do[G, P, R]
    _: KW_ONLY
    is_urgent: bool
    needs_key: bool
    records_itself: bool = False

    async def perform(self, run: ActionRun, given: G, *target: P.args, **named: P.kwargs) -> R | Refusal:
        """Do it between its two records, and return its reply. The parts of the target are given by position.

        Raises :class:`DatabaseAway`, before anything is done, if the first record cannot be written. If the second
        cannot, the row has no result. What ``records_itself`` writes the first in one commit with how it begins.
        """
        run.prepare(self.name, self.is_urgent, [*map(str, target)], given)
        if not self.records_itself:
            await run.begin()
        reply: R | Refusal
        try:
            if self.needs_key and not isinstance(run.idempotency, IdempotencyKey):
                reply = run.idempotency or NO_IDEMPOTENCY_KEY
            else:
                reply = await self.do(run, given, *target, **named)
        except BaseException as fault:
            if not (self.records_itself and isinstance(fault, DatabaseAway)):
                await run.end(*_result_of_fault(fault))
            raise
        if isinstance(reply, Refusal):
            await run.end("refused", reply.code)
        elif not run.goes_on:
            await run.end(run.record.result or "done")
        return reply


class OperatorRoutes(RouteTable):
    """The routes of a module for operators: what it shows them, and the actions it has for them.

    Those :meth:`below` one path may have in common what they refuse with, and that the actions are urgent.
    """

    def __init__(self, tag: str, path: str = "", *, errors: tuple[str, ...] = (), is_urgent: bool = False) -> None:
        super().__init__(tag)
        self._path, self._errors, self._is_urgent = path, errors, is_urgent

    def below(self, path: str, *, errors: tuple[str, ...], is_urgent: bool = False) -> OperatorRoutes:
        """Return what declares routes of this module whose paths go on with ``path``."""
        found = OperatorRoutes(
            self.tag, self._path + path, errors=(*self._errors, *errors), is_urgent=is_urgent or self._is_urgent
        )
        found.routes = self.routes
        return found

    def read(
        self,
        path: str,
        summary: str,
        reply: type[msgspec.Struct],
        *,
        parameters: tuple[Parameter, ...] = (),
        media: tuple[Media, ...] = (),
        errors: tuple[str, ...] = (),
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated handler as a route that every operator may read."""
        return self(
            "GET",
            self._path + path,
            summary=summary,
            auth=Auth.OPERATOR_READ,
            reply=reply,
            parameters=parameters,
            media=media,
            errors=(*self._errors, *errors),
        )

    def action(
        self,
        path: str,
        summary: str,
        *,
        errors: tuple[str, ...] = (),
        name: str = "",
        needs_key: bool = False,
        records_itself: bool = False,
    ) -> Callable[[Do[G, P, R]], Action[G, P, R]]:
        """Declare what the decorated function does as an action, by operators who may act.

        The function has the action's ``name``, unless another is given. It is called with the run, the body and
        the values of the path, which have its parameters' names. Its signature says what the body and the reply
        are, its docstring describes the action. What ``needs_key`` is done once for each Idempotency-Key. What
        ``records_itself`` writes its record in one commit with how it begins, and a repeat has none of its own.
        """

        def declare(do: Do[G, P, R]) -> Action[G, P, R]:
            hints = get_type_hints(do)
            _, sent, *target, returned = hints
            given, [reply] = hints[sent], [each for each in get_args(hints[returned]) if each is not Refusal]
            assert "reason" in given.__struct_fields__, "each action may have a reason"
            assert target == re.findall(r"\{(\w+)\}", self._path + path), "the parameters have the path's names"
            action = Action(
                name or do.__name__,
                do,
                is_urgent=self._is_urgent,
                needs_key=needs_key,
                records_itself=records_itself,
            )
            perform: Callable[..., Awaitable[R | Refusal]] = action.perform

            @functools.wraps(do)
            async def handler(call: Call) -> Outcome:
                run = _run_for(call)
                if needs_key:
                    run.idempotency = call.idempotency()
                outcome = await perform(run, call.body(given), *(call.path[part] for part in target))
                call.is_replay = run.is_replay
                return outcome

            self(
                "POST",
                self._path + path,
                summary=summary,
                auth=Auth.OPERATOR_ACT,
                action=action.name,
                is_urgent=self._is_urgent,
                body=given,
                reply=reply,
                parameters=(REQUIRED_IDEMPOTENCY_KEY,) if needs_key else (),
                errors=(*self._errors, *errors),
            )(handler)
            return action

        return declare


async def record_refused_action(call: Call) -> None:
    """Record what an operator has tried who may only read. Raises :class:`DatabaseAway`."""
    action = call.route.action
    if action is not None:
        run = _run_for(call)
        run.prepare(action, call.route.is_urgent, [*call.path.values()], None)
        await run.begin()
        await run.end("refused", MAY_ONLY_READ.code)


def _run_for(call: Call) -> ActionRun:
    """Return a run for a request, as its header ``Restart-Wait`` says."""
    assert call.operator is not None, "the route of an action authenticates an operator"
    deadline_s, while_down = read_restart_wait(
        call.request.sent.get(b"restart-wait", []), call.deps.settings.ask_deadline_s
    )
    return ActionRun(
        call.deps, call.operator, call.origin(), deadline_s=deadline_s, while_down=while_down, sent=call.json
    )


def _parameters(sent: Mapping[str, object]) -> dict[str, str] | None:
    """Return what was sent besides the reason and the target, as texts without secrets, and bounded."""
    texts = {
        name[:PARAMETER_NAME_CHARS_MAX]: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in sent.items()
        if name not in ("reason", "path") and value not in (None, "")
    }
    return {
        # With its name, so that a secret is recognised by it.
        name: SCRUBBED
        if name in HIDDEN_PARAMETERS
        else scrub(f"{name}={value[:PARAMETER_CHARS_MAX]}").removeprefix(f"{name}=")
        for name, value in list(texts.items())[:PARAMETERS_MAX]
    } or None


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
