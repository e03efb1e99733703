"""Bulk actions: one operator's action on all entries of a list that match a filter.

The row of the action is all there is of it: while it has no result it goes on, and its ``effect`` says how far.
Which entries are in hand is written before they are acted on. So a process that goes on with the action of one that
has ended finds which of those that has done: they match no longer. Each write has the next number, so one that was
replaced while it stood still can write no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, Unpack

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, literal, or_, select, text, tuple_

from holdfast.persistence.claims.due_work import BULK_ACTIONS_GO_ON
from holdfast.persistence.operators.poison import POISON_ORDER, matching_poison
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.queries.events import EVENT_ORDER, failing
from holdfast.persistence.queries.orders import ORDER_ORDER, troubled
from holdfast.persistence.queries.paging import Order, PageOptions, page
from holdfast.persistence.queries.tasks import TASK_ORDER, in_review, unfinished
from holdfast.persistence.records.operator_tables import OperatorAction, poison_messages
from holdfast.persistence.records.operator_tables import operator_actions as actions
from holdfast.persistence.records.tables import outbox, tasks
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows

START: Final = "act_on_all"
CONTINUE: Final = "continue_bulk_action"
STOP: Final = "stop_bulk_action"
_ALL = select(*(actions.c[name] for name in OperatorAction._fields)).where(
    actions.c.action.in_((START, CONTINUE)), actions.c.effect.is_not(None)
)
_WRITE = text(
    "update operator_actions set effect = cast(:effect as json) where action_id = :action_id and result is null "
    "and coalesce(cast(effect ->> 'number' as bigint), 0) = :number"
)


class Match(NamedTuple):
    """An entry that matches: its time if it has one, its position, and what an action on it takes."""

    at: datetime | None
    position: str
    target: tuple[str, ...]


class Matches(NamedTuple):
    """How many entries match, with the first and the last few in the list's order, oldest first.

    Those of the processes ``unreachable``, which did not answer, are not among them.
    """

    total: int
    first: list[Match]
    last: list[Match]
    unreachable: Sequence[str] = ()


class BulkProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a bulk action is: the effect of its row.

    It is on entries from before ``until``, of which ``total`` matched at the start. Those up to the position
    ``after`` were acted on; ``in_hand`` are those after it up to ``upto``. ``exceptions`` are the first ones, with
    the code that refused each. ``key`` is the Idempotency-Key that began it, with its operator. ``unreachable`` are
    the processes whose entries were left out, since they did not answer. ``number`` counts what was written.
    """

    act: str
    filter: str
    until: datetime
    total: int
    key: str = ""
    done: int = 0
    refused: int = 0
    exceptions: str = ""
    after: str = ""
    upto: str = ""
    in_hand: int = 0
    unreachable: str = ""
    stopped_by: str = ""
    number: int = 0

    @classmethod
    def of(cls, action: OperatorAction) -> BulkProgress:
        """Return the progress of a bulk action. Raises :class:`msgspec.ValidationError`."""
        return msgspec.convert(action.effect, cls, strict=False)

    def effect(self) -> dict[str, str]:
        """Return it as a row has it."""
        return {name: str(value) for name, value in msgspec.to_builtins(self).items()}


class RowList(NamedTuple):
    """A list of rows: what a filter selects, its order, what an action on one takes, which are not acted on yet."""

    entries: Callable[[Mapping[str, str]], Select[*tuple[Any, ...]]]
    order: Order
    target: tuple[ColumnElement[Any], ...]
    untouched: Callable[[datetime], ColumnElement[bool]] = lambda _: literal(value=True)

    def matching(self, filters: Mapping[str, str], until: datetime) -> Select[*tuple[Any, ...]]:
        """Select the entries from before a time that match, and were not acted on since then."""
        found = self.entries(filters).with_only_columns(*self.order, *self.target)
        return found.where(self.order[0] < until, self.untouched(until))


EVENTS: Final = RowList(
    failing,
    EVENT_ORDER,
    (outbox.c.account_id, outbox.c.event_id, outbox.c.receiver),
    lambda until: outbox.c.round_at < until,
)
POISON: Final = RowList(
    matching_poison,
    POISON_ORDER,
    (poison_messages.c.poison_id,),
    lambda until: (
        poison_messages.c.state.in_(("kept", "unknown"))
        & or_(poison_messages.c.replayed_at.is_(None), poison_messages.c.replayed_at < until)
    ),
)
TASKS: Final = RowList(unfinished, TASK_ORDER, (tasks.c.request_id,))
REVIEWS: Final = RowList(
    in_review,
    TASK_ORDER,
    (func.json_extract_path_text(tasks.c.state, "review", "case_id"),),
    lambda _: func.json_extract_path_text(tasks.c.state, "review", "decision") == "capture_blocked",
)
ORDERS: Final = RowList(troubled, ORDER_ORDER, (ORDER_ORDER[1],))


def count_matches(
    rows: Connection, of: RowList, filters: Mapping[str, str], until: datetime, *, shown: int
) -> Matches:
    """Count all entries that match; the first and the last ``shown`` are returned."""
    found = of.matching(filters, until)
    total = rows.execute(select(func.count()).select_from(found.subquery())).scalar_one()
    first = page(rows, found, of.order, oldest_first=True, limit=shown)
    last = page(rows, found, of.order, limit=shown)
    return Matches(total, _matches(first), _matches(reversed(last)))


def next_matches(
    rows: Connection, of: RowList, filters: Mapping[str, str], progress: BulkProgress, *, most: int
) -> list[Match]:
    """Return the entries that match after the position of ``progress``, up to that of those in hand, if any are."""
    found = of.matching(filters, progress.until)
    if progress.upto:
        at, row_id = _at(progress.upto)
        found = found.where(tuple_(*of.order) <= tuple_(literal(at, of.order[0].type), literal(row_id)))
    after = _at(progress.after) if progress.after else None
    return _matches(page(rows, found, of.order, oldest_first=True, limit=most, after=after))


def _matches(found: Iterable[Sequence[Any] | UnreadableEntry]) -> list[Match]:
    """Return what can be acted on: an unreadable row cannot."""
    return [
        Match(at, f"{at.astimezone(UTC).isoformat()} {row_id}", tuple(target))
        for each in found
        if not isinstance(each, UnreadableEntry)
        for at, row_id, *target in [each]
    ]


def _at(position: str) -> tuple[datetime, str]:
    at, _, row_id = position.partition(" ")
    return datetime.fromisoformat(at), row_id


def bulk_actions(
    rows: Connection, *, filters: Mapping[str, str], **options: Unpack[PageOptions]
) -> list[OperatorAction | UnreadableEntry]:
    """Return a page of the bulk actions, newest first, unfiltered."""
    assert not filters
    found = page(rows, _ALL, (actions.c.at, actions.c.action_id), **options)
    return read_rows(OperatorAction._make, found, "operator_actions", attrgetter("at", "action_id"))


def open_bulk_actions(rows: Connection, now: datetime) -> list[OperatorAction]:
    """Return the bulk actions that go on, the oldest first."""
    found = _ALL.where(actions.c.result.is_(None), actions.c.at > now - BULK_ACTIONS_GO_ON)
    return [OperatorAction._make(row) for row in rows.execute(found.order_by(actions.c.at, actions.c.action_id))]


def bulk_action_by_id(rows: Connection, action_id: str) -> OperatorAction | None:
    """Return a bulk action."""
    row = rows.execute(_ALL.where(actions.c.action_id == action_id)).one_or_none()
    return None if row is None else OperatorAction._make(row)


def stopped_by(rows: Connection, action: OperatorAction) -> str | None:
    """Return the name of the operator who has stopped a bulk action; None if it goes on."""
    stops = select(actions.c.operator).where(
        actions.c.at >= action.at,
        actions.c.action == STOP,
        actions.c.target == action.action_id,
        actions.c.result == "done",
    )
    return rows.execute(stops.order_by(actions.c.at).limit(1)).scalar()


def write_progress(rows: Connection, action_id: str, progress: BulkProgress) -> BulkProgress | None:
    """Write how far a bulk action is now, under the next number.

    Returns None if it has ended, or if another process has gone on with it since ``progress`` was read.
    """
    after = msgspec.structs.replace(progress, number=progress.number + 1)
    written = {"effect": msgspec.json.encode(after.effect()).decode(), "number": progress.number}
    return after if rows.execute(_WRITE, {"action_id": action_id, **written}).rowcount == 1 else None


def begin_once(rows: Connection, action: OperatorAction, key: str) -> OperatorAction:
    """Write a bulk action that begins, and return it; or the one that its key has begun within a day.

    Runs in one transaction, in which no other begins with the key.
    """
    rows.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))
    begun = _ALL.where(
        actions.c.at > action.at - BULK_ACTIONS_GO_ON, func.json_extract_path_text(actions.c.effect, "key") == key
    )
    row = rows.execute(begun).one_or_none()
    if row is None:
        write_action(rows, action)
    return action if row is None else OperatorAction._make(row)


def continue_once(rows: Connection, action: OperatorAction) -> bool:
    """Write a bulk action that continues its target; False, without it, if another has continued that.

    Runs in one transaction, in which no other can continue the same.
    """
    rows.execute(select(actions.c.action_id).where(actions.c.action_id == action.target).with_for_update())
    continued = rows.execute(_ALL.where(actions.c.action == CONTINUE, actions.c.target == action.target)).first()
    if continued is None:
        write_action(rows, action)
    return continued is None
